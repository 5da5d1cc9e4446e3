"""The routes to a kernel, in order of preference; ``evt explain`` prints them with their rules.

Newer generations of CUTLASS come first; within one, its own fused epilogues, then visitor trees, then work on an
operand in the main loop, then kernels of ours. A measurement of ``evt tune`` overrides the order.
"""

from __future__ import annotations

from collections.abc import Callable

from evt.diagnostics import Diagnostic
from evt.errors import TargetError
from evt.ir import TypedDag
from evt.plan.problem import Problem, Route, Rule
from evt.plan.rules import convolution as of_convolution
from evt.plan.rules.gemm import (
    MAX_TENSORS,
    contiguous,
    few_tensors,
    matrices,
    mma,
    places,
    runs_on,
    tensor_cores,
    tiles,
    tma,
    tma_output,
    transposition,
)
from evt.plan.rules.mainloop import not_fprop, not_worked, too_wide, unreadable, worked
from evt.plan.stock.rules import no_convolution_operator, no_fusion, no_operator, stepped_dgrad


def _of_program(failure: Callable[[TypedDag], str | None]) -> Callable[[Problem], str | None]:
    return lambda problem: failure(problem.dag)


def _work_of_fprop(problem: Problem) -> str | None:
    return not_fprop(problem.dag, problem.convolution)


_NO_WORK = Rule("the operands are multiplied as they are", _of_program(worked))
_WORK = (
    Rule("an operand is worked on", _of_program(not_worked)),
    Rule("operands have at most 32 bits", _of_program(too_wide)),
    Rule("formulas of operands read vectors and scalars that are the same for every batch", _of_program(unreadable)),
)
_MATRICES = Rule(
    "the operation is a product of matrices, as a 1x1 convolution of stride 1 without padding is", matrices
)
_TILES = Rule("packed, paired and blocked columns are row-major", tiles)
_FEW_TENSORS = Rule(f"there are at most {MAX_TENSORS} inputs and outputs", few_tensors)

_GEMM_3X = (
    runs_on("3x"),
    _NO_WORK,
    _MATRICES,
    _FEW_TENSORS,
    _TILES,
    Rule("the target's 3.x kernels multiply the operands' types and layouts", tensor_cores),
    Rule("no transposition is needed where columns are packed or paired", transposition),
    Rule("the target has 3.x visitors for all that depends on an element's place", places),
    Rule(
        "A, B and D can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents",
        tma,
    ),
)
_PLAIN_2X = (
    runs_on("2x"),
    _MATRICES,
    _FEW_TENSORS,
    _TILES,
    Rule("mma instructions multiply the operands' types and layouts", mma),
    Rule("A, B and D have a mode with stride 1", contiguous),
)
_GEMM_2X = (_NO_WORK, *_PLAIN_2X)
_CONVOLVED_2X = (
    Rule("mma instructions multiply the operands' types and layouts", of_convolution.convolved),
    Rule("operands are smaller than 2 GiB", of_convolution.small_operands),
)
_WHOLE_TILES_2X = (
    Rule("groups, if any, fill the instructions' tiles", of_convolution.groups),
    Rule("gradients of volumes have operands that are aligned to 16 bytes", of_convolution.volumes),
)

_SM90 = Rule("the target has implicit-GEMM collectives of CUTLASS 3.x that evt uses: sm90", of_convolution.of_sm90)

