"""The formula as a PyTorch user writes it: ``straight_line(dag, scalars) -> torch.fx.GraphModule``.

The graph is taken as typed, before our optimiser; every node becomes the torch operation for it, in the
tensors' own dtypes, with numbers as Python floats. The result is straight-line code (``print(module.code)``):
that is what eager PyTorch runs and what torch.compile is given to work on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, reduce
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from evt.functions import TABLE
from evt.ir import Acc, Apply, Cast, Const, Input, Load, Output, Store, TypedDag
from evt.ir.dtype import DType
from evt.ir.node import MODES

#: A proxy of a tensor with its dtype, or a number.
_Tensor: TypeAlias = tuple[Any, torch.dtype]
_Value: TypeAlias = _Tensor | float


def straight_line(dag: TypedDag, scalars: Mapping[str, float], *, batched: bool = False) -> GraphModule:
    """A module of ``(A, B, *tensor inputs)`` in the order of ``dag.inputs``; one output, or a tuple of them.

    ``scalars`` are written into the code as numbers. With ``batched``, A and B have three dimensions and the
    mode l is one; without, it is none. Outputs are packed in their own layout, as the kernel's are.
    """
    return _Writer(dag, scalars, batched).module()


class _Writer:
    def __init__(self, dag: TypedDag, scalars: Mapping[str, float], batched: bool) -> None:
        self.dag = dag
        self.scalars = scalars
        self.batched = batched
        self.graph = Graph()
        self.tracer = GraphAppendingTracer(self.graph)

    def module(self) -> GraphModule:
        acc = self.product()
        loads = {value.name: self.load(value) for value in self.dag.inputs}
        values: list[_Value] = []
        whole: list[bool] = []  # has the accumulator's shape
        results: dict[str, Any] = {}
        for node in range(len(self.dag)):
            arguments = self.dag.arguments(node)
            operands = [values[operand] for operand in arguments]
            op = self.dag[node]
            whole.append(isinstance(op, Acc) or any(whole[operand] for operand in arguments))
            match op:
                case Acc():
                    values.append(acc)
                case Load(name):
                    values.append(loads[name])
                case Const():
                    values.append(_shortest(op))
                case Apply(function):
                    values.append(_apply(function, operands))
                case Cast(dtype):
                    values.append(_cast(operands[0], _torch(dtype)))
                case Store(name):
                    values.append(operands[0])
                    results[name] = self.store(self.dag.output[name], operands[0], whole[node], acc[0])
        outputs = tuple(results[output.name].node for output in self.dag.outputs)
        self.graph.output(outputs if len(outputs) > 1 else outputs[0])
        return GraphModule(torch.nn.Module(), self.graph, "Formula")

    def proxy(self, node: Node) -> Any:
        return Proxy(node, self.tracer)

    def product(self) -> _Tensor:
        a, b = self.proxy(self.graph.placeholder("A")), self.proxy(self.graph.placeholder("B"))
        first, second = self.dag.operands
        if self.dag.operation == "linear" and first.modes == ("m", "k") and second.modes == ("n", "k"):
            return functional.linear(a, b), _torch(first.dtype)
        left = a if first.modes == ("m", "k") else a.mT
        right = b if second.modes == ("k", "n") else b.mT
        return left @ right, _torch(first.dtype)

    def load(self, value: Input) -> _Value:
        """An input so that it broadcasts against the accumulator."""
        if not value.modes:
            return float(self.scalars[value.name])
        assert value.dtype is not None
        # The prefix keeps names of the user's apart from Python's keywords and from A and B.
        tensor = self.proxy(self.graph.placeholder(f"input_{value.name}"))
        modes = [mode for mode in value.modes if mode != "l" or self.batched]
        ordered = [mode for mode in MODES if mode in modes]
        if modes == ["n", "m"]:
            tensor = tensor.mT  # of each batch, where an undeclared batch comes before
        elif modes != ordered:
            tensor = tensor.permute(*(modes.index(mode) for mode in ordered))
        if ordered:
            for position, mode in enumerate(MODES[MODES.index(ordered[0]) :]):
                if mode not in ordered:
                    tensor = tensor.unsqueeze(position)
        return tensor, _torch(value.dtype)

    def store(self, output: Output, value: _Value, whole: bool, acc: Any) -> Any:
        """A value as the output's tensor: all its elements, in its dtype and packed in its layout."""
        assert output.dtype is not None
        dtype = _torch(output.dtype)
        if isinstance(value, float):
            tensor = torch.full_like(acc, value, dtype=dtype)
        else:
            tensor = value[0] if value[1] == dtype else value[0].to(dtype)
            if not whole:
                tensor = tensor.expand_as(acc).clone(memory_format=torch.contiguous_format)
        modes = [mode for mode in output.modes if mode != "l"]
        order = ["l", *modes] if self.batched else modes
        if modes == ["n", "m"]:
            tensor = tensor.mT
        if self.batched and "l" in output.modes and list(output.modes) != order:
            tensor = tensor.permute(*(order.index(mode) for mode in output.modes))
        elif modes == ["m", "n"]:
            return tensor
        return tensor.contiguous()


def _apply(name: str, operands: Sequence[_Value]) -> _Value:
    tensors = [value for value in operands if not isinstance(value, float)]
    if not tensors:
        return TABLE[name].fold(*(value for value in operands if isinstance(value, float)))
    plain = [value if isinstance(value, float) else value[0] for value in operands]
    return _call(name, plain), reduce(torch.promote_types, (dtype for _, dtype in tensors))


def _call(name: str, operands: list[Any]) -> Any:
    """A function of the table on proxies and numbers: what torch has ready-made, else the table's meaning."""
    numbers = tuple(isinstance(value, float) for value in operands)
    if name in ("min", "max") and any(numbers):
        tensor, bound = sorted(operands, key=lambda value: isinstance(value, float))
        return torch.clamp(tensor, **{"max" if name == "min" else "min": bound})
    if name == "div":
        return operands[0] / operands[1]
    if name == "gelu_tanh":
        return functional.gelu(operands[0], approximate="tanh")
    if hasattr(functional, name) and not numbers[0] and all(numbers[1:]):
        names = [parameter.name for parameter in TABLE[name].parameters]
        return getattr(functional, name)(operands[0], **dict(zip(names[1:], operands[1:], strict=True)))
    if not _takes_numbers(name, numbers):
        tensor = operands[numbers.index(False)]
        operands = [
            tensor.new_full((), value) if number else value for value, number in zip(operands, numbers, strict=True)
        ]
    return TABLE[name].torch(torch, *operands)


@cache
def _takes_numbers(name: str, numbers: tuple[bool, ...]) -> bool:
    """Whether the torch functions that a meaning is made of take Python floats in these places."""
    try:
        TABLE[name].torch(torch, *(0.5 if number else torch.ones(1) for number in numbers))
    except (TypeError, RuntimeError):
        return False
    return True


def _cast(value: _Value, dtype: torch.dtype) -> _Value:
    if isinstance(value, float):
        return float(torch.tensor(value, dtype=dtype).item())
    return value if value[1] == dtype else (value[0].to(dtype), dtype)


def _shortest(constant: Const) -> float:
    """The f32 constant as it was written: the shortest decimal that stands for it."""
    for digits in range(1, 9):
        written = float(f"{constant.value:.{digits}g}")
        try:
            if Const.of(written) == constant:
                return written
        except OverflowError:
            pass  # rounded up beyond f32
    return constant.value


def _torch(dtype: DType) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype.torch)
    return found
