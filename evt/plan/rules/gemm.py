"""The rules of matrix products; convolutions share many of them."""

from __future__ import annotations

from collections.abc import Mapping

from evt.diagnostics import Span
from evt.ir import Index, Input, Interleave, Output, Pick, Random, Reduce, ReduceBlocks, TypedDag
from evt.ir.dtype import B1, I32, accumulator
from evt.ir.node import IMAGES, base, is_divided
from evt.plan.epilogue.facts import has_fixed_columns, stores_d
from evt.plan.problem import Problem
from evt.plan.rules.rule import Check, Rule, rule
from evt.plan.signature import LayoutClass, bytes_of
from evt.plan.target import Family, Generation
from evt.plan.verdict import HOLDS, Refusal, Verdict

#: The most inputs and outputs of one kernel: each is a visitor, whose templates nest, and takes kernel parameters.
MAX_TENSORS = 48


_VERSIONS: dict[Generation, str] = {"2x": "2.x", "3x": "3.x"}


def _runs_on(generation: Generation) -> Rule:
    @rule(f"the target runs CUTLASS {_VERSIONS[generation]} kernels")
    def runs_on(problem: Problem) -> Verdict:
        target = problem.target
        if generation in target.generations:
            return HOLDS
        return Refusal(f"{target.name} runs CUTLASS {', '.join(map(_VERSIONS.__getitem__, target.generations))}")

    return runs_on


runs_2x = _runs_on("2x")
runs_3x = _runs_on("3x")


@rule("the operation is a matrix product (a 1x1, stride-1, unpadded convolution counts)")
def matrices(problem: Problem) -> Verdict:
    convolution = problem.signature.convolution
    return Refusal(convolution.not_matrices) if convolution and convolution.not_matrices else HOLDS


@rule(f"there are at most {MAX_TENSORS} inputs and outputs")
def few_tensors(problem: Problem) -> Verdict:
    count = len(problem.dag.inputs) + len(problem.dag.outputs)
    return Refusal(f"there are {count} inputs and outputs; at most {MAX_TENSORS}") if count > MAX_TENSORS else HOLDS


@rule("no reduction has a result for each image")
def of_all_images(problem: Problem) -> Verdict:
    for node, (op, _) in enumerate(problem.dag.table):
        if isinstance(op, Reduce) and IMAGES in op.modes:
            return Refusal("tiles span several images, and a reduction has a result for each image", node)
    return HOLDS


@rule("tensors with packed bits, pairs or blocks of columns are row-major")
def row_major_columns(problem: Problem) -> Verdict:
    """Check the columns: nodes that take them from registers need the kernel's own columns, in row-major tensors."""
    if not has_fixed_columns(problem.dag):
        return HOLDS
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    for value in values:
        own = value.dtype == B1 or any(is_divided(mode) for mode in value.modes)
        if own and value.is_tile and base(value.modes[-1]) != "n":
            return Refusal(
                f"`{value.name}` is [{', '.join(value.modes)}]: bits, pairs and blocks are stored along n", value.span
            )
    return HOLDS


@rule("pairs and blocks of columns fit in the part of a row that a warp stores")
def columns_in_row(problem: Problem) -> Verdict:
    """Check the thread map of CUTLASS 2.x: a warp has 256 bytes of a row, of i32 sums or of 16-bit values."""
    most = 64 if accumulator(problem.dag.operands[0].dtype) == I32 else 128
    if problem.columns_together <= most:
        return HOLDS
    widest = [node for node, (op, _) in enumerate(problem.dag.table) if isinstance(op, ReduceBlocks)]
    reason = f"{problem.columns_together} columns are taken together, and at most {most}"
    return Refusal(f"{reason}; a block of pairs covers twice its width", widest[0])


#: The most columns of a sub-tile whose packed bits a quad of threads moves, a word each: see lanes_sm90.hpp.
_MASKED_COLUMNS = 64


@rule(f"a program with packed bits has pairs and blocks of at most {_MASKED_COLUMNS} columns")
def masked_columns(problem: Problem) -> Verdict:
    """Check kernels of sm90, whose sub-tiles are as wide as blocks and pairs are."""
    if problem.target.family("3x") != "3x" or problem.columns_together <= _MASKED_COLUMNS:
        return HOLDS
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    for value in values:
        if value.dtype == B1:
            reason = f"`{value.name}` is b1, and {problem.columns_together} columns are taken together"
            return Refusal(f"{reason}: beside bits, at most {_MASKED_COLUMNS}", value.span)
    return HOLDS


# The operands that the instructions multiply.


@rule("mma instructions multiply the operands' types and layouts")
def mma(problem: Problem) -> Verdict:
    return multiplied_by_mma(problem, problem.operand_alignment)


def multiplied_by_mma(problem: Problem, alignment: int) -> Verdict:
    """Check that mma instructions multiply operands, or copies of them, of an alignment in elements."""
    operand, declared = problem.dag.operands[0].dtype, problem.dag.operands[0].span
    if operand.is_float and operand.bits == 8 and problem.target.number < 89:
        return Refusal(f"{problem.target.name} does not multiply {operand}; sm89 and later do", declared)
    if problem.operand_bytes == 1 and alignment < 4:
        return Refusal(f"8-bit operands must be aligned to 4 bytes, and one is aligned to {alignment}")
    return _along_k(problem)


@rule("the target's 3.x kernels multiply the operands' types and layouts")
def tensor_cores(problem: Problem) -> Verdict:
    if problem.dag.operands[0].dtype.bits == 64:
        return Refusal("f64 is multiplied by the mma instructions of 2.x kernels", problem.dag.operands[0].span)
    multiplied = _MULTIPLIED.get(problem.target.family("3x"), _along_k)
    return multiplied(problem)


