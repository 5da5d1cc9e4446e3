"""The kernels of a model before it is compiled: ``prebuild(model, inputs)`` builds, ``survey(...)`` reports them.

Both compile the model's graphs by Dynamo, autograd and Inductor as ``backend="evt"`` does, up to Inductor's passes:
:func:`_run_passes` takes the place of the code generator. So no graph is lowered, and the model runs uncompiled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch._functorch import config as functorch
from torch._inductor.compile_fx import _recursive_post_grad_passes, compile_fx, fake_tensor_prop
from torch._inductor.fx_passes.post_grad import view_to_reshape
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule, Node

from evt.compilation import KernelSource, pack_sources
from evt.diagnostics import Diagnostic, hint
from evt.errors import ArgumentError, NoKernelWarning
from evt.fx.attention import simplify_attention
from evt.fx.backend import options_of, patches_of
from evt.fx.build import RegionProgram
from evt.fx.choose import RegionPass
from evt.fx.gradient import graph_name
from evt.fx.kernels import build_all, planned
from evt.fx.norms import restore
from evt.fx.options import Options, read_options
from evt.fx.records import ProductReport, rows_of
from evt.fx.skip_reason import SkipReason
from evt.request.given import check_kind

#: The options of autograd under which it compiles a backward graph together with its forward graph. PyTorch before 2.9
#: has no such option: it compiles most backward graphs in the first backward pass, and these are not seen here.
_EAGER_BACKWARD = {"force_non_lazy_backward_lowering": True, "enable_autograd_cache": False}
#: The arguments of torch.compile that :func:`prebuild` takes: their kinds, in Python and in words.
_ARGUMENTS: Mapping[str, tuple[Any, str]] = {
    "dynamic": (bool | None, "True, False or None"),
    "fullgraph": (bool, "True or False"),
    "mode": (str | None, "the name of a mode of torch.compile"),
    "options": (Mapping | None, 'a mapping, as in `{"evt.tune": True}`'),
}


def prebuild(
    model: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    pack: str | Path | None = None,
    **keywords: Any,
) -> int:
    """Build the kernels that ``torch.compile(model, backend="evt")`` takes, in parallel; return their number.

    The model is called once, uncompiled, with the inputs: a sequence or keyword arguments. Call this function in the
    mode of later calls: the kernels belong to a training step, forward and backward, while gradients are recorded, and
    to inference under torch.no_grad(). ``keywords`` are arguments of torch.compile: ``dynamic``, ``fullgraph``,
    ``mode``, ``options``. ``pack`` names a file to write the kernels to, for machines that do not compile: `evt cache
    import` reads it.
    Raise BuildError if kernels cannot be built. Warn with NoKernelWarning if the model has products and none of them
    gets a kernel. Raise ArgumentError for unknown arguments (E0602) and arguments of other kinds (E0607).
    """
    check_kind("pack", pack, str | Path | None, "the name of a file")
    for name, value in keywords.items():
        if name not in _ARGUMENTS:
            message = f"`evt.prebuild` has no argument `{name}`; the kernels are for the device of the model"
            raise ArgumentError(Diagnostic("E0602", message, help=hint(name, ("pack", *_ARGUMENTS), "arguments")))
        check_kind(name, value, *_ARGUMENTS[name])
    wanted, reasons = kernels_of(model, inputs, **keywords)
    if reasons and not wanted:
        said = "\n".join(dict.fromkeys(f"  {each}" for each in reasons))
        warnings.warn(f"no product of the model gets a kernel:\n{said}", NoKernelWarning, stacklevel=2)
    build_all(wanted)
    if pack is not None:
        pack_sources(Path(pack), wanted)
    return len(wanted)


def kernels_of(
    model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], **keywords: Any
) -> tuple[list[KernelSource], list[SkipReason]]:
    """Return the sources that :func:`prebuild` builds, and why products have no kernel."""
    check_kind("model", model, Callable, "a model, or a function")
    check_kind("inputs", inputs, tuple | list | Mapping, "a tuple of them, as in `(x,)`, or a mapping")
    passes = _passes_of(model, inputs, _Planning, **keywords)
    sources = dict.fromkeys(source for each in passes for source in each.sources)
    return list(sources), [reason for each in passes for reason in each.reasons]


def regions_of(
    model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], **keywords: Any
) -> list[RegionProgram]:
    """Return the regions of a model that get kernels: see :func:`prebuild`."""
    check_kind("model", model, Callable, "a model, or a function")
    check_kind("inputs", inputs, tuple | list | Mapping, "a tuple of them, as in `(x,)`, or a mapping")
    return [fused for each in _passes_of(model, inputs, _Planning, **keywords) for fused in each.regions]


def survey(
    model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], options: Options | None, target: str
) -> tuple[ProductReport, ...]:
    """Return the outcomes of a model's products in one call, on a target or, if that is "", on the model's device.

    Nothing is built and nothing is measured: the estimate takes the place of the rule "measure".
    """
    read = options or Options()
    rule = "estimate" if read.rule == "measure" else read.rule
    given = {**read.patches, "evt.rule": rule, "evt.devices": ("cpu", "cuda") if target else read.devices}
    make = partial(_Naming, target=target) if target else _Planning
    rows = [row for each in _passes_of(model, inputs, make, options=given) for row in each.rows]
    return tuple(sorted(rows, key=lambda row: row.graph == "backward"))


class _Planning(RegionPass):
    """A pass that plans the kernels of regions as a compilation does, and does not change the graphs."""

    measures = False

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.rows: list[ProductReport] = []
        self.reasons: list[SkipReason] = []
        self.sources: list[KernelSource] = []
        self.regions: list[RegionProgram] = []
        #: By product, the sources of its region's kernels, and the name of the kernel on a target.
        self.planned: dict[Node, Sequence[KernelSource]] = {}
        self.names: dict[Node, str] = {}

    def __call__(self, graph: Graph) -> None:
        choice = self.choose(graph)
        self.rows += rows_of(choice.outcomes, choice.benefits, graph_name(), self.names)
        self.reasons += [each.reason for each in choice.outcomes if each.reason is not None]
        self.regions += choice.regions
        self.sources += [source for each in choice.regions for source in self.planned.get(each.region.product.node, ())]
        restore(graph)

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Plan the kernels of regions; return by product why a region has no kernel."""
        kernels, without = planned(regions, every=self.rule == "measure", calls=self.calls)
        self.planned |= {node: each.sources for node, each in kernels.items()}
        return without


