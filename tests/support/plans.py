"""Plans for tests, and the classes of their steps."""

from __future__ import annotations

from dataclasses import replace

import torch

import evt
from evt.ir import TypedDag
from evt.plan import LayoutClass, Plan, Signature, find_target
from evt.plan.epilogue import broadcasts, computes, loads, writes
from evt.plan.epilogue.computes import Apply, Compute
from evt.plan.epilogue.loads import AuxLoad
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import AuxStore
from evt.request import optimised_graph
from evt.runtime.arguments import bind
from evt.runtime.kernels import plan_kernels
from evt.runtime.planar import with_planes

MODULES = (loads, broadcasts, computes, writes)
#: The classes of an epilogue's steps.
CLASSES = {
    each for module in MODULES for each in vars(module).values() if isinstance(each, type) and issubclass(each, Step)
}
STEPS = {each for each in CLASSES if not any(other.__base__ is each for other in CLASSES)}
RELU = "D = relu(alpha*acc + beta*C) + residual"


def make(formula: str, arch: str = "sm90", dtype: str = "f16", **options) -> Plan:
    return evt.gemm(formula, **options).plan(arch, dtype, dtype)


def dag_of(formula: str, dtype: str = "f16") -> TypedDag:
    return optimised_graph(evt.gemm(formula).request, dtype, dtype)


def kinds(made: Plan) -> list[type[Step]]:
    return [type(node) for node in made.steps]


def accesses(made: Plan, kind: type[AuxLoad | AuxStore]) -> list[Access]:
    return [node.access for node in made.steps if isinstance(node, kind)]


def computed(made: Plan) -> list[str]:
    """Return the functions and regions of the compute nodes."""
    return [
        node.function if isinstance(node, Compute) else node.region.name
        for node in made.steps
        if isinstance(node, Compute | Apply)
    ]


def with_layout(signature: Signature, name: str, layout: LayoutClass) -> Signature:
    if name == "A":
        return replace(signature, a=layout)
    if name == "B":
        return replace(signature, b=layout)
    return replace(signature, tensors=tuple((n, layout if n == name else old) for n, old in signature.tensors))


def plan_of_planes() -> Plan:
    """Return the plan of a 3x3 convolution of one channel, padded by 1, whose D of 40 filters is contiguous."""
    op, target = evt.conv2d("D = relu(acc + bias)", padding=1), find_target("sm90")
    x, weight = torch.empty(8, 1, 28, 30).half(), torch.empty(40, 1, 3, 3).half()
    bound = bind(op.request, x, weight, {"bias": torch.empty(40).half()}, {})
    return plan_kernels(op.request, with_planes(op.request, bound, target, False, fresh=True), target)[0]
