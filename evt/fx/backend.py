"""``torch.compile(model, backend="evt")``: Inductor, with fused regions as custom operators in its graph.

A pass replaces the regions in the graph that Inductor is about to lower, after autograd, decompositions and
functionalisation. Inductor compiles all other operators as always. :class:`FusePass` alone serves users who keep
``backend="inductor"``:

    torch._inductor.config.post_grad_custom_pre_pass = FusePass()

PyTorch keeps the compiled graphs on disk, and a later process loads them instead of running the pass. evt keeps the
results of the pass. PyTorch compiles a graph again if its kernels are gone or out of date: see :mod:`evt.fx.stored`.
Graphs of :class:`FusePass` beside ``backend="inductor"`` are not kept.
"""

from __future__ import annotations

import copy
import hashlib
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch._guards import TracingContext
from torch._inductor.compile_fx import compile_fx, compile_fx_inner
from torch.fx import Graph, GraphModule, Node

from evt.compilation import Cache, KernelSource, tools_digest
from evt.errors import BuildError, NoKernelWarning
from evt.fx import stored
from evt.fx.attention import simplify_attention
from evt.fx.background import Background
from evt.fx.build import RegionProgram
from evt.fx.choose import Choice, RegionPass
from evt.fx.compared import SaveCompared, store_compared
from evt.fx.dispatch import Dispatch
from evt.fx.gradient import graph_name
from evt.fx.kernels import RegionKernels, built, planned
from evt.fx.lowering import register
from evt.fx.norms import restore
from evt.fx.options import LOSSLESS, Options, read_options
from evt.fx.plan import GraphPlan
from evt.fx.records import Owner, ProductReport, Record, keep, rows_of
from evt.fx.rewrite import LAUNCH, rewrite
from evt.fx.skip_reason import SkipReason
from evt.fx.stored import StoredGraph
from evt.fx.updates import join_updates
from evt.fx.wide import widen
from evt.runtime.folded import Refresh

