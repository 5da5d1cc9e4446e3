"""A region as a program: ``build(region, owned) -> RegionProgram``.

A kernel reads nodes outside of all regions, and results of other regions. Vectors that the kernel recomputes start from
such nodes as well: a kernel never reads an intermediate value of another region.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch.fx import Node

from evt.fx.arithmetic import Arithmetic, dtype_in
from evt.fx.aten import dtype_of, shape_of
from evt.fx.index_map import Arrangement, IndexMap, Size, same
from evt.fx.moments import ROUNDED
from evt.fx.op_semantics import Applied, Reduced, Semantics, number_of, operands_of, semantics
from evt.fx.product import Factor, Product, Term
from evt.fx.region import FusionRegion
from evt.fx.stand_in import beside
from evt.fx.stand_in import operands_of as stands_for
from evt.fx.views import is_view, keeps_order
from evt.ir import Acc, Apply, Cast, Dag, Extent, Input, Load, Operand, Output, Reduce, Scale, Store
from evt.ir.dtype import F32, F64
from evt.ir.node import ELEMENT_MODES, MODES, OFFSETS, base, is_divided
from evt.ir.origin import Foreign
from evt.program import Program, program_of
from evt.request import Request, from_dag
from evt.request.ragged import ENDS

#: The most operators on vectors that a kernel recomputes for one operand.
_MAX_VECTOR_NODES = 24


def is_eager(settings: Mapping[str, Any]) -> bool:
    """Return whether settings make regions round as eager PyTorch does."""
    return settings.get("numerics") in ("eager", "match_eager")


class UnbuiltError(Exception):
    """A region that is not a program; the message is the reason."""


@dataclass(frozen=True)
class RegionArgument:
    """An input of a region's program: its node, and the arrangement from the node's shape to the program's."""

    name: str
    node: Node
    arrangement: Arrangement


@dataclass(frozen=True)
class RegionResult:
    """An output of a region's program: its node, the stored sizes, and the arrangement to the node's shape."""

    node: Node
    stored: tuple[Size, ...]
    arrangement: Arrangement


