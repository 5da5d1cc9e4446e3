"""Rounding as eager PyTorch rounds: ``numerics="eager"``. docs/numerics.md has the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evt.functions import TABLE
from evt.ir.dag import TypedDag, below
from evt.ir.dtype import B1, BF16, F16, F32, F64, I32, I64, DType
from evt.ir.node import Acc, Apply, Cast, Const, Extent, Interleave, Load, Node, Pick, ReduceBlocks, Scale
from evt.optimise.rewrite import TypedBuilder

#: Functions that PyTorch composes of operators, by the formula ``f(apply, number, x)``.
COMPOSED = {
    "softsign": lambda apply, number, x: apply("div", x, apply("add", apply("abs", x), number(1.0))),
    "tanhshrink": lambda apply, number, x: apply("sub", x, apply("tanh", x)),
}
#: Functions that compare with numbers of the tensor's type, as the predicates do.
COMPARING = ("hardshrink", "softshrink", "threshold")
#: The exponents that are numbers, with PyTorch's computation of the power.
POWERS = {0.5: "sqrt(x)", -0.5: "rsqrt(x)", -1.0: "1 / x", 2.0: "x * x", 3.0: "(x * x) * x", -2.0: "1 / (x * x)"}


@dataclass(frozen=True)
class _Product:
    """A product before it is rounded: ``value``, times ``alpha`` if that is a node; ``factors`` counts fp8's scales."""

    value: int
    alpha: int | None = None
    factors: int = 0


def round_as_eager(dag: TypedDag) -> TypedDag:
    """Round ``f(x) -> f16(f(x))`` and ``acc -> f16(acc)`` where PyTorch stores the value in f16 (or bf16).

    Eager PyTorch stores every operation's result in the promoted type of its operands. Numbers and tensors without
    dimensions do not promote within their kind. The product has the type of A, or the type of D for 8-bit operands.
    These formulas of the accumulator are one operator, and round once:

        acc + bias[n]                          linear, and addmm with a vector
        alpha*acc + C, acc + beta*C, ...       addmm and baddbmm: alpha and beta are numbers, ``1*acc`` included
        scale_a*(scale_b*acc) + bias[n]        _scaled_mm, for 8-bit floats

    An addend has the type of the product. A convolution rounds before it adds its bias. Factors for blocks of k, which
    PyTorch does not have, are not rounded.
    """
    return _Rounding(dag).run()


class _Rounding:
    def __init__(self, dag: TypedDag) -> None:
        self.dag, self.builder = dag, TypedBuilder(dag)
        self.renamed: list[int] = []
        #: The type in which PyTorch stores a value; None for a number, which does not promote.
        self.held: list[DType | None] = []
        self.products: dict[int, _Product] = {}
        self.scaled = bool(dag.operands) and dag.operands[0].dtype.is_float and dag.operands[0].dtype.bits == 8

    def run(self) -> TypedDag:
        for node in self.builder.walk(self.dag):
            new, dtype = self.node(node)
            self.renamed.append(new)
            self.held.append(dtype)
        return self.builder.typed()

    def node(self, node: int) -> tuple[int, DType | None]:
        """Return a node of the new graph, and the type in which PyTorch stores it."""
        op, operands = self.dag[node], self.dag.arguments(node)
        types = [self.held[operand] for operand in operands]
        arguments = [self.renamed[operand] for operand in operands]
        if isinstance(op, Apply):
            product = self.product(op, operands)
            if product is not None:
                return product
            return _operation(self.builder, op, arguments, types)
        if isinstance(op, Scale):
            return self.unrounded(node), None
        dtype = _held(self.dag, op, node, types)
        new = self.builder.add(op, *arguments)
        if isinstance(op, Acc):
            self.products[node] = _Product(new)
        return _rounded(self.builder, new, dtype) if isinstance(op, Acc | ReduceBlocks) else new, dtype

    def unrounded(self, root: int) -> int:
        """Return a node of the new graph, without a rounding of the values that it depends on."""
        renamed: dict[int, int] = {}
        for node in (*below(self.dag, root), root):
            renamed[node] = self.builder.add(self.dag[node], *(renamed[each] for each in self.dag.arguments(node)))
        return renamed[root]

    def product(self, op: Apply, operands: Sequence[int]) -> tuple[int, DType | None] | None:
        """Return the result of a product's operator that an application ends, rounded once; None for others.

        A scaled product may be part of an operator that later nodes end: the product is kept for them.
        """
        here = next((each for each in operands if each in self.products), None)
        if here is None or op.function not in ("add", "mul"):
            return None
        other = operands[1] if operands[0] == here else operands[0]
        product, dtype, node = self.products[here], self.held[here], len(self.renamed)
        if other == here or dtype is None or not dtype.is_float:
            return None
        if op.function == "mul":
            if self.scaled and product.factors < 2 and self.is_scale(other):
                value = self.builder.apply("mul", product.value, self.renamed[other])
                self.products[node] = _Product(value, None, product.factors + 1)
                return _rounded(self.builder, value, dtype), dtype
            if not self.scaled and product.alpha is None and self.held[other] is None:
                self.products[node] = _Product(product.value, self.renamed[other])
            return None
        if self.dag.operation.startswith("conv"):
            return None
        addend, beta = self.addend(other)
        load = self.dag[addend]
        if not isinstance(load, Load) or self.held[addend] != dtype:
            return None
        vector = "m" not in self.dag.input[load.name].modes
        if not vector and (self.scaled or (product.alpha is None and beta is None)):
            return None
        term = self.renamed[addend]
        if beta is not None:
            term = self.builder.apply("mul", term, self.renamed[beta])
        if product.alpha is None:
            value = self.builder.apply("add", product.value, term)
        else:
            value = self.builder.apply("fma", product.value, product.alpha, term)
        return _rounded(self.builder, value, dtype), dtype

    def is_scale(self, node: int) -> bool:
        """Return whether a value is a scale of ``_scaled_mm``: a number, or a loaded vector of f32."""
        op = self.dag[node]
        if isinstance(op, Load):
            return self.held[node] in (None, F32) and len(self.dag.input[op.name].modes) <= 1
        return self.held[node] is None

    def addend(self, node: int) -> tuple[int, int | None]:
        """Return x and beta for ``beta*x`` with a number beta, else the node and None."""
        if self.dag[node] == Apply("mul"):
            for x, beta in (self.dag.arguments(node), reversed(self.dag.arguments(node))):
                if self.held[beta] is None and self.held[x] is not None:
                    return x, beta
        return node, None