#: The attributes in which versions of Dynamo keep the backend that a wrapper calls.
_WRAPPED = ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable")
#: Inductor's option for passes over the joint graph of a forward and a backward pass.
_JOINT = "joint_custom_post_pass"


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
        self._kernels: dict[Node, RegionKernels] = {}
        self._compiled: list[_CompiledGraph] = []
        #: The folds of the graphs that :meth:`record` has recorded last.
        self.refreshed: list[Refresh] = []
        #: The digests of graphs that this pass has seen: they were not loaded.
        self._seen: set[str] = set()
        #: Part of the identity, after PyTorch has loaded a graph that is not valid.
        self._salt = ""

    def __call__(self, graph: Graph) -> None:
        choice = self.choose(graph)
        if self._background is not None:
            self._background.start(_sources_of(self._kernels_of(choice)))
        else:
            while failures := built(_sources_of(self._kernels_of(choice))).failures:
                self._failures |= failures
                choice = self.choose(graph)
        rewrite(graph, choice.regions, LAUNCH)
        join_updates(graph, self.devices)
        widen(graph)
        refresh = self._folded(graph)
        store_compared(graph)
        notes = {node: each.note for node, each in self._kernels.items()}
        rows = rows_of(choice.outcomes, choice.benefits, graph_name(), notes)
        if self._background is not None:
            made = _CompiledGraph(rows, self._kernels_of(choice), refresh)
            self._compiled.append(made)
            self._seen.add(made.digest)
            stored.count(made.digest)
        else:
            keep(Record(rows, self.owner, self.options))

    def _folded(self, graph: Graph) -> Refresh | None:
        """Restore a graph; return its folds if :meth:`compile` can call them before each replay of a CUDA graph.

        A graph that autograd's cache keeps whole folds in each replay.
        """
        replayed = self._background is not None and torch._inductor.config.triton.cudagraphs and not _is_bundled()
        folds = restore(graph, self.frozen or replayed)
        if folds is None or not replayed:
            return None
        inputs = graph.find_nodes(op="placeholder")
        tensors, text, _ = folds.args
        if any(each not in inputs for each in tensors):  # type: ignore[union-attr]
            folds.args = (tensors, text, self.frozen)
            return None
        return Refresh(text, tuple(map(inputs.index, tensors)))  # type: ignore[arg-type]

    def uuid(self) -> str | None:
        """Return the identity of the pass for PyTorch's keys, None if its graphs are not kept."""
        key = self._key()
        return None if key is None else key + self._salt

    def _key(self) -> str | None:
        """Return the identity of the pass, None without options or without a usable cache directory."""
        try:
            return None if self.options is None else stored.identity(self.options)
        except BuildError:
            return None

    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Plan the kernels of regions, and build them for a measurement; return why regions have no kernel."""
        measures = self.rule == "measure"
        self._kernels, without = planned(regions, every=measures, calls=self.calls)
        if measures:
            self._failures |= built(_sources_of(self._kernels.values())).failures
        for node, mine in self._kernels.items():
            failure = next((self._failures[each] for each in mine.sources if each in self._failures), None)
            if failure is not None:
                without[node] = SkipReason(node, "E1019", failure)
        return without

    def _kernels_of(self, choice: Choice) -> list[RegionKernels]:
        """Return the kernels that a choice takes."""
        nodes = (each.region.product.node for each in choice.regions)
        return [self._kernels[node] for node in nodes if node in self._kernels]

    def compile(self, graph: GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        """Compile a graph of autograd's by Inductor, as ``inner_compile``, while the graph's kernels are built.

        Wait for the kernels. If some cannot be built, compile the graph again without their regions.
        """
        while True:
            unchanged = GraphModule(graph, copy.deepcopy(graph.graph))
            unchanged.meta = dict(graph.meta)
            before = stored.counts()
            with Background() as background:
                self._background = background
                try:
                    compiled: Any = compile_fx_inner(graph, inputs, **keywords)
                finally:
                    self._background = None
                builds = background.wait()
            made, self._compiled = self._compiled, []
            if not builds.failures and self.record(before, made, builds.libraries):
                for refresh in self.refreshed:
                    compiled = refresh.before(compiled)  # a function, which autograd's cache does not keep
                return compiled
            self._failures |= builds.failures
            self.expire()
            graph = unchanged
            context = TracingContext.try_get()
            if context is not None and context.output_strides:
                context.output_strides.clear()  # each compilation reports the strides of the results

    def record(
        self,
        before: Mapping[str, int],
        made: Sequence[_CompiledGraph] = (),
        libraries: Mapping[KernelSource, Path] = MappingProxyType({}),
    ) -> bool:
        """Record the graphs that were compiled since a count, and the graphs that PyTorch has loaded instead.

        Return False if a loaded graph is not valid: it has to be compiled again.
        """
        key = self._key()
        found = {each.digest: each.finish(libraries) for each in made}
        if key is not None:
            for digest, graph in found.items():
                if not self._failures:  # a later process tries to build them again
                    stored.keep(digest, key, graph)
            for digest in sorted((stored.counts() - Counter(before)).keys() - self._seen):
                loaded = stored.find(digest, key)
                if loaded is None:
                    return False
                for each in loaded.kernels:
                    each.take()
                found[digest] = loaded
        self._seen |= found.keys()
        self.refreshed = [each.refresh for each in found.values() if each.refresh is not None]
        for graph in found.values():
            keep(Record(graph.rows, self.owner, self.options))
        return True

    def expire(self) -> None:
        """Let PyTorch compile graphs of this pass again instead of loading them."""
        self._salt = os.urandom(8).hex()


@dataclass(frozen=True)
class _CompiledGraph:
    """The results of the pass for one graph."""

    rows: tuple[ProductReport, ...]
    kernels: Sequence[RegionKernels]
    refresh: Refresh | None = None

    @cached_property
    def digest(self) -> str:
        """A digest of the rows and the kernels; equal graphs share it."""
        kernels = [(each.program, str(each.call), [source.text for source in each.sources]) for each in self.kernels]
        return hashlib.sha256(repr((self.rows, kernels, self.refresh)).encode()).hexdigest()

    def finish(self, libraries: Mapping[KernelSource, Path]) -> StoredGraph:
        """Give the kernels to the programs, and return the graph to store."""
        provided = [made for each in self.kernels for made in each.provide(libraries)]
        sources = _sources_of(self.kernels)
        paths = dict.fromkeys(libraries[each] for each in sources)
        tools = tools_digest(Cache()) if paths else ""
        return StoredGraph(self.rows, tuple(provided), tuple(paths), tools, self.refresh)


def _is_bundled() -> bool:
    """Return whether autograd's cache keeps Inductor's graphs; then :meth:`FusePass.compile` has to return them."""
    configs = ((torch._functorch.config, "bundled_autograd_cache"), (torch._dynamo.config, "caching_precompile"))
    return any(getattr(config, name, False) for config, name in configs)


def _sources_of(kernels: Iterable[RegionKernels]) -> list[KernelSource]:
    return [source for each in kernels for source in each.sources]


def backend(
    module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of Dynamo's; see :func:`read_options` for ``mode`` and ``options``."""
    read, owner = read_options(mode, options), Owner.of(module, inputs)
    if read.rule == LOSSLESS:
        return owner.follow(module, lossless(module, owner, read))
    simplify_attention(module, read.devices)
    fuse = FusePass(owner=owner, options=read)
    patches = patches_of(read, fuse)
    while True:
        before = stored.counts()
        compiled: Any = compile_fx(module, list(inputs), inner_compile=fuse.compile, config_patches=patches)
        if fuse.record(before) and not fuse.refreshed:
            return owner.follow(module, compiled)
        fuse.expire()


class RecordedDispatch(Dispatch):
    """The calls of a graph of Dynamo's, whose plans are recorded for :func:`evt.report`."""

    def __init__(self, module: GraphModule, owner: Owner, options: Options) -> None:
        super().__init__(module, ((), {}), {"numerics": "eager"}, None, True)
        self.owner, self.options = owner, options
        keep(Record((), owner, options, self.answers))

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
    given = options.patches.get(_JOINT, getattr(torch._inductor.config, _JOINT))
    patches = {**options.patches, "post_grad_custom_pre_pass": fuse, _JOINT: SaveCompared(given)}
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
