"""The routes to a kernel and the rules that admit them; ``evt explain`` prints both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evt.ir import Fold, Index, Input, Output, Pick, Random, Reduce, TypedDag
from evt.ir.dtype import B1
from evt.ir.node import base
from evt.plan.mainloop import not_fprop, not_worked, too_wide, unreadable, worked
from evt.plan.options import PLAIN, Options
from evt.plan.signature import Layout, Signature, bytes_of
from evt.plan.stock_rules import no_convolution_operator, no_fusion, no_operator, stepped_dgrad
from evt.plan.target import Target
from evt.plan.visitors import has_fixed_columns, is_collective, is_reduced

#: Inputs and outputs of one kernel: each is a visitor, whose templates nest, and takes kernel parameters.
MAX_TENSORS = 48


@dataclass(frozen=True, slots=True)
class Problem:
    """What the rules look at."""

    dag: TypedDag
    signature: Signature
    target: Target
    options: Options = PLAIN

    @property
    def operand_bytes(self) -> int:
        return bytes_of(self.dag.operands[0].dtype)

    @property
    def swaps_operands(self) -> bool:
        """Whether sm90 computes D' = B' A'.

        WGMMA takes 32-bit operands K-major only. CUTLASS transposes one of them on the way, and for a K-major A
        with an N-major B it does so by swapping A and B under an epilogue that is not told: the transposed problem
        needs no swap.
        """
        layouts = (self.signature.a.contiguous, self.signature.b.contiguous)
        return self.operand_bytes == 4 and layouts == ("k", "n")

    def tensor_bytes(self, name: str) -> int:
        value = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return bytes_of(value.dtype)


#: A rule: its statement, and the reason why a problem fails it, or None.
@dataclass(frozen=True, slots=True)
class Rule:
    statement: str
    failure: Callable[[Problem], str | None]


#: What a route's kernel is: a fused epilogue of CUTLASS's own, a visitor tree, work on an operand in the main loop, or
#: a kernel of ours.
Kind = Literal["stock", "evt", "mainloop", "own"]


@dataclass(frozen=True, slots=True)
class Route:
    """A way to compile a program. Routes are tried in the order of :data:`ROUTES`.

    ``of_convolutions``: by the kernel of a convolution, so that there is nothing to say of it for matrices.
    """

    name: str
    kind: Kind
    family: str
    summary: str
    rules: tuple[Rule, ...]
    of_convolutions: bool = False

    def failures(self, problem: Problem) -> tuple[str, ...]:
        """Why this route does not apply; empty when it does."""
        return tuple(reason for rule in self.rules if (reason := rule.failure(problem)))


def _runs_on(generation: str) -> Rule:
    def failure(problem: Problem) -> str | None:
        target = problem.target
        known = ("3x", "2x")
        if target.family(generation):
            return None
        return f"{target.name} runs CUTLASS {', '.join(each for each in known if target.family(each))}"

    return Rule(f"the target runs CUTLASS {generation} kernels", failure)


def _tma(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
        reason = _not_tma(operand.name, layout, problem.operand_bytes)
        if reason:
            return reason
    if not is_collective(dag.output["D"]) or is_reduced(dag, "D"):
        return None
    return _not_tma("D", signature["D"], problem.tensor_bytes("D"))


def _not_tma(name: str, layout: Layout, size: int) -> str | None:
    if layout.contiguous is None:
        return f"`{name}` has no mode with stride 1"
    if layout.alignment * size < 16:
        return (
            f"`{name}` is aligned to {layout.alignment * size} bytes: address, strides and extent along "
            f"`{layout.contiguous}` must be multiples of 16 bytes"
        )
    return None


def _contiguous(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    layouts = [(o.name, layout) for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)]
    if is_collective(dag.output["D"]) and not is_reduced(dag, "D"):
        layouts.append(("D", signature["D"]))
    for name, layout in layouts:
        if layout.contiguous is None:
            return f"`{name}` has no mode with stride 1"
    return None


def _tensor_cores(problem: Problem) -> str | None:
    """What the 3.x kernels of a target multiply."""
    a, b = (operand.dtype for operand in problem.dag.operands)
    if a.bits == 64:
        return "f64 is multiplied by the mma instructions of 2.x kernels"
    name = problem.target.name
    match problem.target.family("3x"):
        case "sm100":
            if not a.is_float and name != "sm100":
                return f"the tcgen05 instructions of {name} multiply floats only"
            if not a.is_float and a != b:
                return f"tcgen05 multiplies integers of one type, and A is {a}, B is {b}"
            return None
        case "sm120" if not (a.is_float and a.bits == 8):
            return f"CUTLASS 3.x multiplies 8-bit floats only on {name}, and A is {a}"
        case _:
            return _k_contiguous(problem)


def _k_contiguous(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    if problem.operand_bytes == 1:
        for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
            if layout.contiguous != "k":
                given = f"`{operand.name}` is contiguous along {layout.contiguous}"
                return f"8-bit operands must be contiguous along k, and {given}"
    return None


def _mma(problem: Problem) -> str | None:
    operand = problem.dag.operands[0].dtype
    if operand.is_float and operand.bits == 8 and problem.target.number < 89:
        return f"{problem.target.name} does not multiply {operand}; sm89 and later do"
    alignment = min(problem.signature.a.alignment, problem.signature.b.alignment)
    if problem.operand_bytes == 1 and alignment < 4:
        return f"8-bit operands must be aligned to 4 bytes, and one is aligned to {alignment}"
    return _k_contiguous(problem)


def _transposition(problem: Problem) -> str | None:
    """See ``is_transposed`` of the 3.x families' planners."""
    if not has_fixed_columns(problem.dag):
        return None
    match problem.target.family("3x"):
        case "3x" if problem.swaps_operands:
            return "f32 A along k with B along n is computed as the transposed problem"
        case "sm100" if reads_columns(problem):
            return "a column-major D of 16 bits is computed as the transposed problem"
    return None