class _Naming(_Planning):
    """A pass that names the kernels that regions take on a target, for a model on any device."""

    def __init__(self, options: Options, target: str) -> None:
        super().__init__(options)
        self.target = target

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Name the kernels of regions; return by product why a region has no kernel on the target."""
        without: dict[Node, SkipReason] = {}
        for node, fused in regions.items():
            found = self.calls.fastest_or_reason(fused, self.target)
            if isinstance(found, str):
                without[node] = SkipReason(node, "E1018", found)
            else:
                self.names[node] = f"{found.route} {found.config.name}"
        return without


def _passes_of(
    model: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    make: Callable[[Options], _Planning],
    **keywords: Any,
) -> list[_Planning]:
    """Call a model uncompiled; return a pass for each graph of Dynamo's that has seen the graphs made of it."""
    passes: list[_Planning] = []

    def collect(
        module: GraphModule, given: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
    ) -> Callable[..., Any]:
        read = read_options(mode, options)
        simplify_attention(module, read.devices)
        made = make(read)
        known = {name: value for name, value in _EAGER_BACKWARD.items() if hasattr(functorch, name)}
        with functorch.patch(known):
            compile_fx(module, list(given), inner_compile=_run_passes, config_patches=patches_of(read, made))
        passes.append(made)
        return module.forward

    def call(*args: Any, **named: Any) -> Any:
        return original(*args, **named)

    call.__code__ = call.__code__.replace()  # Dynamo counts compilations by code object: this one is new
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    original = model._orig_mod if isinstance(model, OptimizedModule) else model
    with _uncompiled(original):
        torch.compile(call, backend=collect, **keywords)(*positional, **named)
    return passes


@contextmanager
def _uncompiled(model: Callable[..., Any]) -> Iterator[None]:
    """Replace the parts of a model that this backend compiles by their originals, inside a ``with`` block.

    After a graph break, Dynamo runs the code of a compiled part and does not compile it with another backend.
    """
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    calls = {each: each._compiled_call_impl for each in modules if each._compiled_call_impl is not None}
    parts = [
        (parent, name, child)
        for parent in modules
        for name, child in parent._modules.items()
        if isinstance(child, OptimizedModule) and options_of(child) is not None
    ]
    try:
        for each in calls:
            each._compiled_call_impl = None
        for parent, name, child in parts:
            parent._modules[name] = child._orig_mod
        yield
    finally:
        for each, call in calls.items():
            each._compiled_call_impl = call
        for parent, name, child in parts:
            parent._modules[name] = child


def _run_passes(graph: GraphModule, inputs: Sequence[Any], *, is_inference: bool = False, **_: Any) -> Any:
    """Run Inductor's passes over a graph as its code generator does; return the graph, which nobody calls."""
    view_to_reshape(graph)  # type: ignore[no-untyped-call, unused-ignore]
    with torch.no_grad():
        mode = fake_tensor_prop(graph, inputs)
    with V.set_fake_mode(mode):
        _recursive_post_grad_passes(graph, is_inference)
    return graph.forward