def _operation(
    builder: TypedBuilder, op: Apply, arguments: list[int], types: Sequence[DType | None]
) -> tuple[int, DType | None]:
    """Return an operation as PyTorch computes it, with the intermediate roundings, and the type of its result.

    Integers are converted to the type of the floats in the operation, and a number that is compared to the tensor's
    type. ``number / x`` is ``(1 / x) * number``, and ``x / number`` is ``x * (1 / number)``. :data:`POWERS` are the
    powers by numbers, whose operations on halves PyTorch's CUDA kernels round one by one.
    """
    dtype = _result(builder, op, arguments, types)

    def apply(function: str, *operands: int) -> int:
        return _rounded(builder, builder.add(Apply(function), *operands), dtype)

    row, found = TABLE[op.function], _promoted([each for each in types if each is not None])
    predicate = row.result == "predicate"
    compared = predicate or op.function in COMPARING
    for slot, held in enumerate(types):
        converted = compared if held is None else not held.is_float
        if converted and slot not in row.conditions:
            arguments[slot] = _rounded(builder, arguments[slot], found)
    if predicate:
        return builder.add(op, *arguments), dtype
    if op.function in COMPOSED and dtype is not None:
        return COMPOSED[op.function](apply, builder.number, arguments[0]), dtype
    if op.function == "div" and dtype is not None and found is not None and found.is_float:
        x, y = arguments
        if types[0] is None:
            return apply("mul", apply("rcp", y), x), dtype
        if types[1] is None:
            return apply("mul", x, builder.apply("rcp", y)), dtype
    if op.function == "pow" and dtype is not None and isinstance(builder[arguments[1]], Const):
        return _power(builder, arguments, dtype), dtype
    return apply(op.function, *arguments), dtype


def _power(builder: TypedBuilder, arguments: Sequence[int], dtype: DType) -> int:
    """Return a power by a number."""
    x, exponent = arguments

    def apply(function: str, *operands: int) -> int:
        return _rounded(builder, builder.add(Apply(function), *operands), dtype)

    value = builder.constant(exponent)
    if value not in POWERS or (not dtype.is_float and value not in (2.0, 3.0)):
        return apply("pow", x, _rounded(builder, exponent, dtype))
    if abs(value) == 0.5:
        return apply("sqrt" if value > 0 else "rsqrt", x)
    if value == -1.0:
        return apply("rcp", x)
    squared = apply("mul", x, x)
    if value == 2.0:
        return squared
    return apply("mul", squared, x) if value == 3.0 else apply("rcp", squared)


def _rounded(builder: TypedBuilder, value: int, dtype: DType | None) -> int:
    return builder.add(Cast(dtype), value) if dtype in (F16, BF16) else value


def _result(builder: TypedBuilder, op: Apply, arguments: list[int], types: Sequence[DType | None]) -> DType | None:
    """Return the type in which PyTorch stores the result of an operation."""
    row = TABLE[op.function]
    if row.result == "predicate":
        return B1
    values = [dtype for slot, dtype in enumerate(types) if slot not in row.conditions]
    found = _promoted([dtype for dtype in values if dtype is not None])
    if found is None:
        return None
    squared = op.function == "pow" and builder[arguments[1]] in (Const.of(2.0), Const.of(3.0))
    whole = builder.domain(op.function, tuple(arguments)) == I32 or squared
    return found if found.is_float or whole else F32


def _held(dag: TypedDag, op: Node, node: int, operands: Sequence[DType | None]) -> DType | None:
    """Return the type in which PyTorch stores a value that is not an operation's result."""
    value = dag.types[node]
    match op:
        case Const() | Extent():
            return None
        case Load(name):
            return value.dtype if dag.input[name].modes else None
        case Cast() if operands == [None] and dag.types[dag.arguments(node)[0]].dtype == I64:
            return None  # a number of 64 bits is loaded as one of 32
        case Acc():
            operand = dag.operands[0].dtype
            if operand.is_float and operand.bits == 8:
                return dag.primary.dtype
            return operand if operand in (F16, BF16) else value.dtype
        case Pick() | ReduceBlocks():
            return operands[0]
        case Interleave():
            return _promoted([dtype for dtype in operands if dtype is not None])
        case _:
            return value.dtype


def _promoted(types: Sequence[DType]) -> DType | None:
    """Return torch.promote_types of several types; 8-bit floats are computed in f32."""
    if not types:
        return None
    floats = {dtype for dtype in types if dtype.is_float}
    if not floats:
        return I32 if I32 in types or len(set(types)) > 1 else types[0]
    if F64 in floats:
        return F64
    if floats in ({F16}, {BF16}):
        return next(iter(floats))
    return F32