@dataclass(frozen=True)
class RegionProgram:
    """A region's program, its arguments, and its results in the order of the program's outputs.

    ``batches`` are the batch dimensions of A and B in the call, if they differ from the product's.
    """

    region: FusionRegion
    program: Program
    arguments: tuple[RegionArgument, ...]
    results: tuple[RegionResult, ...]
    batches: tuple[Size, ...] | None = None

    def __deepcopy__(self, memo: object) -> RegionProgram:
        return self  # it refers to nodes of one graph

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the graph that the kernel computes, the product first."""
        return tuple(self.region.index_maps)


def build(region: FusionRegion, owned: Set[Node], settings: Mapping[str, Any] | None = None) -> RegionProgram:
    """Return the program of a region. Raise UnbuiltError or ProgramError if the region is not a program.

    ``owned`` are the nodes of all regions.
    """
    root, batches = _root(region)
    settings = settings or {}
    return _Building(region, root, batches, owned, is_eager(settings)).finish(settings)


def _root(region: FusionRegion) -> tuple[IndexMap, tuple[Size, ...] | None]:
    """Return the index map of whole tensors in the kernel, and the batch dimensions if they are split.

    Batches are split for a tensor that varies over some batch dimensions only: the kernel then reads it uncopied.
    """
    root = region.product.index_map
    batches = [dim for dim in root.dims if dim.mode == "l"]
    if not batches:
        return root, None
    split = batches
    for node, index_map in region.index_maps.items():
        for operand in operands_of(None if is_view(node) else semantics(node)):
            if operand not in region and not index_map.reduced and _is_partial(operand, index_map):
                split = [index_map.dims[place] for place in index_map.places("l") or ()] or split
    if len(split) == len(batches) and all(map(same, (x.size for x in split), (x.size for x in batches))):
        return root, None
    rest = list(root.dims[-2:])
    return IndexMap((*split, *rest)), tuple(dim.size for dim in split)


def _is_partial(operand: Node, index_map: IndexMap) -> bool:
    """Return whether a tensor varies over some batch dimensions, but not over all."""
    shape = (1,) * (len(index_map.dims) - len(shape_of(operand))) + shape_of(operand)
    has = {not same(size, 1) for size, dim in zip(shape, index_map.dims, strict=True) if dim.mode == "l"}
    return len(has) > 1


@lru_cache(maxsize=4096)
def _request(dag: Dag, keywords: tuple[tuple[str, Any], ...]) -> Request:
    """Return the request of a graph without origins, once for equal layers. Raise ProgramError."""
    return from_dag(dag, dict(keywords))


@dataclass
class _Building:
    region: FusionRegion
    root: IndexMap
    batches: tuple[Size, ...] | None
    owned: Set[Node]
    eager: bool = False
    values: dict[Node, int] = field(default_factory=dict)
    loads: dict[tuple[Node, str], tuple[Input, RegionArgument]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        product = self.region.product
        a, b = (
            Operand(name, dtype_in(dtype_of(node)), modes)
            for (name, modes), node in zip(ELEMENT_MODES.items(), (product.a, product.b), strict=True)
        )
        self.arithmetic = Arithmetic(product.operation, (a, b), self.eager)

    def finish(self, settings: Mapping[str, Any]) -> RegionProgram:
        product, builder = self.region.product, self.arithmetic.builder
        for node in self.in_order():
            index_map = self.region.index_maps[node]
            builder.origin = Foreign(node.name)
            if node is product.node:
                self.values[node] = self.start(product)
            elif node.target is beside:
                self.values[node] = self.beside(*stands_for(node))  # type: ignore[misc]
            elif is_view(node):
                self.values[node] = self.values[node.all_input_nodes[0]]
            else:
                found = semantics(node)
                assert found is not None
                self.values[node] = self.value(found, index_map, node)
            if node.meta.get(ROUNDED):
                self.values[node] = self.arithmetic.rounded(self.values[node], dtype_of(node))
        for factor in product.factors:
            self.scale(factor)
        outputs = self.region.outputs
        whole = [node for node in outputs if not self.region.index_maps[node].reduced]
        last = [*whole[-1:], *whole[:-1], *(node for node in outputs if node not in whole)]  # D is computed last
        declared, results = [], []
        for index, node in enumerate(last):
            builder.origin = Foreign(node.name)
            name = f"D{index}" if index else "D"
            builder.add(Store(name), self.values[node])
            output, result = self.output(name, node)
            declared.append(output)
            results.append(result)
        ragged = product.ends is not None
        inputs = [*(each for each, _ in self.loads.values()), *([ENDS] if ragged else [])]
        dag: Dag = builder.finish(product.operation, (), inputs, declared)
        request = _request(replace(dag, origins=()), (*settings.items(), *product.geometry.items()))
        assert len(request.dag) == len(dag)
        program = program_of(replace(request, dag=replace(request.dag, origins=dag.origins), ragged=ragged))
        arguments = [each for _, each in self.loads.values()]
        if product.ends is not None:
            groups = shape_of(product.ends)
            arguments.append(RegionArgument(OFFSETS, product.ends, Arrangement(groups, (0,), groups)))
        return RegionProgram(self.region, program, tuple(arguments), tuple(results), self.batches)

    def in_order(self) -> list[Node]:
        """Return the nodes in topological order, from the results.

        PyTorch may order the nodes otherwise when it traces the model for other sizes. The kernel stays the same.
        """
        order: dict[Node, None] = {}
        stack = list(reversed(self.region.outputs))
        while stack:
            node = stack[-1]
            missing = [each for each in node.all_input_nodes if each in self.region and each not in order]
            if missing:
                stack += reversed(missing)
            else:
                order[node] = None
                stack.pop()
        return list(order)

    def output(self, name: str, node: Node) -> tuple[Output, RegionResult]:
        index_map = self.region.index_maps[node]
        stored = self.root
        over = set(map(base, index_map.reduced))
        modes = [mode for mode in self.region.product.modes if mode not in over]
        if blocks := [mode for mode in index_map.reduced if is_divided(mode)]:
            kept = sorted((*modes, *blocks), key=lambda mode: MODES.index(base(mode)))
            result = RegionResult(node, *self.blocks(index_map, kept))
            return Output(name, dtype_in(dtype_of(node)), tuple(kept), batchable="l" not in kept), result
        if index_map.reduced:
            linear, rank = self.region.product.operation == "linear", len(self.root.dims)
            every = [*("m" if linear else "l" for _ in range(rank - 2)), "m", "n"]  # sizes of 1 have no mode
            stored = IndexMap(tuple(dim for dim, mode in zip(self.root.dims, every, strict=True) if mode in modes))
            if self.region.product.is_convolution:
                stored = self.root.only(modes)
            if (
                modes == ["m"]
                and self.region.product.is_convolution
                and not self.region.product.operation.endswith("wgrad")
            ):
                stored = IndexMap((self.root.dims[0], *self.root.dims[2:]))  # [N, P, Q]
        arrangement = stored.arrange(stored.sizes, index_map)
        if arrangement is None:
            raise UnbuiltError("a result's dimensions are not made of the product's")
        ragged = self.region.product.ends is not None  # values may vary over groups
        return Output(name, dtype_in(dtype_of(node)), tuple(modes), batchable=ragged), RegionResult(
            node, stored.sizes, arrangement
        )

    def blocks(self, index_map: IndexMap, kept: Sequence[str]) -> tuple[tuple[Size, ...], Arrangement]:
        """Return the sizes of a reduction within blocks, stored along some modes, and its arrangement to a shape."""
        order = [dim.mode for dim in index_map.dims if dim.mode]
        merged: list[str] = [mode for place, mode in enumerate(order) if order[place - 1 : place] != [mode]]
        stored = [mode for mode in map(base, kept) if mode in merged]
        if sorted(merged, key=stored.index) != stored:
            raise UnbuiltError("the dimensions of a reduction's result lie among one another")
        sizes = tuple(index_map.extent(mode) for mode in map(base, kept))
        places = tuple([*map(base, kept)].index(mode) for mode in merged)
        rest = tuple(place for place in range(len(kept)) if place not in places)  # of size 1
        return sizes, Arrangement(sizes, (*rest, *places), index_map.sizes)

    def start(self, product: Product) -> int:
        """Add the product with its scale and terms; wrap the product of int8 to int8.

        For ``numerics="eager"`` casts end the operators: a product, and the addition of its bias if another kernel adds
        it. ``1*acc + C`` is addmm with a matrix.
        """
        add, number, dtype = self.arithmetic.add, self.arithmetic.number, dtype_of(product.node)
        value = add(Acc())
        rounds = self.eager and dtype.is_floating_point
        if rounds and product.is_rounded_first:
            value = add(Cast(dtype_in(dtype)), value)
        if product.alpha != 1 or (rounds and self.adds_matrix(product)):
            value = add(Apply("mul"), value, number(product.alpha))
        for term in product.terms:
            operand = self.term(product, term)
            if term.by is not None:
                operand = add(Apply("mul"), operand, self.operand(term.by, product.index_map))
            if term.factor != 1:
                operand = add(Apply("mul"), operand, number(term.factor))
            value = add(Apply("mul" if term.scales else "add"), value, operand)
        return add(Cast(dtype_in(dtype)), value) if rounds else self.arithmetic.wrapped(value, dtype)

    def beside(self, first: Node, weight: Node, factor: Node | None, bias: Node | None) -> int:
        """Add the product of A and a weight, with its factor of rows or its bias."""
        add, shape, dtype = self.arithmetic.add, shape_of(weight), dtype_of(first)
        name = f"x{len(self.loads)}"
        found = Input(name, dtype_in(dtype_of(weight)), ("k", "n"))
        self.loads[weight, "beside"] = found, RegionArgument(name, weight, Arrangement(shape, (0, 1), shape))
        value = add(Acc(name))
        for function, operand in (("mul", factor), ("add", bias)):
            if operand is not None:
                value = add(Apply(function), value, self.operand(operand, self.region.product.index_map))
        return add(Cast(dtype_in(dtype)), value) if self.eager else self.arithmetic.wrapped(value, dtype)

    def scale(self, factor: Factor) -> None:
        """Add the factor of an operand."""
        shape = shape_of(factor.value)
        name, arrangement = f"x{len(self.loads)}", Arrangement(shape, tuple(range(len(shape))), shape)
        value = Input(name, dtype_in(dtype_of(factor.value)), factor.modes)
        self.loads[factor.value, factor.operand] = value, RegionArgument(name, factor.value, arrangement)
        self.arithmetic.builder.add(Scale(factor.operand), self.arithmetic.add(Load(name), dtype=value.dtype))

    def adds_matrix(self, product: Product) -> bool:
        """Return whether a product adds a tensor that varies over rows."""
        shapes = (shape_of(term.value) for term in product.terms if not term.scales)
        return any("m" in (product.index_map.varies(shape) or ()) for shape in shapes)

    def term(self, product: Product, term: Term) -> int:
        index_map = product.index_map
        if "l" in term.modes:
            return self.of_groups(term.value)
        modes = ("n",) if product.is_convolution else term.modes  # one value for each output channel
        if modes:
            index_map = index_map.only(modes)
        return self.operand(term.value, index_map)

    def of_groups(self, node: Node) -> int:
        """Load a vector of columns for each group of rows."""
        shape = shape_of(node)
        name = f"x{len(self.loads)}"
        found = Input(name, dtype_in(dtype_of(node)), ("l", "n"))
        self.loads[node, "groups"] = found, RegionArgument(name, node, Arrangement(shape, (0, 1), shape))
        return self.arithmetic.add(Load(name), dtype=found.dtype)

    def value(self, found: Semantics, index_map: IndexMap, node: Node) -> int:
        def read(operand: Node) -> int:
            return self.values[operand] if operand in self.values else self.operand(operand, index_map)

        if isinstance(found, Node):
            return read(found)
        if isinstance(found, Reduced):
            return self.reduce(found, index_map, dtype_of(node))
        return self.arithmetic.applied(found, node, read)

    def reduce(self, found: Reduced, index_map: IndexMap, dtype: torch.dtype) -> int:
        add, operand = self.arithmetic.add, self.values[found.operand]
        if dtype == torch.float64 != dtype_of(found.operand):
            operand = add(Cast(F64), operand)
        value = add(Reduce(found.kind, index_map.reduced), operand)
        if not found.correction:
            return value
        count, wide = self.arithmetic.number(1.0), F64 if dtype == torch.float64 else F32
        for mode in index_map.reduced:
            count = add(Apply("mul"), count, add(Cast(wide), add(Extent(mode))))
        rest = add(Apply("sub"), count, self.arithmetic.number(found.correction))
        return add(Apply("mul"), value, add(Apply("div"), count, rest))

    def operand(self, node: Node, index_map: IndexMap) -> int:
        """Add an operand from outside of the region; the kernel recomputes vectors of few operators."""
        modes = index_map.varies(shape_of(node))
        assert modes is not None
        count = index_map.extent(modes[0]) if modes else 1
        if modes in ((), ("m",), ("n",)) and all(map(index_map.keeps_order, modes)) and self.is_light(node, count):
            return self.vector(node, modes, count)
        number = number_of(node)
        return self.load(node, modes, index_map) if number is None else self.arithmetic.number(number)

    def vector(self, node: Node, modes: tuple[str, ...], count: Size) -> int:
        """Recompute a vector from vectors and numbers."""
        number = number_of(node)
        if number is not None:
            return self.arithmetic.number(number)
        passed, found = self.computed_of(node)
        if passed is not None:
            return self.vector(passed, modes, count)
        if found is None:
            mine = modes if same(node.meta["val"].numel(), count) else ()
            return self.load(node, mine, None)
        return self.arithmetic.applied(found, node, lambda operand: self.vector(operand, modes, count))

    def is_light(self, node: Node, count: Size) -> bool:
        """Return whether a few elementwise operators compute a vector from vectors and numbers, in floats.

        All of them have the elements in the same order. A view of one element of a vector is no such number.
        """
        left, stack = _MAX_VECTOR_NODES, [node]
        while stack:
            each = stack.pop()
            value = each.meta.get("val")
            if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
                return False
            if not (same(value.numel(), count) or same(value.numel(), 1)):
                return False
            left -= 1
            if left < 0:
                return False
            passed, found = self.computed_of(each)
            if passed is not None and not (keeps_order(each) and _keeps_elements(passed, value)):
                return False
            stack += operands_of(found) if passed is None else (passed,)
        return True

    def computed_of(self, node: Node) -> tuple[Node | None, Applied | None]:
        """Return the node that a vector is a view of, or the function that computes it, or neither for a leaf.

        Results of regions are leaves: their kernels store them.
        """
        if node in self.owned:
            return None, None
        if is_view(node):
            return node.all_input_nodes[0], None
        found = semantics(node)
        return (found, None) if isinstance(found, Node) else (None, found if isinstance(found, Applied) else None)

    def load(self, node: Node, modes: tuple[str, ...], index_map: IndexMap | None) -> int:
        """Load a tensor that varies over some modes; ``index_map`` None means a vector of any shape."""
        whole = set(modes) == {dim.mode for dim in self.root.dims} - {""}
        if whole and len(modes) > 1:
            target, modes = self.root, self.region.product.modes
        else:
            target = self.root.only(modes)
        count = target.sizes
        arrangement = Arrangement(count, tuple(range(len(count))), count)
        if index_map is not None:
            found = index_map.arrange(shape_of(node), target)
            if found is None:
                raise UnbuiltError(f"`{node.name}` varies over other batches than the product has")
            arrangement = found
        key = node, repr((modes, arrangement))  # symbols have no hash
        known = self.loads.get(key)
        if known is None:
            name = f"x{len(self.loads)}"
            known = Input(name, dtype_in(dtype_of(node)), modes), RegionArgument(name, node, arrangement)
            self.loads[key] = known
        return self.arithmetic.add(Load(known[0].name), dtype=known[0].dtype)


def _keeps_elements(node: Node, view: torch.Tensor) -> bool:
    """Return whether a view has all elements of a node, or repeats its only element."""
    value = node.meta["val"]
    return isinstance(value, torch.Tensor) and (same(value.numel(), view.numel()) or same(value.numel(), 1))


__all__ = ["RegionArgument", "RegionProgram", "RegionResult", "UnbuiltError", "build", "is_eager"]
