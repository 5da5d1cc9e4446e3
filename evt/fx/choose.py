"""The choice of the regions that get kernels: ``RegionPass.choose(graph) -> Choice``.

    find        the regions of the graph: products, and the operators that can be computed with them
    estimate    under the rule "estimate" the cost model skips regions that lose
    prepare     the kernels of the other regions; a region without a kernel is skipped
    measure     under the rule "measure" regions that are slower than Inductor's code are skipped
    repeat      a skipped region frees its operators, and another product may be able to take them
    reductions  a region keeps its reductions only if the estimate says that it gains by them

The estimate comes before the kernels, since a build takes seconds. A measurement needs the kernels.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

from evt.fx import covered
from evt.fx.aten import shape_of
from evt.fx.build import RegionProgram
from evt.fx.cost_model import LEAST_GAIN, NORM_GAIN, Benefit, estimate, norm_gain
from evt.fx.dual import pair_products, part
from evt.fx.equal import merge_equal
from evt.fx.example import bytes_of, hint
from evt.fx.expand import fill_zeros
from evt.fx.fused_group_norms import fuse_group_norms
from evt.fx.gradient import graph_name
from evt.fx.kernels import Calls
from evt.fx.measure import measured
from evt.fx.moments import is_applied, is_of_channels, is_of_groups, moments_of, split_moments
from evt.fx.norms import STAYS, Applied, Candidate, apply_norms
from evt.fx.op_semantics import UNMEASURED
from evt.fx.options import Options
from evt.fx.region import LEFT
from evt.fx.regions import Fusion, Outcome, find_regions
from evt.fx.skip_reason import SkipReason
from evt.fx.stand_in import beside, undo
from evt.fx.traffic import Followers
from evt.fx.upsampling import fold_upsampling, unfold
from evt.runtime.kernels import device_target

#: The codes of regions that are found and then skipped, so that their operators are free again.
_FREEING = ("E1015", "E1017", "E1018", "E1019", "E1022")
#: The codes of regions that may have a kernel without their reductions.
_REDUCED = ("E1017", "E1022")
#: The part of a GPU's memory that the default rule gives to weights with norms folded in.
_MOST_FOLDED = 0.1
_PARTLY = "the norm is a kernel of Inductor's: no region computes one of its readers"
_WITHOUT = "the norm is a kernel of Inductor's: no region computes its statistics"


@dataclass(frozen=True)
class Choice:
    """The outcome of every product of a graph, and the costs and gains of the regions that were compared."""

    outcomes: tuple[Outcome, ...]
    benefits: Mapping[Node, Benefit]

    @property
    def regions(self) -> list[RegionProgram]:
        """The regions that get kernels."""
        return [each.fused for each in self.outcomes if each.fused is not None]


class RegionPass(CustomGraphPass):  # type: ignore[misc, unused-ignore]
    """A pass over a graph that Inductor is about to lower. It chooses regions; subclasses prepare and use kernels."""

    #: The target whose cost model decides, "" for the target of the device.
    target = ""
    #: Whether the rule "measure" times regions; without times every region with a kernel is chosen.
    measures = True

    def __init__(self, options: Options) -> None:
        self.rule, self.devices, self.frozen = options.rule, options.devices, options.frozen
        #: The bytes of weights with norms folded in, of all graphs of the model.
        self._weight_bytes = 0
        #: The norms of a graph that gain only if a region computes their statistics.
        self._with_moments: set[Node] = set()
        #: The kernels of the graph's regions.
        self.calls = Calls()

    @abstractmethod
    def prepare(self, regions: Mapping[Node, RegionProgram]) -> dict[Node, SkipReason]:
        """Prepare the kernels of regions; return by product why a region has no kernel."""

    def choose(self, graph: Graph) -> Choice:
        """Return the regions that get kernels; products take the operators that a skipped region frees.

        A norm is part of all products that read it, or of none. :func:`evt.fx.norms.restore` puts back the operators
        that no region takes.
        """
        skipped: dict[Node, Outcome] = {}
        benefits: dict[Node, Benefit] = {}
        trials: dict[Node, _Trial] = {}
        self.calls = Calls()
        fill_zeros(graph)
        merge_equal(graph)
        norms, stay = self._norms(graph)
        estimated = self.rule in ("always", "estimate")
        paired = pair_products(graph, self.devices) if estimated and not graph_name() else []
        upsampled = fold_upsampling(graph, self.devices) if estimated else []
        while True:
            reasons = {node: each.reason for node, each in skipped.items() if each.reason is not None}
            found = self._judge(find_regions(graph, self.devices, inlined=True, left=reasons), Followers(graph))
            outcomes = tuple(skipped.get(each.product, each) for each in found.outcomes)
            benefits = {**found.benefits, **{node: benefits[node] for node in skipped if node in benefits}}
            products = {each.product for each in outcomes if each.fused is not None}
            computed = {node for each in outcomes if each.fused is not None for node in each.fused.nodes}
            if apart := [each for each in paired if each.target is beside and each not in computed]:
                left = {each.product: each.reason for each in outcomes}
                for each in apart:
                    first = each.all_input_nodes[0]
                    reason = left.get(first)
                    skipped.pop(first, None)
                    product = part(each)
                    if reason is not None:
                        stay.setdefault(product, SkipReason(each, reason.code, f"beside it, {reason.reason}"))
                continue
            products |= {each for each in paired if each in computed}
            if partly := [each for each in norms if not each.holds(products, computed)]:
                norms = [each for each in norms if each not in partly]
                self._leave(partly, _PARTLY, skipped, stay)
                continue
            if large := [each for each in upsampled if each not in products]:
                for product in large:
                    unfold(product)
                    skipped.pop(product, None)
                upsampled = [each for each in upsampled if each not in large]
                continue
            if _leave_reductions(outcomes, skipped):
                continue
            new = {each.product: each for each in outcomes if each.reason is not None and each.reason.code in _FREEING}
            if new.keys() <= skipped.keys() or not _may_grow(outcomes, skipped | new):
                free = [each for each in outcomes if not any(each.product in norm.products for norm in norms)]
                if _keep_reductions(outcomes, benefits, skipped, trials) or _try_without(free, benefits, trials):
                    continue
                if late := [each for each in norms if not each.is_made(computed) and each.norm in self._with_moments]:
                    norms = [each for each in norms if each not in late]
                    self._leave(late, _WITHOUT, skipped, stay)
                    continue
                return Choice(tuple(_with(each, stay.get(each.product)) for each in outcomes), benefits)
            skipped |= new

    def _leave(
        self, norms: Sequence[Applied], reason: str, skipped: dict[Node, Outcome], stay: dict[Node, SkipReason]
    ) -> None:
        """Leave norms to Inductor."""
        for product, norm in ((product, each.norm) for each in norms for product in each.products):
            if product.target is beside:
                undo(product)
            undo(product)
            product.meta.pop(NORM_GAIN, None)
            skipped.pop(product, None)
            stay[product] = SkipReason(norm, STAYS, reason)

    def _norms(self, graph: Graph) -> tuple[list[Applied], dict[Node, SkipReason]]:
        """Let products read the operands of norms; return the norms, and by product why its norm stays."""
        norms, stay = list[Applied](), dict[Node, SkipReason]()
        self._with_moments = set()
        if self.rule in ("always", "estimate"):
            if not (graph_name() or torch._inductor.config.cpp_wrapper):
                fuse_group_norms(graph, self.devices)
            split_moments(graph)
            norms, stay = apply_norms(graph, self._judge_norm)
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.var.correction):
            if self.rule != "always" and not (is_applied(node) or _is_measured(node)):
                for each in moments_of(node):
                    each.meta[UNMEASURED] = True
        return norms, stay

    def _judge_norm(self, norm: Candidate) -> str:
        """Return a reason against a norm, or "" and note the gain for the estimates of its products."""
        device = norm.x.meta["val"].device
        if device.type not in self.devices:
            return f"its products are on {device.type}"
        if graph_name():
            return "gradients are recorded, and the gradient of a weight reads the norm"
        if torch._inductor.config.cpp_wrapper:
            return "a graph in C++ does not fold weights"
        if self.rule == "always":
            return ""
        rows = math.prod(map(hint, shape_of(norm.x)[:-1]))
        if rows > covered.NORM_ROWS:
            return f"no measurement says that it wins in the products that read it, for {rows} rows"
        kept = sum(map(bytes_of, norm.weights))
        if device.type == "cuda":
            known = torch.cuda.get_device_properties(device)
            if self._weight_bytes + kept > _MOST_FOLDED * known.total_memory:
                return f"folded weights would take more than {_MOST_FOLDED:.0%} of the GPU's memory"
        gain, folding = norm_gain(norm, self.frozen)
        if gain - folding < LEAST_GAIN:
            return f"it saves about {gain:.1f} us, and folds of a captured graph take about {folding:.1f} us"
        without, _ = norm_gain(replace(norm, is_made=False), True)
        if without - folding < LEAST_GAIN:
            self._with_moments.add(norm.norm)
        self._weight_bytes += kept
        for product in norm.products:
            product.meta[NORM_GAIN] = (gain - folding) / len(norm.products)
        return ""

    def _judge(self, found: Fusion, followers: Followers) -> Choice:
        """Return which regions get kernels: the rule skips regions that lose, ``prepare`` those without a kernel."""
        regions = {each.product: each.fused for each in found.outcomes if each.fused is not None}
        computed = {node for fused in regions.values() for node in fused.nodes}
        benefits: dict[Node, Benefit] = {}
        skipped: dict[Node, SkipReason] = {}
        if self.rule == "estimate":
            benefits = {node: self._estimate(fused, computed, followers) for node, fused in regions.items()}
            skipped = _losers(benefits)
        skipped |= self.prepare({node: fused for node, fused in regions.items() if node not in skipped})
        if self.rule == "measure" and self.measures:
            kept = {node: fused for node, fused in regions.items() if node not in skipped}
            benefits = {
                node: measured(fused) or self._estimate(fused, computed, followers) for node, fused in kept.items()
            }
            skipped |= _losers(benefits)
        outcomes = (
            replace(each, fused=None, reason=skipped[each.product], possible=each.fused)
            if each.product in skipped
            else each
            for each in found.outcomes
        )
        return Choice(tuple(outcomes), benefits)

    def _estimate(self, fused: RegionProgram, computed: Set[Node], followers: Followers) -> Benefit:
        target, replayed = self.target or _target(fused), bool(torch._inductor.config.triton.cudagraphs)
        here = not self.target
        return estimate(fused, target, replayed, here=here, computed=computed, followers=followers, calls=self.calls)

    def uuid(self) -> str | None:
        """Return None, which keeps the graph out of PyTorch's caches."""
        return None


