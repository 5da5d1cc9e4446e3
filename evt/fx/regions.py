"""Find the regions of a graph, as programs: ``find_regions(graph) -> Fusion``.

    partition         gives each operator to a product, or to none, so that the fewest bytes move
    fuse_producers    moves elementwise operands into the region that reads them
    rematerialize     lets Inductor's kernels recompute results where a region then stores fewer bytes
    build             makes the program of each region; a region that is not a program is tried without reductions

Partition decides on the original graph. The two later steps copy operators, and only ever remove bytes. They copy no
tensor that is compared with its own elements (:mod:`evt.fx.compared`). Without Inductor, which computes elementwise
operators where they are read, the last step copies views only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from evt.errors import EvtError
from evt.fx.build import RegionProgram, UnbuiltError, build
from evt.fx.compared import self_compared
from evt.fx.fuse_producers import fuse_producers
from evt.fx.kernels import check_kernel
from evt.fx.partition import partition
from evt.fx.product import Product, find_product
from evt.fx.region import FusionRegion
from evt.fx.rematerialize import rematerialize
from evt.fx.sizes import read_sizes_of_inputs
from evt.fx.skip_reason import SkipReason
from evt.fx.views import is_view
from evt.html import Html, code, page, table
from evt.plan import find_target
from evt.settings import Settings


@dataclass(frozen=True)
class Outcome:
    """The outcome of a product: its fused region, or the reason why it is not fused.

    ``behind`` are the reasons why readers of its results are not fused with it, ``wanted`` the nodes of its region.
    ``possible`` is a region that was found but not used, for example on a device without kernels. ``proof`` tells how
    the region compared with eager PyTorch.
    """

    product: Node
    fused: RegionProgram | None
    reason: SkipReason | None = None
    behind: tuple[SkipReason, ...] = ()
    wanted: tuple[Node, ...] = ()
    possible: RegionProgram | None = None
    proof: str = ""


def left_out(outcomes: Iterable[Outcome]) -> dict[Node, tuple[SkipReason, ...]]:
    """Return by product why readers are not fused with it; leave out readers that another region computes."""
    known = list(outcomes)
    computed = {node for each in known if each.fused is not None for node in each.fused.nodes}
    return {each.product: tuple(m for m in each.behind if m.node not in computed) for each in known}


@dataclass(frozen=True, repr=False)
class Fusion:
    """The outcomes of a graph's products, in the graph's order; prints as text."""

    outcomes: tuple[Outcome, ...]

    def __deepcopy__(self, memo: object) -> Fusion:
        return self  # it refers to nodes of one graph

    @property
    def regions(self) -> tuple[RegionProgram, ...]:
        return tuple(each.fused for each in self.outcomes if each.fused is not None)

    @property
    def reasons(self) -> tuple[SkipReason, ...]:
        """All reasons, of products and of their readers."""
        found = [reason for each in self.outcomes for reason in (each.reason, *each.behind) if reason is not None]
        return tuple(dict.fromkeys(found))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        behind, rows, marks = left_out(self.outcomes), [], []
        for each in self.outcomes:
            why = [str(reason) for reason in (each.reason, *behind[each.product]) if reason is not None]
            fused, formula = "", Html("")
            if each.fused is not None:
                fused, formula = ", ".join(node.name for node in each.fused.nodes[1:]), code(str(each.fused.program))
            rows.append((each.product.name, formula, fused, "\n".join(why)))
            marks.append("" if each.fused is not None else "failed")
        title = f"{len(self.regions)} of {len(self.outcomes)} products fused"
        return page(table(("product", "formula", "with", "not fused"), rows, title, marks=marks))

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
    """Return the regions of a graph on devices of some kinds, as programs; change the graph in place.

    ``inlined``: Inductor compiles the other operators, so it computes elementwise operators where they are read.
    Products in ``left`` are skipped, for these reasons.
    """
    Settings.of(**(settings or {}))
    read_sizes_of_inputs(graph)
    graph.eliminate_dead_code()  # a product without readers gets no kernel
    found = partition(graph, left=left)
    outcomes = {node: Outcome(node, None, reason) for node, reason in found.skipped.items() if _is_product(reason)}
    owner = {node: region for region in found.regions for node in region.index_maps}
    behind = {region.product.node: _behind(region, owner, found.skipped) for region in found.regions}
    wanted = {region.product.node: tuple(region.index_maps) for region in found.regions}
    once = self_compared(graph)
    fuse_producers(graph, found.regions, once)
    if inlined:
        rematerialize(graph, found.regions, once)
    else:
        _leave_views(graph, found.regions)
    owned = {node for region in found.regions for node in region.index_maps}
    for region in found.regions:
        node = region.product.node
        made = _outcome(region, owned, devices, settings or {}, behind[node])
        outcomes[node] = replace(made, wanted=wanted[node])
    return Fusion(tuple(outcomes[node] for node in graph.nodes if node in outcomes))


def _leave_views(graph: Graph, regions: Sequence[FusionRegion]) -> None:
    """Copy views for readers outside of their region: the copy shares the memory of the stored result.

    Products are found again, because they may read copies now.
    """
    for region in regions:
        for node in reversed(region.nodes):
            outside = {user for user in node.users if user not in region}
            if is_view(node) and outside:
                with graph.inserting_after(node):
                    made = graph.node_copy(node)
                node.replace_all_uses_with(made, delete_user_cb=outside.__contains__)
    for region in regions:
        found = find_product(region.product.node)
        assert isinstance(found, Product)
        region.product = found


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
        return Outcome(
            node, None, SkipReason(node, "E1014", "no operator after it can be computed in its kernel"), behind
        )
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
    """Return whether a region computes more than its product, or the gradient of filters, which may win on its own."""
    product = region.product
    more = len(region.index_maps) > 1 or bool(product.terms) or product.alpha != 1
    return more or product.operation.endswith("wgrad")


def _build(region: FusionRegion, owned: Set[Node], settings: Mapping[str, Any]) -> RegionProgram | SkipReason:
    """Return the program of a region, or why it has none that a kernel on the region's device computes."""
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
    """Raise TargetError if a region is on a GPU for which evt has no kernel."""
    device = fused.region.product.node.meta["val"].device
    if device.type == "cuda" and torch.cuda.is_available():
        check_kernel(fused, find_target("sm{}{}".format(*torch.cuda.get_device_capability(device))))


def _behind(
    region: FusionRegion, owner: Mapping[Node, FusionRegion], skipped: Mapping[Node, SkipReason]
) -> tuple[SkipReason, ...]:
    """Return why the readers of a region are not fused with it."""
    readers = dict.fromkeys(user for node in region.index_maps for user in _readers(node, region))
    found = []
    for user in readers:
        if user in skipped and not _is_product(skipped[user]):
            found.append(skipped[user])
        elif user in owner and user is not owner[user].product.node:
            found.append(SkipReason(user, "E1013", f"it is computed with `{owner[user].product.node.name}`"))
    return tuple(found)


def _readers(node: Node, region: FusionRegion) -> Iterator[Node]:
    """Yield the readers of a node outside of its region, and the readers of its views."""
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user not in region:
                yield user
                stack += (user,) if is_view(user) else ()
