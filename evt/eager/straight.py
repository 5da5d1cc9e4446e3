"""The formula as a PyTorch user writes it: ``straight_line(dag, scalars) -> torch.fx.GraphModule``.

The graph is typed but not optimised. Every node becomes the torch operation for it, in the tensors' own dtypes, with
numbers as Python floats. The result is straight-line code (``print(module.code)``), which eager PyTorch runs and
torch.compile compiles.

A convolution is written on tensors [N, K, P, Q], as its user has them. If the program needs more than tensors of that
shape and vectors, it is written on their matrices [m, n].

8-bit operands are multiplied by torch._int_mm and torch._scaled_mm; the former exists for i8 only, and neither takes
batches. Integers combine with floats as f32. Bits are bool until they are stored. Random numbers are refused, because
PyTorch draws different ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as functional
from torch.fx import Graph, GraphModule, Node, Proxy
from torch.fx.proxy import GraphAppendingTracer

from evt.eager.convolution import convolve
from evt.eager.idiom import (
    Tensor,
    UnwrittenError,
    Value,
    apply,
    cast,
    constant,
    multiply,
    pack_bits,
    torch_type,
    unpack_bits,
)
from evt.eager.operators import Operators
from evt.ir import (
    Acc,
    Apply,
    Cast,
    Const,
    Input,
    Interleave,
    Load,
    Operand,
    Output,
    Pick,
    Reduce,
    ReduceBlocks,
    Store,
    TypedDag,
)
from evt.ir.convolution import ConvolutionProblem
from evt.ir.dtype import B1, I32, DType, converts
from evt.ir.node import MODES, MOMENTS, PLACES, base, divisor, index_of
from evt.reference import is_image
from evt.reference.convolution import from_view, to_view
from evt.reference.rounding import packed
from evt.reference.translate import Argument, Dialect, translate


def straight_line(
    dag: TypedDag,
    scalars: Mapping[str, float],
    *,
    batched: bool = False,
    device: str = "cpu",
    problem: ConvolutionProblem | None = None,
    operators: bool = False,
) -> GraphModule:
    """Return a module of ``(A, B, *tensor inputs)`` in the order of ``dag.inputs``; it returns one output, or a tuple.

    ``scalars`` are written into the code as numbers. With ``batched``, A and B have three dimensions and the mode l is
    one of them. Outputs are packed in their own layout, as the kernel's are. ``device`` is ``cuda`` or ``cpu``, which
    multiply 8-bit operands by different functions. A convolution is written for one ``problem``. ``operators``: biases
    and scales of the product are arguments of linear, addmm, baddbmm and _scaled_mm, as ``numerics="eager"`` reads the
    formula. Raise UnwrittenError.
    """
    return _Writer(dag, scalars, batched, device, problem, operators).module()


def is_elementwise(dag: TypedDag, problem: ConvolutionProblem) -> bool:
    """Return whether a convolution's program uses only tensors [N, C, ...], vectors and numbers."""
    kinds = (Acc, Load, Const, Apply, Cast, Store)
    known = ((), ("m",), ("n",), ("m", "n"))
    return (
        len(problem.leads["n"]) == 1
        and all(isinstance(dag[node], kinds) for node in range(len(dag)))
        and all(value.modes in known and value.dtype != B1 for value in dag.inputs)
        and all(map(is_image, dag.outputs))
    )