def _is_measured(variance: Node) -> bool:
    """Return whether measurements cover a convolution that gives the moments of a group norm or a batch norm."""
    elements = math.prod(map(hint, shape_of(variance.all_input_nodes[0])))
    if is_of_groups(variance):
        return elements >= covered.GROUP_NORM_ELEMENTS and not graph_name()
    return is_of_channels(variance) and elements >= covered.BATCH_NORM_ELEMENTS and graph_name() == "forward"


def _with(outcome: Outcome, reason: SkipReason | None) -> Outcome:
    """Return an outcome with a further reason behind it."""
    return outcome if reason is None else replace(outcome, behind=(*outcome.behind, reason))


def _may_grow(outcomes: Sequence[Outcome], skipped: Mapping[Node, Outcome]) -> bool:
    """Return whether another product could take an operator of a skipped region."""
    free = {node for each in skipped.values() for node in each.wanted}
    kept = (each for each in outcomes if each.product not in skipped)
    return any(reason.code == "E1013" and reason.node in free for each in kept for reason in each.behind)


def _leave_reductions(outcomes: Sequence[Outcome], skipped: Mapping[Node, Outcome]) -> bool:
    """Leave the reductions of regions that lose, or whose kernels no measurement covers; return if there are any."""
    found = False
    for each in outcomes:
        if each.product in skipped or each.possible is None or each.reason is None or each.reason.code not in _REDUCED:
            continue
        loses = f"`{each.product.name}` " if each.reason.code == "E1017" else ""
        for node, index_map in each.possible.region.index_maps.items():
            if index_map.reduced:
                node.meta[LEFT], found = (each.reason.code, f"with it, {loses}{each.reason.reason}"), True
    return found


