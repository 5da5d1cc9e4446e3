"""The regions of a graph, as programs: ``find_regions(graph) -> Fusion``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.errors import EvtError
from evt.fx.aten import dtype_of, shape_of, type_name
from evt.fx.build import RegionProgram, UnbuiltError, build
from evt.fx.fuse_producers import fuse_producers
from evt.fx.partition import partition
from evt.fx.product import find_product
from evt.fx.region import FusionRegion
from evt.fx.rematerialize import rematerialize
from evt.fx.skip_reason import SkipReason
from evt.fx.views import is_view
from evt.settings import Settings


@dataclass(frozen=True)
class Outcome:
    """What became of a product: a fused region, or the reason why there is none.

    ``behind`` are the reasons why operators that read its results are not computed with it, ``wanted`` the nodes that
    were given to it. ``possible`` is the region that was found where it is not taken, as on a device without kernels.
    """

    product: Node
    fused: RegionProgram | None
    reason: SkipReason | None = None
    behind: tuple[SkipReason, ...] = ()
    wanted: tuple[Node, ...] = ()
    possible: RegionProgram | None = None


def left_out(outcomes: Iterable[Outcome]) -> dict[Node, tuple[SkipReason, ...]]:
    """Return for each product why operators behind it are not fused, without those that another region computes."""
    known = list(outcomes)
    computed = {node for each in known if each.fused is not None for node in each.fused.nodes}
    return {each.product: tuple(m for m in each.behind if m.node not in computed) for each in known}


@dataclass(frozen=True)
class Fusion:
    """What became of a graph's products, in its order; prints as text."""

    outcomes: tuple[Outcome, ...]

    def __deepcopy__(self, memo: object) -> Fusion:
        return self  # it describes the graph that it was found in

    @property
    def regions(self) -> tuple[RegionProgram, ...]:
        return tuple(each.fused for each in self.outcomes if each.fused is not None)

    @property
    def reasons(self) -> tuple[SkipReason, ...]:
        """All reasons, of products and of the operators behind them."""
        found = [reason for each in self.outcomes for reason in (each.reason, *each.behind) if reason is not None]
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        lines, behind = [f"{len(self.regions)} of {len(self.outcomes)} products fused"], left_out(self.outcomes)
        for each in self.outcomes:
            lines.append(f"{each.product.name}: {each.reason or ''}".rstrip(": ") if each.fused is None else "")
            if each.fused is not None:
                lines[-1] = f"{', '.join(node.name for node in each.fused.nodes)}:"
                lines += [f"    {line}" for line in str(each.fused.program).splitlines()]
            lines += [f"    not fused: {reason}" for reason in behind[each.product]]
        return "\n".join(lines)


def find_regions(
    graph: Graph,
    devices: Sequence[str] = ("cpu", "cuda"),
    settings: Mapping[str, Any] | None = None,
    inlined: bool = False,
    left: Mapping[Node, SkipReason] | None = None,
) -> Fusion:
    """Return the regions of a graph on one of the devices, as programs.

    ``inlined``: what stays in the graph is compiled, so that elementwise operators are computed where they are read.
    Products that are ``left`` have no regions, for these reasons.
    """
    Settings.of(**(settings or {}))
    graph.eliminate_dead_code()  # a product that nothing reads is no kernel
    found = partition(graph, left=left)
    outcomes = {node: Outcome(node, None, reason) for node, reason in found.skipped.items() if _is_product(reason)}
    owner = {node: region for region in found.regions for node in region.index_maps}
    behind = {region.product.node: _behind(region, owner, found.skipped) for region in found.regions}
    wanted = {region.product.node: tuple(region.index_maps) for region in found.regions}
    fuse_producers(graph, found.regions)
    if inlined:
        rematerialize(graph, found.regions)
    else:
        _leave_views(graph, found.regions)
    owned = {node for region in found.regions for node in region.index_maps}
    for region in found.regions:
        node = region.product.node
        made = _outcome(region, owned, devices, settings or {}, behind[node])
        outcomes[node] = replace(made, wanted=wanted[node])
    return Fusion(tuple(outcomes[node] for node in graph.nodes if node in outcomes))


