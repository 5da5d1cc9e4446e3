"""Plans for tests, and what their nodes are."""

from __future__ import annotations

from dataclasses import replace

import evt
from evt.ir import TypedDag
from evt.plan import LayoutClass, Plan, Signature
from evt.plan.epilogue.nodes import Access, Apply, AuxLoad, AuxStore, Compute, Node
from evt.request import optimised_graph

RELU = "D = relu(alpha*acc + beta*C) + residual"


def make(formula: str, arch: str = "sm90", dtype: str = "f16", **options) -> Plan:
    return evt.gemm(formula, **options).plan(arch, dtype, dtype)


def dag_of(formula: str, dtype: str = "f16") -> TypedDag:
    return optimised_graph(evt.gemm(formula).request, dtype, dtype)


def kinds(made: Plan) -> list[type[Node]]:
    return [type(node) for node in made.nodes]


def accesses(made: Plan, kind: type[AuxLoad | AuxStore]) -> list[Access]:
    return [node.access for node in made.nodes if isinstance(node, kind)]


def computed(made: Plan) -> list[str]:
    """Return the functions and regions of the compute nodes."""
    return [
        node.function if isinstance(node, Compute) else node.region.name
        for node in made.nodes
        if isinstance(node, Compute | Apply)
    ]


def with_layout(signature: Signature, name: str, layout: LayoutClass) -> Signature:
    if name == "A":
        return replace(signature, a=layout)
    if name == "B":
        return replace(signature, b=layout)
    return replace(signature, tensors=tuple((n, layout if n == name else old) for n, old in signature.tensors))
