"""Choosing: the signature of packed tensors, and the configurations of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import Fold, Input, Output, Pick, TypedDag
from evt.ir.node import base
from evt.plan.configurations.config import Config
from evt.plan.configurations.known import (
    config_2x,
    config_mainloop,
    configs_3x,
    configs_conv_2x,
    configs_conv_3x,
    configs_sm100,
    configs_sm120,
)
from evt.plan.epilogue.cost import is_light
from evt.plan.kernels.padding import has_few_channels, padded_vector
from evt.plan.problem import Problem, Route
from evt.plan.signature import ConvolutionClass, Signature, aligned_to, natural_layout, natural_operand_layout


def natural_signature(
    dag: TypedDag, convolution: ConvolutionClass | None = None, extents: Mapping[str, int] | None = None
) -> Signature:
    """The signature of packed tensors in the order of their subscripts, as ``evt emit`` assumes.

    They are aligned to 16 bytes, as far as ``extents`` let them be: those of the modes, and of A's and B's contiguous
    dimensions by their names where these are others.
    """
    extents = extents or {}
    natural = natural_operand_layout if convolution is None else natural_layout
    layouts = [(operand, natural(operand.dtype, operand.modes)) for operand in dag.operands]
    a, b = (
        aligned_to(layout, extents.get(operand.name, extents.get(layout.contiguous or "", 0)))
        for operand, layout in layouts
    )
    tensors = []
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if set(map(base, value.modes)) & {"m", "n"}:
            assert value.dtype is not None
            batched = convolution is None  # or may be
            shared = batched and isinstance(value, Input) and "l" not in value.modes and not value.batchable
            layout = natural_layout(value.dtype, value.modes, "shared" if shared else "strided")
            tensors.append(
                (value.name, aligned_to(layout, extents.get(layout.contiguous or "", 0) if value.is_tile else 0))
            )
    return Signature(a, b, tuple(tensors), convolution)


def configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """The configurations that a kernel of this problem may have, the general one first."""
    dtype = problem.dag.operands[0].dtype
    match problem.target.family(route.family):
        case "3x":
            known = (
                configs_conv_3x(dtype, problem.convolution)
                if route.of_convolutions
                else configs_3x(dtype, problem.signature.convolution)
            )
        case "sm100":
            known = configs_sm100(dtype, _columns(problem.dag))
        case "sm120":
            known = configs_sm120(dtype)
        case _:
            alignment = min(problem.signature.a.alignment, problem.signature.b.alignment)
            if route.kind == "mainloop":
                return (config_mainloop(dtype, alignment, of_a="A" in problem.dag.feeds),)
            shape = problem.signature.convolution
            if route.of_convolutions and shape is not None:
                return configs_conv_2x(dtype, padded_vector(problem) or alignment, shape, has_few_channels(problem))
            return (config_2x(dtype, alignment),)
    return tuple(config for config in known if visits_together(config, problem.dag))


def visits_together(config: Config, dag: TypedDag) -> bool:
    """Whether a 3.x epilogue visits at a time all columns that meet in a pair or a block."""
    return config.epilogue_tile[1] % _columns(dag) == 0


def _columns(dag: TypedDag) -> int:
    """How many columns a 3.x epilogue has to visit together: those of a pair of blocks, or of a block."""
    ops = map(dag.__getitem__, range(len(dag)))
    together = (2 * op.block if isinstance(op, Pick) else op.width for op in ops if isinstance(op, Pick | Fold))
    return max(together, default=1)


def default_configs(problem: Problem, route: Route) -> tuple[Config, ...]:
    """Those of :func:`configs` that are built for every kernel, to choose from by the problem's size."""
    uses = ("always", "light") if is_light(problem.dag) else ("always",)
    known = configs(problem, route)
    return tuple(config for config in known if config.use in uses) or known[:1]


def find_config(problem: Problem, route: Route, name: str) -> Config:
    """The configuration of a name. Raises TargetError (E0501) for an unknown one."""
    known = {config.name: config for config in configs(problem, route)}
    if name not in known:
        raise TargetError(
            Diagnostic(
                "E0501",
                f"the route {route.name} has no configuration `{name}`",
                help=f"configurations: {', '.join(known)}",
            )
        )
    return known[name]
