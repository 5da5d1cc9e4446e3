"""Contraction to multiply-adds, which CUTLASS and the hardware have as one operation."""

from __future__ import annotations

from evt.ir.dag import TypedDag
from evt.ir.dtype import F32, F64
from evt.ir.node import Acc, Apply
from evt.ir.value_types import domain
from evt.optimise.rewrite import TypedBuilder


def contract(dag: TypedDag) -> TypedDag:
    """Rewrite ``a*b + c -> fma(a, b, c)`` if nothing else reads the product.

    If both operands are products, contract the one without the accumulator, as CUTLASS writes a linear combination:
    ``alpha*acc + beta*C -> fma(beta, C, alpha*acc)``. This saves one rounding; the reference computes ``a*b + c``.
    """
    has_acc = [False] * len(dag)
    for node in range(len(dag)):
        has_acc[node] = isinstance(dag[node], Acc) or any(has_acc[operand] for operand in dag.arguments(node))

    def is_product(node: int) -> bool:
        floats = dag.types[node].dtype in (F32, F64)
        return dag[node] == Apply("mul") and len(dag.users[node]) == 1 and floats

    builder, renamed = TypedBuilder(dag), list[int]()
    for node in builder.walk(dag):
        operands = dag.arguments(node)
        products = []
        if dag[node] == Apply("add") and operands[0] != operands[1]:
            products = [operand for operand in operands if is_product(operand)]
            products = [operand for operand in products if dag.types[operand].dtype == dag.types[node].dtype]
        if products:
            product = min(products, key=lambda operand: (has_acc[operand], -operand))
            addend = operands[1] if operands[0] == product else operands[0]
            factors = dag.arguments(product)
            types = [dag.types[operand] for operand in (*factors, addend)]
            if domain(dag, "fma", types) == dag.types[node].dtype:  # not if it would then be computed in i32
                renamed.append(builder.add(Apply("fma"), *(renamed[operand] for operand in (*factors, addend))))
                continue
        renamed.append(builder.add(dag[node], *(renamed[operand] for operand in operands)))
    return builder.typed()