def reads_columns(problem: Problem) -> bool:
    """Whether threads of sm100 would be given columns of a program that is computed by places in rows.

    CUTLASS deals sums out by rows, but for a column-major D of 16 bits.
    """
    dag = problem.dag
    stored = is_collective(dag.output["D"]) and not is_reduced(dag, "D")
    if not stored or problem.signature["D"].contiguous == "n" or problem.tensor_bytes("D") != 2:
        return False
    return placed(dag) is not None


def placed(dag: TypedDag) -> str | None:
    """What of a program needs to know where in the tile a thread's elements are, in words, if anything does."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    if any(value.dtype == B1 for value in values):
        return "packed bits"
    for op in map(dag.__getitem__, range(len(dag))):
        match op:
            case Reduce():
                return "reductions"
            case Pick():
                return "pairs of columns"
            case Fold():
                return "blocks of columns"
            case Index():
                return "coordinates"
            case Random():
                return "random numbers"
    return "pairs and blocks of columns" if any("/" in mode for value in values for mode in value.modes) else None


def _places(problem: Problem) -> str | None:
    what = placed(problem.dag)
    if problem.target.family("3x") != "sm120" or what is None:
        return None
    return f"there are no 3.x visitors for {what} on {problem.target.name}"


def _tiles(problem: Problem) -> str | None:
    """Nodes that take their columns from registers need them along the kernel's own columns, in row-major tensors."""
    if not has_fixed_columns(problem.dag):
        return None
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    for value in values:
        own = value.dtype == B1 or any("/" in mode for mode in value.modes)
        if own and value.is_tile and base(value.modes[-1]) != "n":
            return f"`{value.name}` is [{', '.join(value.modes)}]: bits, pairs and blocks are stored along n"
    return None


def _few_tensors(problem: Problem) -> str | None:
    count = len(problem.dag.inputs) + len(problem.dag.outputs)
    return f"there are {count} inputs and outputs; at most {MAX_TENSORS}" if count > MAX_TENSORS else None