ROUTES: tuple[Route, ...] = (
    Route(
        "stock-3x",
        "stock",
        "3x",
        "fusion operation of CUTLASS's own in a TMA warp-specialised kernel (CUTLASS 3.x)",
        (
            Rule("the formula is what a fusion operation computes", no_fusion),
            *_GEMM_3X,
        ),
    ),
    Route(
        "evt-3x",
        "evt",
        "3x",
        "visitor tree in a TMA warp-specialised kernel (CUTLASS 3.x)",
        _GEMM_3X,
    ),
    Route(
        "conv-padded-3x",
        "evt",
        "3x",
        "visitor tree in the implicit-GEMM collectives of sm90, over copies with padded channels (CUTLASS 3.x)",
        (
            _SM90,
            _NO_WORK,
            _FEW_TENSORS,
            _TILES,
            Rule("channels are few, or no whole vectors, and copies of the operands are", of_convolution.padded),
            Rule("the collectives take the operands' types", of_convolution.collective_types),
            Rule("D can be moved by TMA: 16-byte aligned address, strides and channels", tma_output),
        ),
        of_convolutions=True,
    ),
    Route(
        "conv-evt-3x",
        "evt",
        "3x",
        "visitor tree in the implicit-GEMM collectives of sm90 (CUTLASS 3.x: TMA im2col, WGMMA)",
        (
            _SM90,
            _NO_WORK,
            _FEW_TENSORS,
            _TILES,
            Rule("the collectives take the operator", of_convolution.collective_operator),
            Rule("the collectives take the operands' types", of_convolution.collective_types),
            Rule("TMA's im2col mode reaches all taps", of_convolution.im2col),
            Rule("A, B and D can be moved by TMA: 16-byte aligned addresses, strides and channels", tma),
        ),
        of_convolutions=True,
    ),
    Route(
        "stock-2x",
        "stock",
        "2x",
        "output operator of CUTLASS's own in a multistage tensor-op kernel (CUTLASS 2.x)",
        (
            Rule("the formula is what an output operator computes", no_operator),
            *_GEMM_2X,
        ),
    ),
    Route(
        "evt-2x",
        "evt",
        "2x",
        "visitor tree in a multistage tensor-op kernel (CUTLASS 2.x)",
        _GEMM_2X,
    ),
    Route(
        "conv-stock-2x",
        "stock",
        "2x",
        "output operator of CUTLASS's own on the multistage implicit-GEMM main loop (CUTLASS 2.x)",
        (
            Rule("the formula is what an output operator computes", no_convolution_operator),
            runs_on("2x"),
            _NO_WORK,
            *_CONVOLVED_2X,
            Rule("a gradient of the input with a stride has no dilation", stepped_dgrad),
            *_WHOLE_TILES_2X,
        ),
        of_convolutions=True,
    ),
    Route(
        "conv-evt-2x",
        "evt",
        "2x",
        "visitor tree on the multistage implicit-GEMM main loop (CUTLASS 2.x), joined by a kernel of ours",
        (
            runs_on("2x"),
            _NO_WORK,
            _FEW_TENSORS,
            _TILES,
            *_CONVOLVED_2X,
            Rule("a gradient of the input has stride 1", of_convolution.unit_dgrad),
            *_WHOLE_TILES_2X,
        ),
        of_convolutions=True,
    ),
    Route(
        "mainloop-2x",
        "mainloop",
        "2x",
        "work on an operand in the main loop of a multistage tensor-op kernel, visitor tree (CUTLASS 2.x)",
        (*_WORK, *_PLAIN_2X),
    ),
    Route(
        "conv-mainloop-2x",
        "mainloop",
        "2x",
        "work on the activation in the multistage implicit-GEMM main loop, visitor tree (CUTLASS 2.x)",
        (
            *_WORK,
            Rule("A of a fprop of one or two dimensions without groups is worked on", _work_of_fprop),
            runs_on("2x"),
            _FEW_TENSORS,
            _TILES,
            *_CONVOLVED_2X,
        ),
        of_convolutions=True,
    ),
    # Here comes a persistent convolution of our own on sm90, of the kind "own".
)


def candidates(problem: Problem) -> tuple[Route, ...]:
    """The routes that there are for a problem, in order of preference."""
    return tuple(route for route in ROUTES if problem.signature.convolution or not route.of_convolutions)


def find_routes(problem: Problem, named: str | None = None) -> tuple[Route, ...]:
    """The routes that there are for a problem; ``named`` is the name of one, or a kind of routes.

    Raises TargetError (E0501) for an unknown one.
    """
    known = candidates(problem)
    routes = tuple(route for route in known if named in (None, route.name, route.kind))
    if not routes:
        names = ", ".join(dict.fromkeys([route.name for route in known] + [route.kind for route in known]))
        raise TargetError(Diagnostic("E0501", f"there is no route `{named}`", help=f"routes: {names}"))
    return routes


def find_route(name: str) -> Route:
    """The route of a name, which there is."""
    return next(route for route in ROUTES if route.name == name)
