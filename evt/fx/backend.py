"""``torch.compile(model, backend="evt")``: Inductor, with fused regions as custom operators in its graph.

A pass replaces the regions in the graph that Inductor is about to lower, after autograd, decompositions and
functionalisation. Inductor compiles all other operators as always. :class:`FusePass` alone serves users who keep
``backend="inductor"``:

    torch._inductor.config.post_grad_custom_pre_pass = FusePass()

PyTorch does not cache such graphs on disk. A cached graph would skip the pass, and so would miss kernels that were
built, chosen or measured since then. evt caches the kernels.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._functorch._aot_autograd.logging_utils import get_aot_compilation_context
from torch._guards import TracingContext
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx import Graph, GraphModule, Node

from evt.compilation import KernelSource
from evt.errors import NoKernelWarning
from evt.fx.background import Background
from evt.fx.build import RegionProgram
from evt.fx.choose import Choice, RegionPass
from evt.fx.dispatch import Dispatch
from evt.fx.kernels import failures_of, planned
from evt.fx.lowering import register
from evt.fx.options import LOSSLESS, Options, read_options
from evt.fx.plan import GraphPlan
from evt.fx.records import Owner, Record, keep, rows_of
from evt.fx.rewrite import LAUNCH, rewrite
from evt.fx.skip_reason import SkipReason

#: The attributes in which versions of Dynamo keep the backend that a wrapper calls.
_WRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")


class FusePass(RegionPass):
    """A pass of Inductor's that replaces regions by calls of their kernels, and records the outcomes."""

    def __init__(
        self,
        rule: str = "estimate",
        devices: Sequence[str] = ("cuda",),
        owner: Owner | None = None,
        options: Options | None = None,
    ) -> None:
        super().__init__(options or Options(rule, devices))
        self.owner, self.options = owner or Owner(), options
        #: The builds beside Inductor, while :meth:`compile` waits for them; None if the pass has to wait.
        self._background: Background | None = None
        #: The reasons why sources cannot be built.
        self._failures: dict[KernelSource, str] = {}
        self._sources: dict[Node, list[KernelSource]] = {}
        self._records: list[Record] = []

    def __call__(self, graph: Graph) -> None:
        choice = self.choose(graph)
        if self._background is not None:
            self._background.start(self._sources_of(choice))
        else:
            while failures := failures_of(self._sources_of(choice)):
                self._failures |= failures
                choice = self.choose(graph)
        rewrite(graph, choice.regions, LAUNCH)
        record = Record(rows_of(choice.outcomes, choice.benefits, graph_name()), self.owner, self.options)
        if self._background is not None:
            self._records.append(record)
        else:
            keep(record)

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Plan the kernels of regions, and build them for a measurement; return why regions have no kernel."""
        sources, without = planned(regions)
        self._sources = sources
        if self.rule == "measure":
            self._failures |= failures_of([each for mine in sources.values() for each in mine])
        for node, mine in sources.items():
            failure = next((self._failures[each] for each in mine if each in self._failures), None)
            if failure is not None:
                without[node] = SkipReason(node, "E1019", failure)
        return without

    def _sources_of(self, choice: Choice) -> list[KernelSource]:
        """Return the sources of the kernels that a choice takes."""
        return [source for each in choice.regions for source in self._sources.get(each.region.product.node, ())]

    def compile(self, graph: GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        """Compile a graph of autograd's by Inductor, as ``inner_compile``, while the graph's kernels are built.

        Wait for the kernels. If some cannot be built, compile the graph again without their regions.
        """
        while True:
            unchanged = GraphModule(graph, copy.deepcopy(graph.graph))
            unchanged.meta = dict(graph.meta)
            with Background() as background:
                self._background = background
                try:
                    compiled = compile_fx_inner(graph, inputs, **keywords)
                finally:
                    self._background = None
                failures = background.failures()
            records, self._records = self._records, []
            if not failures:
                for each in records:
                    keep(each)
                return compiled
            self._failures |= failures
            graph = unchanged
            context = TracingContext.try_get()
            if context is not None and context.output_strides:
                context.output_strides.clear()  # each compilation reports the strides of the results


def graph_name() -> str:
    """Return "forward" or "backward" for a graph of autograd's that is being compiled, else ""."""
    names, *_ = get_aot_compilation_context()
    name = names[-1].rpartition("_")[2] if names else ""
    return name if name in ("forward", "backward") else ""


def backend(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's; see :func:`read_options` for ``mode`` and ``options``."""
    read = read_options(mode, options)
    if read.rule == LOSSLESS:
        return lossless(module, Owner.of(module, inputs), read)
    fuse = FusePass(owner=Owner.of(module, inputs), options=read)
    patches = patches_of(read, fuse)
    compiled: Any = compile_fx(module, list(inputs), inner_compile=fuse.compile, config_patches=patches)
    made: Callable[..., Any] = compiled
    return made


class RecordedDispatch(Dispatch):
    """The calls of a graph of Dynamo's, whose plans are recorded for :func:`evt.report`."""

    def __init__(self, module: GraphModule, owner: Owner, options: Options) -> None:
        super().__init__(module, ((), {}), {"numerics": "eager"}, None, True)
        self.owner, self.options = owner, options

    def _planned(self, *arguments: Any) -> GraphPlan:
        made = super()._planned(*arguments)
        keep(Record(rows_of(made.fusion.outcomes), self.owner, self.options))
        return made


def lossless(module: GraphModule, owner: Owner, options: Options) -> Callable[..., Any]:
    """Return a graph of Dynamo's with regions whose bits are eager's, as :func:`evt.fuse` with ``rule="lossless"``.

    Gradients, and modules in training mode that the graph calls, are PyTorch's work.
    """
    if any(each.training for each in module.modules() if each is not module):
        return module.forward
    module.training = False  # of the graph itself; its operators have the modes of the model's modules
    dispatch = RecordedDispatch(module, owner, options)
    return lambda *arguments: dispatch(arguments, {})


def patches_of(options: Options, fuse: RegionPass) -> dict[str, Any]:
    """Return Inductor's options, with a pass among them. Warn with NoKernelWarning where Inductor runs no passes."""
    patches = {**options.patches, "post_grad_custom_pre_pass": fuse}
    if not patches.get("use_post_grad_passes", getattr(torch._inductor.config, "use_post_grad_passes", True)):
        said = '`use_post_grad_passes` is False, as in mode="lite": Inductor runs no passes, and evt fuses nothing'
        warnings.warn(said, NoKernelWarning, stacklevel=3)
    return patches


def options_of(compiled: object) -> Options | None:
    """Return the options of a model that torch.compile compiles with this backend, or None for another object."""
    found = getattr(getattr(compiled, "dynamo_ctx", None), "callback", None)
    while inner := next((getattr(found, name) for name in _WRAPPED if hasattr(found, name)), None):
        found = inner
    given: dict[str, Any] = {}
    while found is not None and found is not backend:
        given |= getattr(found, "kwargs", None) or getattr(found, "keywords", None) or {}
        found = getattr(found, "compiler_fn", None) or getattr(found, "func", None)
    return None if found is None else read_options(given.get("mode"), given.get("options"))


register()
