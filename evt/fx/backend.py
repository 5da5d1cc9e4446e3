"""``torch.compile(model, backend="evt")``: Inductor, with our regions in its graph as custom operators.

The regions are put in by a pass over the graph that Inductor is about to lower, after autograd, decompositions and
functionalisation; all the rest of the graph is compiled as ever. :class:`FusePass` alone is for those who keep
``backend="inductor"``:

    torch._inductor.config.post_grad_custom_pre_pass = FusePass()

PyTorch's caches of compiled graphs on disk are not used for such graphs: a graph from there would have skipped the
pass, and kernels that were built and chosen on another machine, or before others were measured, would go unnoticed.
The kernels themselves are in evt's cache.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch._functorch._aot_autograd.logging_utils import get_aot_compilation_context
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, GraphModule, Node

from evt.compilation import KernelSource
from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, NoKernelWarning
from evt.fx.build import RegionProgram
from evt.fx.cost_model import Benefit, estimate
from evt.fx.kernels import build_all, built, kernel_or_reason, planned
from evt.fx.lowering import register
from evt.fx.measure import measured
from evt.fx.regions import Fusion, Outcome, find_regions
from evt.fx.report import Owner, ProductReport, Record, keep, rows_of
from evt.fx.rewrite import LAUNCH, rewrite
from evt.fx.skip_reason import SkipReason
from evt.request.given import check_kind
from evt.runtime.kernels import device_target

#: Where a region is taken: where the estimate says that it wins, where it was measured to, or wherever it can be.
RULES = ("estimate", "measure", "always")
#: Options of torch.compile that are ours, as ``options={"evt.rule": "always"}``.
_OPTIONS = ("evt.rule", "evt.devices", "evt.tune")
#: Why a product that was given others has no kernel in the end.
_LOST = ("E1015", "E1017", "E1018", "E1019", "E1022")
#: A rule, the kinds of devices, and Inductor's own options.
_Options = tuple[str, tuple[str, ...], dict[str, Any]]
#: Where Dynamo keeps the backend that it wraps, in versions of PyTorch.
_WRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")
#: The options of Inductor's that choose by measuring, and by which we do too.
_MEASURES = ("max_autotune", "max_autotune_gemm")


class FusePass(CustomGraphPass):  # type: ignore[misc, unused-ignore]
    """Fuses the products of a graph that Inductor is about to lower, where that wins, and records what it did."""

    def __init__(
        self,
        rule: str = "estimate",
        devices: Sequence[str] = ("cuda",),
        owner: Owner | None = None,
        options: object = None,
        target: str = "",
    ) -> None:
        if rule not in RULES:
            message = f"there is no rule `{rule}`"
            raise ArgumentError(Diagnostic("E0607", message, help=f"rules: {', '.join(RULES)}"))
        check_kind("devices", devices, tuple | list, 'a tuple of kinds of devices, as in `("cuda",)`')
        self.rule, self.devices, self.owner, self.options = rule, tuple(devices), owner or Owner(), options
        #: The target in whose place nothing is built, and the kernels that regions would take there.
        self.target, self.kernels = target, dict[Node, str]()
        #: "backward" while graphs are given that Inductor does not compile yet.
        self.graph_name = ""

    def __call__(self, graph: Graph) -> None:
        outcomes, benefits = self.settle(graph)
        name = self.graph_name or _graph_name()
        if _collecting:
            _collecting[-1].rows += rows_of(outcomes, benefits, name, self.kernels)
            sources, _ = planned({each.product: each.fused for each in outcomes if each.fused is not None})
            _collecting[-1].sources += [source for mine in sources.values() for source in mine]
            _collecting[-1].reasons += [each.reason for each in outcomes if each.reason is not None]
            if graph.owning_module is _collecting[-1].outermost:  # graphs inside it, as of torch.cond, come before it
                raise _Collected
            return
        taken = [each.fused for each in outcomes if each.fused is not None]
        rewrite(graph, taken, LAUNCH)
        keep(Record(rows_of(outcomes, benefits, name), self.owner, self.options))

    def settle(self, graph: Graph) -> tuple[tuple[Outcome, ...], dict[Node, Benefit]]:
        """Return what becomes of the products; those beside one that gets no kernel may take what it was given."""
        lost: dict[Node, Outcome] = {}
        benefits: dict[Node, Benefit] = {}
        while True:
            reasons = {node: each.reason for node, each in lost.items() if each.reason is not None}
            outcomes, found = self.judge(find_regions(graph, self.devices, inlined=True, left=reasons))
            outcomes = tuple(lost.get(each.product, each) for each in outcomes)
            benefits = {**found, **benefits}
            known = len(lost)
            lost |= {each.product: each for each in outcomes if each.reason is not None and each.reason.code in _LOST}
            free = {node for each in lost.values() for node in each.wanted}
            if len(lost) == known or not any(
                reason.code == "E1013" and reason.node in free
                for each in outcomes
                if each.product not in lost
                for reason in each.behind
            ):
                return outcomes, benefits

    def judge(self, found: Fusion) -> tuple[tuple[Outcome, ...], dict[Node, Benefit]]:
        """Return what becomes of the products: regions that lose, or have no kernel, are left to Inductor."""
        regions = {each.product: each.fused for each in found.outcomes if each.fused is not None}
        benefits: dict[Node, Benefit] = {}
        refused: dict[Node, SkipReason] = {}
        if self.rule == "estimate":
            benefits = {node: _estimate(fused, self.target) for node, fused in regions.items()}
            refused = _losers(benefits)
        refused |= self.prepare({node: fused for node, fused in regions.items() if node not in refused})
        if self.rule == "measure" and not _collecting:
            kept = {node: fused for node, fused in regions.items() if node not in refused}
            benefits = {node: measured(fused) or _estimate(fused) for node, fused in kept.items()}
            refused |= _losers(benefits)
        outcomes = [
            replace(each, fused=None, reason=refused[each.product], possible=each.fused)
            if each.product in refused
            else each
            for each in found.outcomes
        ]
        return tuple(outcomes), benefits

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Build the kernels of regions; return why others have none, by their products."""
        if self.target:
            return self.name_kernels(regions)
        sources, without = planned(regions)
        return without if _collecting else without | built(sources)

    def name_kernels(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Name the kernels of regions on a target; return why others have none there."""
        without: dict[Node, SkipReason] = {}
        for node, fused in regions.items():
            found = kernel_or_reason(fused, self.target)
            if isinstance(found, str):
                without[node] = SkipReason(node, "E1018", found)
            else:
                self.kernels[node] = f"{found.route} {found.config.name}"
        return without

    def uuid(self) -> None:
        """Return None, which keeps the graph out of PyTorch's caches; see the module."""
        return


def _graph_name() -> str:
    """Return "forward" or "backward", as autograd calls what is being compiled, or "" where it has no part."""
    names, *_ = get_aot_compilation_context()
    name = names[-1].rpartition("_")[2] if names else ""
    return name if name in ("forward", "backward") else ""


def _losers(benefits: Mapping[Node, Benefit]) -> dict[Node, SkipReason]:
    """Return why products are left to the libraries: regions that lose, and kernels that no measurement covers."""
    return {
        node: SkipReason(node, benefit.code, str(benefit)) for node, benefit in benefits.items() if not benefit.wins
    }


def _estimate(fused: RegionProgram, target: str = "") -> Benefit:
    return estimate(fused, target or _target(fused), replayed=bool(torch._inductor.config.triton.cudagraphs))


def _target(fused: RegionProgram) -> str:
    device = fused.region.product.node.meta["val"].device
    if device.type != "cuda":
        return "sm90"
    return device_target(device.index if device.index is not None else torch.cuda.current_device()).name


def backend(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's. ``mode`` and ``options`` are those of torch.compile with Inductor.

    Of our own, ``options`` has ``evt.rule`` (one of :data:`RULES`; ``evt.tune=True`` is ``"measure"``, as are
    max-autotune's modes) and ``evt.devices``.
    """
    rule, devices, patches = read_options(mode, options)
    fuse = FusePass(rule, devices, Owner.of(module, inputs), (rule, tuple(devices), dict(patches)))
    patches["post_grad_custom_pre_pass"] = fuse
    if not patches.get("use_post_grad_passes", getattr(torch._inductor.config, "use_post_grad_passes", True)):
        said = '`use_post_grad_passes` is False, as in mode="lite": Inductor runs no passes, and evt fuses nothing'
        warnings.warn(said, NoKernelWarning, stacklevel=2)
    if _collecting:
        if _collecting[-1].target:
            fuse.target, fuse.devices = _collecting[-1].target, ("cpu", "cuda")
        return _collect(module, inputs, fuse, patches)
    compiled: Any = compile_fx(module, list(inputs), config_patches=patches)
    made: Callable[..., Any] = compiled
    return made


def read_options(mode: str | None, options: Mapping[str, Any] | None) -> tuple[str, Sequence[str], dict[str, Any]]:
    """Return the rule, the devices, and Inductor's own options. Raise ArgumentError (E0602, E0607)."""
    patches: dict[str, Any] = {}
    if mode not in (None, "default"):
        patches.update(torch._inductor.list_mode_options(mode))  # type: ignore[no-untyped-call, unused-ignore]
    if options is not None:
        check_kind("options", options, Mapping, 'a mapping, as in `{"evt.tune": True}`')
    given = dict(options or {})
    ours = {name: given.pop(name) for name in list(given) if name.startswith("evt.")}
    if unknown := next((name for name in ours if name not in _OPTIONS), None):
        message = f"there is no option `{unknown}`"
        raise ArgumentError(Diagnostic("E0602", message, help=f"options: {', '.join(_OPTIONS)}; others are Inductor's"))
    check_kind("evt.tune", ours.get("evt.tune", False), bool, "True or False")
    inductors = {name.replace("-", "_"): value for name, value in given.items()}
    known = torch._inductor.list_options() if inductors else ()
    if unknown := next((name for name in inductors if name not in known), None):
        message = f"neither evt nor Inductor has an option `{unknown}`"
        raise ArgumentError(Diagnostic("E0602", message, help="torch._inductor.list_options() has Inductor's"))
    patches.update(inductors)
    measures = ours.get("evt.tune", any(patches.get(name) for name in _MEASURES))
    rule = ours.get("evt.rule", "measure" if measures else "estimate")
    return rule, ours.get("evt.devices", ("cuda",)), patches


@dataclass
class _Collection:
    """The kernels of a model, and why products have none."""

    sources: list[KernelSource] = field(default_factory=list)
    reasons: list[SkipReason] = field(default_factory=list)
    rows: list[ProductReport] = field(default_factory=list)
    #: The target that a report is asked for, "" for that of the device.
    target: str = ""
    outermost: GraphModule | None = None


#: What :func:`prebuild` collects, while it does.
_collecting: list[_Collection] = []


class _Collected(BaseException):
    """The kernels of a graph are known; it need not be compiled. No Exception, because Inductor replaces those.

    All others pass: they are failures, or PyTorch's requests to begin again.
    """


def _collect(
    module: GraphModule, inputs: Sequence[Any], fuse: FusePass, patches: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's as far as the pass lets Inductor, and return it as it is."""

    def compile_inner(graph: GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        _collecting[-1].outermost = graph
        return compile_fx_inner(graph, inputs, **keywords)

    try:
        with _backward_first(fuse):
            compiled: Any = compile_fx(module, list(inputs), inner_compile=compile_inner, config_patches=dict(patches))
            made: Callable[..., Any] = compiled
            return made
    except _Collected:
        return module.forward


@contextmanager
def _backward_first(fuse: FusePass) -> Iterator[None]:
    """Show a pass each backward graph where autograd's graph is divided; Inductor gets it in a first backward pass."""
    inductor: Any = import_module("torch._inductor.compile_fx")
    partition = inductor.min_cut_rematerialization_partition

    def divide(*given: Any, **named: Any) -> tuple[GraphModule, GraphModule]:
        forward, backward = partition(*given, **named)
        fuse.graph_name = "backward"
        for each in backward.modules():
            if isinstance(each, GraphModule):
                fuse(each.graph)
        fuse.graph_name = ""
        return forward, backward

    inductor.min_cut_rematerialization_partition = divide
    try:
        yield
    finally:
        inductor.min_cut_rematerialization_partition = partition


def prebuild(model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], **keywords: Any) -> int:
    """Build the kernels that ``torch.compile(model, backend="evt")`` takes, side by side; return how many they are.

    The model is called once with the inputs, a sequence or keyword arguments, uncompiled. Call this as the model will
    be called: where gradients are recorded its kernels are those of a training step, forward and backward, under
    torch.no_grad() those of inference. ``keywords`` are those of torch.compile: ``dynamic``, ``mode``, ``options``.
    Raise BuildError where kernels cannot be built; warn with NoKernelWarning where the model has products and none of
    them gets a kernel. Raise ArgumentError (E0607) for arguments of other kinds.
    """
    wanted, reasons = kernels_of(model, inputs, **keywords)
    if reasons and not wanted:
        said = "\n".join(dict.fromkeys(f"  {each}" for each in reasons))
        warnings.warn(f"no product of the model gets a kernel:\n{said}", NoKernelWarning, stacklevel=2)
    build_all(wanted)
    return len(wanted)


def kernels_of(
    model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], **keywords: Any
) -> tuple[list[KernelSource], list[SkipReason]]:
    """Return the sources that :func:`prebuild` builds, and why products have no kernel."""
    check_kind("model", model, Callable, "a model, or a function")
    check_kind("inputs", inputs, tuple | list | Mapping, "a tuple of them, as in `(x,)`, or a mapping")
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    found = _Collection()
    with _collected(found):
        compiled: Any = torch.compile(_apart(model), backend=_fresh_backend(), **keywords)
        compiled(*positional, **named)
    return list(dict.fromkeys(found.sources)), found.reasons


def survey(
    model: Callable[..., Any], inputs: Sequence[Any] | Mapping[str, Any], options: _Options | None, target: str
) -> tuple[ProductReport, ...]:
    """Return the rows of a call that is not compiled, on a target or, if that is "", on the model's device.

    Nothing is measured: in place of the rule "measure" the estimate decides.
    """
    rule, devices, patches = options or ("estimate", ("cuda",), {})
    positional, named = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    given = {**patches, "evt.rule": "estimate" if rule == "measure" else rule, "evt.devices": devices}
    found = _Collection(target=target)
    with _collected(found):
        compiled: Any = torch.compile(_apart(model), backend=partial(_fresh_backend(), options=given))
        compiled(*positional, **named)
    return tuple(sorted(found.rows, key=lambda row: row.graph == "backward"))


def _apart(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a model, of code of its own, for which alone Dynamo counts what is compiled."""

    def call(*args: Any, **keywords: Any) -> Any:
        return model(*args, **keywords)

    call.__code__ = call.__code__.replace()
    return call


def options_of(compiled: object) -> _Options | None:
    """Return the options that torch.compile was given with this backend, or None of anything else."""
    found = getattr(getattr(compiled, "dynamo_ctx", None), "callback", None)
    while inner := next((getattr(found, name) for name in _WRAPPED if hasattr(found, name)), None):
        found = inner
    given: dict[str, Any] = {}
    while found is not None and found is not backend:
        given |= getattr(found, "kwargs", None) or getattr(found, "keywords", None) or {}
        found = getattr(found, "compiler_fn", None) or getattr(found, "func", None)
    if found is None:
        return None
    rule, devices, patches = read_options(given.get("mode"), given.get("options"))
    return rule, tuple(devices), patches


def _fresh_backend() -> Callable[..., Any]:
    """Return a backend of its own: what Dynamo compiled with another one is not taken."""

    def collecting(module: GraphModule, inputs: Sequence[Any], **keywords: Any) -> Callable[..., Any]:
        return backend(module, inputs, **keywords)

    return collecting


@contextmanager
def _collected(found: _Collection) -> Iterator[None]:
    _collecting.append(found)
    try:
        yield
    finally:
        _collecting.pop()


register()