@dataclass
class _Trial:
    """A region that is estimated without its ``reductions``, and its ``gain`` with them."""

    reductions: tuple[Node, ...]
    gain: float
    is_over: bool = False


def _try_without(outcomes: Sequence[Outcome], benefits: Mapping[Node, Benefit], trials: dict[Node, _Trial]) -> bool:
    """Leave the reductions of regions that win to Inductor, once for each region; return whether there are any."""
    found = False
    for each in outcomes:
        benefit = benefits.get(each.product)
        if each.fused is None or benefit is None or benefit.measured or each.product in trials:
            continue
        reductions = tuple(node for node, index_map in each.fused.region.index_maps.items() if index_map.reduced)
        trials[each.product] = _Trial(reductions, benefit.gain, is_over=not reductions)
        for node in reductions:
            node.meta[LEFT], found = ("E1017", f"with it, `{each.product.name}` {benefit}"), True
    return found


def _keep_reductions(
    outcomes: Sequence[Outcome],
    benefits: Mapping[Node, Benefit],
    skipped: dict[Node, Outcome],
    trials: Mapping[Node, _Trial],
) -> bool:
    """Give the reductions back to regions that gain by them; return whether there are any.

    Reductions need slower kernels, whose build takes longer, so the gain must exceed the error of the estimate.
    """
    fused = {each.product for each in outcomes if each.fused is not None}
    found = False
    for product, trial in trials.items():
        gains_without = product in fused and trial.gain - benefits[product].gain < LEAST_GAIN
        if not trial.is_over and not gains_without:
            skipped.pop(product, None)
            for node in trial.reductions:
                del node.meta[LEFT]
            found = True
        trial.is_over = True
    return found


def _losers(benefits: Mapping[Node, Benefit]) -> dict[Node, SkipReason]:
    """Return why regions that lose are skipped, and regions whose kernels no measurement covers."""
    return {node: SkipReason(node, each.code, str(each)) for node, each in benefits.items() if not each.wins}


def _target(fused: RegionProgram) -> str:
    """Return the target of a region's device; sm90 for a CPU."""
    device = fused.region.product.node.meta["val"].device
    if device.type != "cuda":
        return "sm90"
    return device_target(device.index if device.index is not None else torch.cuda.current_device()).name


__all__ = ["Choice", "RegionPass"]