def _multiplied_by_tcgen05(problem: Problem) -> Verdict:
    name, (a, b) = problem.target.name, (operand.dtype for operand in problem.dag.operands)
    declared = problem.dag.operands[0].span
    if not a.is_float and name != "sm100":
        return Refusal(f"the tcgen05 instructions of {name} multiply floats only", declared)
    if not a.is_float and a != b:
        return Refusal(f"tcgen05 multiplies integers of one type, and A is {a}, B is {b}", declared)
    return HOLDS


def _multiplied_by_sm120(problem: Problem) -> Verdict:
    a, declared = problem.dag.operands[0].dtype, problem.dag.operands[0].span
    if not (a.is_float and a.bits == 8):
        return Refusal(f"CUTLASS 3.x multiplies 8-bit floats only on {problem.target.name}, and A is {a}", declared)
    return _along_k(problem)


def _along_k(problem: Problem) -> Verdict:
    dag, signature = problem.dag, problem.signature
    if problem.operand_bytes == 1:
        for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
            if layout.contiguous != "k":
                given = f"`{operand.name}` is contiguous along {layout.contiguous}"
                return Refusal(f"8-bit operands must be contiguous along k, and {given}", operand.span)
    return HOLDS


#: The checks of a family's operands, if they differ from WGMMA's.
_MULTIPLIED: Mapping[Family | None, Check] = {"sm100": _multiplied_by_tcgen05, "sm120": _multiplied_by_sm120}


# The tensors that TMA moves.


@rule("A and B each have a mode with stride 1")
def contiguous(problem: Problem) -> Verdict:
    signature = problem.signature
    for operand, layout in zip(problem.dag.operands, (signature.a, signature.b), strict=True):
        if layout.contiguous is None:
            return _no_stride_1(operand.name)
    return HOLDS


def moved_by_tma(problem: Problem) -> Verdict:
    operands = operands_moved_by_tma(problem)
    return operands if isinstance(operands, Refusal) else d_moved_by_tma(problem)


def operands_moved_by_tma(problem: Problem) -> Verdict:
    dag, signature = problem.dag, problem.signature
    for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
        verdict = moved(operand.name, layout, bytes_of(operand.dtype))
        if isinstance(verdict, Refusal):
            return verdict
    return HOLDS


def d_moved_by_tma(problem: Problem) -> Verdict:
    """Return whether TMA moves D; if none of its modes has stride 1, a step of the epilogue stores it."""
    name = problem.dag.primary.name
    stored = stores_d(problem.dag, problem.signature)
    return moved(name, problem.signature[name], problem.tensor_bytes(name)) if stored else HOLDS


tma = Rule(
    "A, B and D can be moved by TMA: 16-byte aligned addresses, strides and contiguous extents", moved_by_tma, "tma"
)


def moved(name: str, layout: LayoutClass, size: int) -> Verdict:
    """Return whether TMA moves a tensor; ``size`` is the bytes of an element."""
    if layout.contiguous is None:
        return _no_stride_1(name)
    if layout.alignment * size < 16:
        return Refusal(
            f"`{name}` is aligned to {layout.alignment * size} bytes: address, strides and extent along "
            f"`{layout.contiguous}` must be multiples of 16 bytes"
        )
    return HOLDS


def _no_stride_1(name: str) -> Refusal:
    return Refusal(f"`{name}` has no mode with stride 1")


# Steps that depend on the place of an element.


@rule("a program with packed bits, pairs or blocks of columns is not computed as its transpose")
def transposition(problem: Problem) -> Verdict:
    """See ``is_transposed`` of the planners of 3.x kernels."""
    if not has_fixed_columns(problem.dag):
        return HOLDS
    if problem.swaps_operands:
        return Refusal("f32 A along k with B along n is computed as the transposed problem")
    if problem.target.family("3x") == "sm100" and reads_columns(problem):
        return Refusal("a column-major D of 16 bits is computed as the transposed problem")
    return HOLDS


def reads_columns(problem: Problem) -> bool:
    """Return whether threads of sm100 would get columns, for a program whose steps need rows.

    CUTLASS distributes sums by rows, except for a column-major D of 16 bits.
    """
    name = problem.dag.primary.name
    if (
        not stores_d(problem.dag, problem.signature)
        or problem.signature[name].contiguous == "n"
        or problem.tensor_bytes(name) != 2
    ):
        return False
    return _placed(problem.dag) is not None


@rule("the target has 3.x visitors for steps that depend on the coordinates of an element")
def places(problem: Problem) -> Verdict:
    found = _placed(problem.dag) if problem.target.family("3x") == "sm120" else None
    if found is None:
        return HOLDS
    words, place = found
    return Refusal(f"there are no 3.x visitors for {words} on {problem.target.name}", place)


def _placed(dag: TypedDag) -> tuple[str, int | Span | None] | None:
    """Return the part of a program that needs the place of a thread's elements in the tile, in words, and its span."""
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    for value in values:
        if value.dtype == B1:
            return "packed bits", value.span
        if value.is_indexed:
            return "rows or columns that an index names", value.span
    for node, (op, _) in enumerate(dag.table):
        match op:
            case Reduce():
                return "reductions", node
            case Pick() | Interleave():
                return "pairs of columns", node
            case ReduceBlocks():
                return "blocks of columns", node
            case Index():
                return "coordinates", node
            case Random():
                return "random numbers", node
    for output in dag.outputs:
        if not output.is_tile:
            return "rows or columns alone", output.span
    divided = (value.span for value in values if any(is_divided(mode) for mode in value.modes))
    return next((("pairs and blocks of columns", span) for span in divided), None)