class _Writer(Dialect[Value]):
    """A writer of nodes into an fx graph."""

    def __init__(
        self,
        dag: TypedDag,
        scalars: Mapping[str, float],
        batched: bool,
        device: str,
        problem: ConvolutionProblem | None = None,
        operators: bool = False,
    ) -> None:
        self.dag = dag
        self.with_operators = operators and problem is None
        self.operators: Operators | None = None
        self.scalars = scalars
        self.batched = batched
        self.device = device
        self.problem = problem
        self.on_images = problem is not None and is_elementwise(dag, problem)
        self.graph = Graph()
        self.tracer = GraphAppendingTracer(self.graph)

    def module(self) -> GraphModule:
        self.acc, self.acc_dtype = self.product()
        # The prefix keeps the user's names apart from Python's keywords and from A and B.
        self.given = {
            value.name: self.proxy(self.graph.placeholder(f"input_{value.name}"))
            for value in self.dag.inputs
            if value.modes
        }
        self.loads = {value.name: self.placed(value) for value in self.dag.inputs}
        for value in self.dag.inputs if self.operators else ():
            if value.modes and self.operators:
                self.operators.loaded(self.loads[value.name], "m" in map(base, value.modes))
        results = translate(self.dag, self)
        outputs = tuple(results[output.name].node for output in self.dag.outputs)
        self.graph.output(outputs if len(outputs) > 1 else outputs[0])
        self.graph.eliminate_dead_code()  # products whose biases became arguments
        return GraphModule(torch.nn.Module(), self.graph, "Formula")

    def proxy(self, node: Node) -> Any:
        return Proxy(node, self.tracer)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Return a written call, for a function that does not recognise proxies."""
        return self.tracer.create_proxy("call_function", function, arguments, options)

    def product(self) -> Tensor:
        a, b = self.proxy(self.graph.placeholder("A")), self.proxy(self.graph.placeholder("B"))
        self.summed = self.dag.operands[0].modes.index("k") - 2, a
        if self.problem is not None:
            acc, dtype = convolve(self.problem, self.dag.operands, a, b, self.device, self.call)
            return (acc if self.on_images else self.flat(to_view(acc), ("m", "n"))), dtype
        first, second = self.dag.operands
        b = b.to(torch_type(first.dtype)) if converts(first.dtype, second.dtype) else b
        modes = first.modes, second.modes
        left = self.left = a if first.modes == ("m", "k") else a.mT
        right = b if second.modes == ("k", "n") else b.mT
        result = self.dag.primary.dtype
        assert result is not None
        if self.with_operators:
            scaled = first.dtype.is_float and first.dtype.bits == 8
            dtype = torch_type(first.dtype if first.dtype.bits > 8 else I32)
            if scaled:
                dtype = torch_type(result) if result.name in ("f16", "bf16", "f32") else torch.bfloat16
            self.operators = Operators(self.call, left, right, dtype, scaled, self.batched)
            if scaled:
                return self.operators.bare(), dtype
        if self.dag.operation == "linear" and modes == (("m", "k"), ("n", "k")) and first.dtype.bits > 8:
            return functional.linear(a, b), torch_type(first.dtype)
        return multiply(left, right, self.dag.operands, result, self.device, self.batched)

    def accumulator(self, name: str) -> Value:
        if name != "B":
            return self.other_product(name)
        value = self.acc, self.acc_dtype
        return self.operators.accumulator(value) if self.operators else value

    def other_product(self, name: str) -> Value:
        """Return the product of A and an input."""
        result, given = self.dag.primary.dtype, self.given[name]
        assert result is not None
        right = given if self.dag.input[name].modes == ("k", "n") else given.mT
        return multiply(self.left, right, self.dag.operands, result, self.device, self.batched)

    def element(self, name: str) -> Value:
        raise UnwrittenError("an operand formula is a separate pass over memory in PyTorch")

    def feed(self, operand: Operand, x: Argument[Value]) -> Any:
        return self.element(operand.name)

    def scale(self, x: Argument[Value]) -> Any:
        raise UnwrittenError("a factor of an operand is a separate pass over memory in PyTorch")

    def load(self, source: Input) -> Value:
        return self.loads[source.name]

    def constant(self, op: Const) -> Value:
        return constant(op)

    def apply(self, function: str, operands: Sequence[Value], domain: DType) -> Value:
        if self.operators is None:
            return apply(function, operands, domain)
        return self.operators.applied(function, operands, lambda: apply(function, operands, domain))

    def cast(self, dtype: DType, x: Argument[Value]) -> Value:
        value = cast(x.value, dtype)
        return (value[0], value[1]) if value is x.value and isinstance(value, tuple) else value  # it ends an operator

    def extent(self, mode: str) -> Value:
        if mode == "k" and self.problem is not None:
            return self.problem.contraction
        if mode == "l" and not self.batched:
            return 1
        dim, of = self.summed if mode == "k" else (MODES.index(mode) - 3, self.acc)
        return self.call(torch.full, (), of.shape[dim], dtype=torch.int32, device=self.acc.device), torch.int32

    def random(self, seed: Argument[Value], offset: Argument[Value]) -> Value:
        raise UnwrittenError("PyTorch's random numbers differ from the program's")

    def placed(self, value: Input) -> Value:
        """Return an input reshaped to broadcast against the accumulator."""
        if not value.modes:
            return self.scalars[value.name]
        assert value.dtype is not None
        tensor = self.given[value.name]
        if value.is_indexed:
            tensor = self.gathered(tensor, value)
        if self.on_images:
            return self.beside_images(tensor, value.modes), torch_type(value.dtype)
        if self.problem is not None:
            tensor = self.flat(to_view(tensor) if is_image(value) else tensor, value.modes)
        if value.dtype == B1:
            tensor = self.call(unpack_bits, tensor, self.acc)
        modes = [base(mode) for mode in value.modes if mode != "l" or self.batched]
        ordered = [mode for mode in MODES if mode in modes]
        if modes == ["n", "m"]:
            tensor = tensor.mT  # per batch; an undeclared batch comes first
        elif modes != ordered:
            tensor = tensor.permute(*(modes.index(mode) for mode in ordered))
        if ordered:
            for position, mode in enumerate(MODES[MODES.index(ordered[0]) :]):
                if mode not in ordered:
                    tensor = tensor.unsqueeze(position)
        return tensor, torch_type(value.dtype)

    def gathered(self, tensor: Any, value: Input) -> Any:
        """Return a tensor with its rows and columns gathered by the indices; all of them are in range."""
        for dim, mode in enumerate(value.modes):
            if index_of(mode):
                tensor = tensor.index_select(dim, self.index_named(index_of(mode)))
        return tensor

    def scattered(self, tensor: Any, output: Output) -> Any:
        """Return a buffer with a value's rows or columns scattered by the index, which names all of them."""
        along, *others = (dim for dim, mode in enumerate(output.modes) if index_of(mode))
        if others:
            raise UnwrittenError("a store by two indices is written for kernels only")
        index = self.index_named(index_of(output.modes[along]))
        return self.call(torch.empty_like, tensor).index_copy_(along, index.long(), tensor)

    def index_named(self, name: str) -> Any:
        if self.batched or self.problem is not None:
            raise UnwrittenError("gathered rows are written for a single matrix product only")
        return self.given[name]

    def beside_images(self, tensor: Any, modes: Sequence[str]) -> Any:
        """Return a convolution's vector reshaped to broadcast against [N, C, ...]; other tensors unchanged."""
        assert self.problem is not None
        if modes == ("n",):
            return tensor.reshape(-1, *[1] * self.problem.geometry.rank)
        return tensor.unsqueeze(1) if modes == ("m",) else tensor

    def flat(self, tensor: Any, modes: Sequence[str]) -> Any:
        """Return a convolution's tensor with one dimension for each mode."""
        for position, mode in enumerate(modes):
            if (count := len(self.dims(mode))) > 1:
                tensor = tensor.flatten(position, position + count - 1)
        return tensor

    def unflat(self, tensor: Any, output: Output) -> Any:
        """Return an output, given with one dimension for each mode, in PyTorch's shape."""
        if self.problem is None:
            return tensor
        for mode in reversed(output.modes):
            dims = self.dims(mode)
            if len(dims) > 1:
                bits = output.dtype == B1 and mode == output.modes[-1]
                tensor = tensor.unflatten(output.modes.index(mode), packed(dims) if bits else dims)
        return from_view(tensor) if is_image(output) else tensor

    def dims(self, mode: str) -> tuple[int, ...]:
        """Return the dimensions of a mode of a convolution; a divided mode has one."""
        assert self.problem is not None
        return self.problem.leads[base(mode)] if divisor(mode) == 1 else (1,)

    def repeat(self, value: Value, width: int) -> Value:
        return value if isinstance(value, float | int) else (value[0].repeat_interleave(width, -1), value[1])

    def spread(self, x: Argument[Value], modes: Sequence[str]) -> Tensor:
        """Return a value expanded to ``modes``, to every batch, and to the modes it varies over."""
        if isinstance(x.value, float | int):
            dtype = torch.float32 if isinstance(x.value, float) else torch.int32
            tensor = self.acc.new_full((), x.value, dtype=dtype)
        elif x.whole:
            return x.value
        else:
            tensor, dtype = x.value
        spread = {"l", *modes, *map(base, x.type.modes)}
        own = MODES if self.batched else MODES[1:]
        sizes = [self.acc.shape[MODES.index(mode) - 3] if mode in spread else 1 for mode in own]
        if x.width > 1:
            sizes[-1] = sizes[-1] // x.width
        return tensor.expand(*sizes), dtype

    def reduce(self, op: Reduce, x: Argument[Value]) -> Value:
        if op.is_within:
            raise UnwrittenError("reductions within images or groups of columns are written for kernels only")
        dims = [MODES.index(mode) - 3 for mode in op.modes if mode != "l" or self.batched]
        if op.kind in PLACES:
            tensor, _ = self.spread(x, op.modes)
            found = (
                tensor.argmax(dims[0], keepdim=True) if op.kind == "argmax" else tensor.argmin(dims[0], keepdim=True)
            )
            return found.to(torch.int32), torch.int32
        if op.kind in MOMENTS:
            tensor, dtype = self.spread(x, op.modes)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            tensor = tensor.to(wide)
            kept = {"keepdim": True}
            return (tensor.mean(dims, **kept) if op.kind == "mean" else tensor.var(dims, correction=0, **kept)), wide
        return self.reduced(op.kind, self.spread(x, op.modes), dims, keepdim=True)

    def fold(self, op: ReduceBlocks, x: Argument[Value]) -> Value:
        tensor, dtype = self.spread(x, "n")
        return self.reduced(op.kind, (tensor.unflatten(-1, (-1, op.width)), dtype), [-1])

    def reduced(self, kind: str, value: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
        """Return a reduction: sums in f32, f64 or i32; for max and min, narrow types become i32 or f32."""
        tensor, dtype = value
        wide = dtype if dtype.itemsize == 8 else torch.float32 if dtype.is_floating_point else torch.int32
        if kind == "sum":
            return tensor.sum(dims, keepdim=keepdim, dtype=wide), wide
        if dtype.itemsize == 1:
            tensor, dtype = tensor.to(wide), wide
        return (tensor.amax if kind == "max" else tensor.amin)(dims, keepdim=keepdim), dtype

    def pick(self, op: Pick, x: Argument[Value]) -> Value:
        if isinstance(x.value, float | int) or not x.width:
            return x.value
        tensor, dtype = x.value
        if op.block == 1:
            return tensor[..., op.member :: 2], dtype
        return tensor.unflatten(-1, (-1, 2, op.block))[..., op.member, :].flatten(-2), dtype

    def interleave(self, op: Interleave, x: Argument[Value], y: Argument[Value], domain: DType) -> Value:
        dtype = torch_type(domain)
        tensors = [
            self.acc.new_full((1,), value, dtype=dtype) if isinstance(value, float | int) else value[0].to(dtype)
            for value in (x.value, y.value)
        ]
        shape = (*self.acc.shape[:-1], self.acc.shape[-1] // 2)
        halves = [tensor.expand(shape).unflatten(-1, (-1, op.block)) for tensor in tensors]
        return torch.stack(halves, -2).flatten(-3), dtype

    def index(self, mode: str) -> Value:
        if mode == "l" and not self.batched:
            return 0
        dim = MODES.index(mode) - 3
        count = self.call(torch.arange, self.acc.shape[dim], dtype=torch.int32, device=self.acc.device)
        return count if dim == -1 else count.reshape(-1, *[1] * (-1 - dim)), torch.int32

    def store(self, output: Output, x: Argument[Value]) -> Any:
        """Return a value as the output's tensor: all its elements, in its dtype and packed in its layout."""
        assert output.dtype is not None
        if self.dag.reduced[self.dag.stores[output.name]] or not (output.is_tile or output.is_indexed):
            return self.unflat(self.store_vector(output, cast(x.value, output.dtype)), output)
        if isinstance(x.value, float | int):
            number: Any = cast(x.value, output.dtype)
            tensor = torch.full_like(self.acc, number, dtype=torch_type(output.dtype))
        else:
            tensor, _ = cast(x.value, output.dtype)  # type: ignore[misc]  # of a tensor it is one
            if not x.whole:
                tensor = self.expand(tensor, output.modes)
        if output.is_indexed:
            return self.scattered(self.lay_out(tensor, output), output)
        return tensor if self.on_images else self.unflat(self.lay_out(tensor, output), output)

    def expand(self, tensor: Any, modes: Sequence[str]) -> Any:
        """Return all the elements of an output that does not depend on the accumulator."""
        width = max(map(divisor, modes))
        if width == 1:
            full = tensor.expand_as(self.acc)
        else:
            sizes = [self.acc.shape[dim] for dim in ((-3, -2) if self.batched else (-2,))]
            full = tensor.expand(*sizes, self.acc.shape[-1] // width)
        return full.clone(memory_format=torch.contiguous_format)

    def lay_out(self, tensor: Any, output: Output) -> Any:
        """Return a tensor ``[.., m, n]`` in the order of the output's modes; bits are packed."""
        names = [base(mode) for mode in output.modes]
        modes = [mode for mode in names if mode != "l"]
        order = ["l", *modes] if self.batched else modes
        if modes == ["n", "m"]:
            tensor = tensor.mT
        if self.batched and "l" in names and names != order:
            tensor = tensor.permute(*(order.index(mode) for mode in names))
        elif modes == ["m", "n"]:
            return self.call(pack_bits, tensor) if output.dtype == B1 else tensor
        return tensor.contiguous()

    def store_vector(self, output: Output, value: Value) -> Any:
        """Return the result of a reduction, a vector or a scalar, in the order of the output's modes."""
        if isinstance(value, float | int):
            assert output.dtype is not None
            tensor = self.acc.new_full((), value, dtype=torch_type(output.dtype))
        else:
            tensor, _ = value
        names = [base(mode) for mode in output.modes if base(mode) != "l" or self.batched]
        if self.batched and output.batchable:
            names = names if "l" in names else ["l", *names]
        modes = MODES if self.batched else MODES[1:]
        extents = [self.acc.shape[MODES.index(mode) - 3] if mode in names else 1 for mode in modes]
        extents[-1] = extents[-1] // max(map(divisor, output.modes), default=1)
        tensor = tensor.expand(*extents)
        if self.batched and "l" not in names:
            tensor = tensor.squeeze(0)
        for mode in ("m", "n"):
            if mode not in names:
                tensor = tensor.squeeze(MODES.index(mode) - 3)
        order = [mode for mode in MODES if mode in names]
        if names != order:
            tensor = tensor.permute(*(order.index(mode) for mode in names))
        return tensor.contiguous()