def _leave_views(graph: Graph, regions: Sequence[FusionRegion]) -> None:
    """Show what is outside of a region copies of its views, so that they share the memory of the result they view."""
    for region in regions:
        for node in reversed(region.nodes):
            outside = {user for user in node.users if user not in region}
            if is_view(node) and outside:
                with graph.inserting_after(node):
                    made = graph.node_copy(node)
                node.replace_all_uses_with(made, delete_user_cb=outside.__contains__)


def _is_product(reason: SkipReason) -> bool:
    return find_product(reason.node) is not None


def _outcome(
    region: FusionRegion,
    owned: Set[Node],
    devices: Sequence[str],
    settings: Mapping[str, Any],
    behind: tuple[SkipReason, ...],
) -> Outcome:
    node = region.product.node
    kind = node.meta["val"].device.type
    if kind not in devices:
        reason = SkipReason(node, "E1016", f"it is on the {kind.upper()}, and kernels run on CUDA devices")
        made = _build(region, owned, settings) if _computes(region) else None
        return Outcome(node, None, reason, behind, possible=made if isinstance(made, RegionProgram) else None)
    if not _computes(region):
        return Outcome(node, None, SkipReason(node, "E1014", "nothing behind it can be computed with it"), behind)
    whole = _build(region, owned, settings)
    if isinstance(whole, RegionProgram):
        return Outcome(node, whole, None, behind)
    smaller = region.without_reductions()
    if len(smaller.index_maps) in (1, len(region.index_maps)):
        return Outcome(node, None, whole, behind)
    made = _build(smaller, owned, settings)
    if isinstance(made, RegionProgram):
        return Outcome(node, made, None, (*behind, whole))
    return Outcome(node, None, made, behind)


def _computes(region: FusionRegion) -> bool:
    """Return whether a region computes anything beside its product."""
    return len(region.index_maps) > 1 or bool(region.product.terms) or region.product.alpha != 1


def _build(region: FusionRegion, owned: Set[Node], settings: Mapping[str, Any]) -> RegionProgram | SkipReason:
    """Return the program of a region, or why there is none that a kernel of the region's device computes."""
    node = region.product.node
    try:
        made = build(region, owned, settings)
        _check_kernel(made)
        return made
    except UnbuiltError as error:
        return SkipReason(node, "E1015", str(error))
    except EvtError as error:
        first = error.diagnostics[0]
        return SkipReason(node, "E1015", f"{first.code}: {first.message}")


def _check_kernel(fused: RegionProgram) -> None:
    """Raise TargetError if a region is on a GPU for which evt has no kernel of its program."""
    operands = (fused.region.product.a, fused.region.product.b)
    device = fused.region.product.node.meta["val"].device
    if device.type == "cuda" and torch.cuda.is_available():
        target = "sm{}{}".format(*torch.cuda.get_device_capability(device))
        shapes = [shape_of(each) for each in operands]
        known = all(isinstance(size, int) for shape in shapes for size in shape) and fused.batches is None
        a, b = (type_name(dtype_of(each)) for each in operands)
        fused.program.plan(target, a, b, shapes=(shapes[0], shapes[1]) if known else None)


def _behind(
    region: FusionRegion, owner: Mapping[Node, FusionRegion], skipped: Mapping[Node, SkipReason]
) -> tuple[SkipReason, ...]:
    """Return why the operators that read these are not fused with them."""
    readers = dict.fromkeys(user for node in region.index_maps for user in _readers(node, region))
    found = []
    for user in readers:
        if user in skipped and not _is_product(skipped[user]):
            found.append(skipped[user])
        elif user in owner and user is not owner[user].product.node:
            found.append(SkipReason(user, "E1013", f"it is computed with `{owner[user].product.node.name}`"))
    return tuple(found)


def _readers(node: Node, region: FusionRegion) -> Iterator[Node]:
    """Yield the readers of a node outside of its region, and the readers of a view of it there."""
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in region:
                yield user
                stack += (user,) if is_view(user) else ()
