"""The choice of the regions that get kernels: ``RegionPass.choose(graph) -> Choice``.

    find        the regions of the graph: products, and the operators that can be computed with them
    estimate    under the rule "estimate" the cost model skips regions that lose
    prepare     the kernels of the other regions; a region without a kernel is skipped
    measure     under the rule "measure" regions that are slower than Inductor's code are skipped
    repeat      a skipped region frees its operators, and another product may be able to take them

The estimate comes before the kernels, since a build takes seconds. A measurement needs the kernels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch._functorch._aot_autograd.logging_utils import get_aot_compilation_context
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from evt.fx.build import RegionProgram
from evt.fx.cost_model import Benefit, estimate
from evt.fx.measure import measured
from evt.fx.norms import apply_norms, split_moments
from evt.fx.op_semantics import UNMEASURED
from evt.fx.options import Options
from evt.fx.regions import Fusion, Outcome, find_regions
from evt.fx.skip_reason import SkipReason
from evt.runtime.kernels import device_target

#: The codes of regions that are found and then skipped, so that their operators are free again.
_FREEING = ("E1015", "E1017", "E1018", "E1019", "E1022")


@dataclass(frozen=True)
class Choice:
    """The outcome of every product of a graph, and the costs and gains of the regions that were compared."""

    outcomes: tuple[Outcome, ...]
    benefits: Mapping[Node, Benefit]

    @property
    def regions(self) -> list[RegionProgram]:
        """The regions that get kernels."""
        return [each.fused for each in self.outcomes if each.fused is not None]


def graph_name() -> str:
    """Return "forward" or "backward" for a graph of autograd's that is being compiled, else ""."""
    names, *_ = get_aot_compilation_context()
    name = names[-1].rpartition("_")[2] if names else ""
    return name if name in ("forward", "backward") else ""


class RegionPass(CustomGraphPass):  # type: ignore[misc, unused-ignore]
    """A pass over a graph that Inductor is about to lower. It chooses regions; subclasses prepare and use kernels."""

    #: The target whose cost model decides, "" for the target of the device.
    target = ""
    #: Whether the rule "measure" times regions; without times every region with a kernel is chosen.
    measures = True

    def __init__(self, options: Options) -> None:
        self.rule, self.devices = options.rule, options.devices

    @abstractmethod
    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Prepare the kernels of regions; return by product why a region has no kernel."""

    def choose(self, graph: Graph) -> Choice:
        """Return the regions that get kernels; products take the operators that a skipped region frees.

        :func:`evt.fx.norms.restore` puts back the operators that no region takes.
        """
        skipped: dict[Node, Outcome] = {}
        benefits: dict[Node, Benefit] = {}
        if self.rule == "always":
            split_moments(graph)
            if _may_keep_weights():
                apply_norms(graph)
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.var.correction):
            if self.rule != "always":
                node.meta[UNMEASURED] = True
        while True:
            reasons = {node: each.reason for node, each in skipped.items() if each.reason is not None}
            found = self._judge(find_regions(graph, self.devices, inlined=True, left=reasons))
            outcomes = tuple(skipped.get(each.product, each) for each in found.outcomes)
            benefits = {**found.benefits, **benefits}
            new = {each.product: each for each in outcomes if each.reason is not None and each.reason.code in _FREEING}
            if new.keys() <= skipped.keys() or not _may_grow(outcomes, skipped | new):
                return Choice(outcomes, benefits)
            skipped |= new

    def _judge(self, found: Fusion) -> Choice:
        """Return which regions get kernels: the rule skips regions that lose, ``prepare`` those without a kernel."""
        regions = {each.product: each.fused for each in found.outcomes if each.fused is not None}
        benefits: dict[Node, Benefit] = {}
        skipped: dict[Node, SkipReason] = {}
        if self.rule == "estimate":
            benefits = {node: self._estimate(fused) for node, fused in regions.items()}
            skipped = _losers(benefits)
        skipped |= self.prepare({node: fused for node, fused in regions.items() if node not in skipped})
        if self.rule == "measure" and self.measures:
            kept = {node: fused for node, fused in regions.items() if node not in skipped}
            benefits = {node: measured(fused) or self._estimate(fused) for node, fused in kept.items()}
            skipped |= _losers(benefits)
        outcomes = (
            replace(each, fused=None, reason=skipped[each.product], possible=each.fused)
            if each.product in skipped
            else each
            for each in found.outcomes
        )
        return Choice(tuple(outcomes), benefits)

    def _estimate(self, fused: RegionProgram) -> Benefit:
        target, replayed = self.target or _target(fused), bool(torch._inductor.config.triton.cudagraphs)
        return estimate(fused, target, replayed, here=not self.target)

    def uuid(self) -> str | None:
        """Return None, which keeps the graph out of PyTorch's caches."""
        return None


def _may_keep_weights() -> bool:
    """Return whether calls of a graph may keep folded weights: for inference, from Python, outside of CUDA graphs."""
    config = torch._inductor.config
    return not (graph_name() or config.cpp_wrapper or config.triton.cudagraphs)


def _may_grow(outcomes: Sequence[Outcome], skipped: Mapping[Node, Outcome]) -> bool:
    """Return whether another product could take an operator of a skipped region."""
    free = {node for each in skipped.values() for node in each.wanted}
    kept = (each for each in outcomes if each.product not in skipped)
    return any(reason.code == "E1013" and reason.node in free for each in kept for reason in each.behind)


def _losers(benefits: Mapping[Node, Benefit]) -> dict[Node, SkipReason]:
    """Return why regions that lose are skipped, and regions whose kernels no measurement covers."""
    return {node: SkipReason(node, each.code, str(each)) for node, each in benefits.items() if not each.wins}


def _target(fused: RegionProgram) -> str:
    """Return the target of a region's device; sm90 for a CPU."""
    device = fused.region.product.node.meta["val"].device
    if device.type != "cuda":
        return "sm90"
    return device_target(device.index if device.index is not None else torch.cuda.current_device()).name


__all__ = ["Choice", "RegionPass", "graph_name"]