def _matrices(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    return (convolution.not_matrices or None) if convolution else None


def _convolved(problem: Problem) -> str | None:
    """What mma instructions multiply, of the iterators of convolutions."""
    a = problem.dag.operands[0].dtype
    if a.bits == 64:
        return "CUTLASS's convolutions have no f64"
    convolution = problem.signature.convolution
    assert convolution is not None
    if a.bits == 8 and convolution.operator != "fprop":
        return f"8-bit operands must be contiguous along k, and the channels of {convolution.operator} are not"
    return _mma(problem)


def _sm90(problem: Problem) -> str | None:
    return None if problem.target.family("3x") == "3x" else f"the target is {problem.target.name}"


def _collective_operator(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    if convolution.operator == "wgrad":
        return "visitors do not know the nested columns of wgrad, which are taps and channels"
    if convolution.group_filters:
        return "the collectives have no groups"
    return _unit_dgrad(problem)


def _collective_types(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    a, b = (operand.dtype for operand in problem.dag.operands)
    if a.bits == 64:
        return "f64 is multiplied by the mma instructions of 2.x kernels"
    if a.bits != 16 and convolution.operator == "dgrad":
        return f"WGMMA takes {a} along k only, and the filters of dgrad are not"
    return None


def _im2col(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    return None if convolution.im2col else "a stride is beyond 8, or padding or dilated filters reach too far"


def has_few_channels(problem: Problem) -> bool:
    """Whether CUTLASS's iterators for few channels pack taps together, which the others pad to a tile's depth."""
    shape = problem.signature.convolution
    assert shape is not None
    first = shape.operator == "fprop" and shape.rank == 2 and not shape.group_filters and not shape.large_filter
    return first and shape.few_channels > 0 and problem.operand_bytes == 2


def _unit_dgrad(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    if convolution.operator != "dgrad" or convolution.unit_stride:
        return None
    return "CUTLASS permutes the rows of a dgrad with a stride, of which visitors know nothing"


def _groups(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    if not convolution.group_filters:
        return None
    if convolution.operator != "fprop" or convolution.rank == 3:
        return "CUTLASS has groups for the fprop of one and two dimensions only"
    if convolution.group_channels * problem.operand_bytes < 4:
        given = f"{convolution.group_channels} channels"
        return f"a group's channels must be multiples of 4 bytes, and are {given}: depthwise needs a kernel of its own"
    filters = convolution.group_filters
    if filters < 64 and 64 % filters:
        return f"a group has {filters} filters, which divide no tile of 64 columns and are divided by none"
    return None


def _volumes(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    if convolution.rank < 3:
        return None
    for operand, layout in zip(problem.dag.operands, (problem.signature.a, problem.signature.b), strict=True):
        if layout.alignment * problem.operand_bytes < 16:
            size = layout.alignment * problem.operand_bytes
            return f"CUTLASS's iterators of volumes take 16 bytes at a time, and `{operand.name}` is aligned to {size}"
    return None


def _whole_columns(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    assert convolution is not None
    if convolution.operator != "wgrad" or not has_fixed_columns(problem.dag):
        return None
    return "the columns of a weight's gradient are taps and channels: they are not packed, paired or taken in blocks"


def _of_program(failure: Callable[[TypedDag], str | None]) -> Callable[[Problem], str | None]:
    return lambda problem: failure(problem.dag)


def _work_of_fprop(problem: Problem) -> str | None:
    assert problem.signature.convolution is not None
    return not_fprop(problem.dag, problem.signature.convolution)


_NO_WORK = Rule("the operands are multiplied as they are", _of_program(worked))
_WORK = (
    Rule("an operand is worked on", _of_program(not_worked)),
    Rule("operands have at most 32 bits", _of_program(too_wide)),
    Rule("formulas of operands read vectors and scalars that are the same for every batch", _of_program(unreadable)),
)
_MATRICES = Rule(
    "the operation is a product of matrices, as a 1x1 convolution of stride 1 without padding is", _matrices
)
_TILES = Rule("packed, paired and blocked columns are row-major", _tiles)
_FEW_TENSORS = Rule(f"there are at most {MAX_TENSORS} inputs and outputs", _few_tensors)

_GEMM_3X = (
    _runs_on("3x"),
    _NO_WORK,
    _MATRICES,
    _FEW_TENSORS,
    _TILES,
    Rule("the target's 3.x kernels multiply the operands' types and layouts", _tensor_cores),
    Rule("no transposition is needed where columns are packed or paired", _transposition),
    Rule("the target has 3.x visitors for all that depends on an element's place", _places),
    Rule(
        "A, B and D can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents",
        _tma,
    ),
)
_PLAIN_2X = (
    _runs_on("2x"),
    _MATRICES,
    _FEW_TENSORS,
    _TILES,
    Rule("mma instructions multiply the operands' types and layouts", _mma),
    Rule("A, B and D have a mode with stride 1", _contiguous),
)
_GEMM_2X = (_NO_WORK, *_PLAIN_2X)

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
        "conv-evt-3x",
        "evt",
        "3x",
        "visitor tree in the implicit-GEMM collectives of sm90 (CUTLASS 3.x: TMA im2col, WGMMA)",
        (
            Rule("the target has implicit-GEMM collectives of CUTLASS 3.x that evt uses: sm90", _sm90),
            _NO_WORK,
            _FEW_TENSORS,
            _TILES,
            Rule("the collectives take the operator", _collective_operator),
            Rule("the collectives take the operands' types", _collective_types),
            Rule("TMA's im2col mode reaches all taps", _im2col),
            Rule("A, B and D can be moved by TMA: 16-byte aligned addresses, strides and channels", _tma),
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
            _runs_on("2x"),
            _NO_WORK,
            Rule("mma instructions multiply the operands' types and layouts", _convolved),
            Rule("a gradient of the input with a stride has no dilation", stepped_dgrad),
            Rule("groups, if any, fill the instructions' tiles", _groups),
            Rule("operands of volumes are aligned to 16 bytes", _volumes),
        ),
        of_convolutions=True,
    ),
    Route(
        "conv-evt-2x",
        "evt",
        "2x",
        "visitor tree on the multistage implicit-GEMM main loop (CUTLASS 2.x), joined by a kernel of ours",
        (
            _runs_on("2x"),
            _NO_WORK,
            _FEW_TENSORS,
            _TILES,
            Rule("columns are whole where they are taps and channels", _whole_columns),
            Rule("mma instructions multiply the operands' types and layouts", _convolved),
            Rule("a gradient of the input has stride 1", _unit_dgrad),
            Rule("groups, if any, fill the instructions' tiles", _groups),
            Rule("operands of volumes are aligned to 16 bytes", _volumes),
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
            _runs_on("2x"),
            _FEW_TENSORS,
            _TILES,
            Rule("mma instructions multiply the operands' types and layouts", _convolved),
        ),
        of_convolutions=True,
    ),
)


def candidates(problem: Problem) -> tuple[Route, ...]:
    """The routes that there are for a problem, in order of preference."""
    return tuple(route for route in ROUTES if problem.signature.convolution or not route.of_convolutions)
