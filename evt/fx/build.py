"""A region as a program: ``build(region) -> Fused``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from evt.fx.frame import Frame
from evt.fx.meaning import Applied, meaning
from evt.fx.product import shape_of
from evt.fx.region import Region, is_view, is_whole
from evt.ir import Acc, Apply, Builder, Cast, Const, Dag, Input, Load, Output, Store
from evt.ir.dtype import DType, from_torch_name
from evt.ir.origin import Foreign
from evt.program import Program

#: Nodes of vectors that are computed again in the kernel instead of before it, at most so many an operand.
_MAX_VECTOR_NODES = 24


@dataclass(frozen=True)
class Argument:
    """An input of a fused program: a tensor of the graph, and the shape in which the program takes it."""

    name: str
    node: Node
    shape: tuple[Any, ...]


@dataclass(frozen=True)
class Fused:
    """A region's program, the tensors that it is called with, and the nodes that its outputs are, in order."""

    region: Region
    program: Program
    arguments: tuple[Argument, ...]
    outputs: tuple[Node, ...]


def build(region: Region, **settings: Any) -> Fused:
    """Return the program of a region. Raises ProgramError where there is none."""
    return _Building(region).finish(settings)


@dataclass
class _Building:
    region: Region
    builder: Builder = field(default_factory=Builder)
    values: dict[Node, int] = field(default_factory=dict)
    loads: dict[tuple[Node, tuple[str, ...]], tuple[Input, Argument]] = field(default_factory=dict)

    def finish(self, settings: dict[str, Any]) -> Fused:
        product, builder = self.region.product, self.builder
        for node, frame in self.region.frames.items():
            builder.origin = Foreign(node.name)
            if node is product.node:
                self.values[node] = self.start()
            elif is_view(node):
                self.values[node] = self.values[node.all_input_nodes[0]]
            else:
                self.values[node] = self.value(meaning(node), frame)
        outputs = [node for node in self.region.outputs if not self._is_renamed(node)]
        names = ["D", *(f"D{index}" for index in range(1, len(outputs)))]
        last = outputs[-1:] + outputs[:-1]  # what is computed last is D
        declared = []
        for name, node in zip(names, last, strict=True):
            builder.origin = Foreign(node.name)
            builder.add(Store(name), self.values[node])
            modes = ("l", "m", "n") if "l" in product.frame.modes else ("m", "n")
            declared.append(Output(name, _dtype(node), modes))
        inputs = [each for each, _ in self.loads.values()]
        dag: Dag = builder.finish(product.operation, (), inputs, declared)
        program = Program.from_dag(dag, **settings, **product.geometry)
        return Fused(self.region, program, tuple(each for _, each in self.loads.values()), tuple(last))

    def _is_renamed(self, node: Node) -> bool:
        return False

    def start(self) -> int:
        """Return the product: scaled, and with the terms that belong to it."""
        product, builder = self.region.product, self.builder
        value = builder.add(Acc())
        if product.alpha != 1:
            value = builder.add(Apply("mul"), value, builder.add(Const.of(product.alpha)))
        for term in product.terms:
            operand = self.bias(term.value) if product.operation.startswith("conv") else self.operand(term.value, product.frame)
            if term.factor != 1:
                operand = builder.add(Apply("mul"), operand, builder.add(Const.of(term.factor)))
            value = builder.add(Apply("add"), value, operand)
        return value

    def bias(self, node: Node) -> int:
        return self.load(node, ("n",))

    def value(self, found: Any, frame: Frame) -> int:
        if isinstance(found, Node):
            return self.values[found] if found in self.values else self.operand(found, frame)
        if isinstance(found, Applied):
            return self.apply(found, [self.value(operand, frame) for operand in found.operands])
        return self.builder.add(Const.of(float(found)))

    def apply(self, found: Applied, operands: Sequence[int]) -> int:
        if isinstance(found.what, DType):
            return self.builder.add(Cast(found.what), *operands)
        return self.builder.add(Apply(found.what.name), *operands)

    def operand(self, node: Node, frame: Frame) -> int:
        """Return a tensor from outside of the region; short computations of vectors are done in the kernel."""
        modes = frame.modes_of(shape_of(node))
        assert modes is not None
        if len(modes) <= 1:
            count = 1 if not modes else _extent(frame, modes[0])
            if _is_light(node, count):
                return self.vector(node, modes, count)
        return self.load(node, modes)

    def vector(self, node: Node, modes: tuple[str, ...], count: Any) -> int:
        """Return a vector computed again from the vectors and numbers that it is made of."""
        if is_view(node):
            return self.vector(node.all_input_nodes[0], modes, count)
        found = meaning(node)
        if not isinstance(found, Applied):
            return self.load(node, modes if is_whole(node, count) else ())

        def of(each: Any) -> int:
            if isinstance(each, Applied):
                return self.apply(each, [of(operand) for operand in each.operands])
            return self.vector(each, modes, count) if isinstance(each, Node) else self.builder.add(Const.of(float(each)))

        return of(found)

    def load(self, node: Node, modes: tuple[str, ...]) -> int:
        known = self.loads.get((node, modes))
        if known is None:
            name = f"x{len(self.loads)}"
            frame = self.region.product.frame
            whole = set(modes) == set(frame.modes)
            shape = frame.sizes if whole else tuple(_extent(frame, mode) for mode in modes)
            known = Input(name, _dtype(node), modes), Argument(name, node, shape)
            self.loads[node, modes] = known
        return self.builder.add(Load(known[0].name))


def _extent(frame: Frame, mode: str) -> Any:
    total: Any = 1
    for size, each in zip(frame.sizes, frame.modes, strict=True):
        if each == mode:
            total = total * size
    return total


def _is_light(node: Node, count: Any) -> bool:
    """Return whether a vector is made of vectors and numbers by a few elementwise operators."""
    left, stack = _MAX_VECTOR_NODES, [node]
    while stack:
        each = stack.pop()
        value = each.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
            return False
        if not (is_whole(each, count) or is_whole(each, 1)):
            return False
        left -= 1
        if left < 0:
            return False
        if is_view(each) or isinstance(meaning(each), Applied):
            stack += each.all_input_nodes
    return True


def _dtype(node: Node) -> DType:
    found = from_torch_name(str(node.meta["val"].dtype).removeprefix("torch."))
    assert found is not None
    return found


__all__ = ["Argument", "Fused", "build"]
