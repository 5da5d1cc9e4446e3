"""The rules of kernels of matrix products: each gives the reason why a problem fails it, or None."""

from __future__ import annotations

from evt.ir import Fold, Index, Input, Output, Pick, Random, Reduce, TypedDag
from evt.ir.dtype import B1
from evt.ir.node import base
from evt.plan.epilogue.visitors import has_fixed_columns, is_collective, is_reduced
from evt.plan.problem import Problem, Rule
from evt.plan.signature import Layout

#: Inputs and outputs of one kernel: each is a visitor, whose templates nest, and takes kernel parameters.
MAX_TENSORS = 48


def runs_on(generation: str) -> Rule:
    def failure(problem: Problem) -> str | None:
        target = problem.target
        known = ("3x", "2x")
        if target.family(generation):
            return None
        return f"{target.name} runs CUTLASS {', '.join(each for each in known if target.family(each))}"

    return Rule(f"the target runs CUTLASS {generation} kernels", failure)


def tma(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    for operand, layout in zip(dag.operands, (signature.a, signature.b), strict=True):
        reason = _not_tma(operand.name, layout, problem.operand_bytes)
        if reason:
            return reason
    return tma_output(problem)


def tma_output(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
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


def contiguous(problem: Problem) -> str | None:
    dag, signature = problem.dag, problem.signature
    layouts = [(o.name, layout) for o, layout in zip(dag.operands, (signature.a, signature.b), strict=True)]
    if is_collective(dag.output["D"]) and not is_reduced(dag, "D"):
        layouts.append(("D", signature["D"]))
    for name, layout in layouts:
        if layout.contiguous is None:
            return f"`{name}` has no mode with stride 1"
    return None


def tensor_cores(problem: Problem) -> str | None:
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


def mma(problem: Problem, padded_bytes: int = 0) -> str | None:
    """``padded_bytes`` is the alignment of copies that are read instead of the operands."""
    operand = problem.dag.operands[0].dtype
    if operand.is_float and operand.bits == 8 and problem.target.number < 89:
        return f"{problem.target.name} does not multiply {operand}; sm89 and later do"
    alignment = padded_bytes or min(problem.signature.a.alignment, problem.signature.b.alignment)
    if problem.operand_bytes == 1 and alignment < 4:
        return f"8-bit operands must be aligned to 4 bytes, and one is aligned to {alignment}"
    return _k_contiguous(problem)


def transposition(problem: Problem) -> str | None:
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


def places(problem: Problem) -> str | None:
    what = placed(problem.dag)
    if problem.target.family("3x") != "sm120" or what is None:
        return None
    return f"there are no 3.x visitors for {what} on {problem.target.name}"


def tiles(problem: Problem) -> str | None:
    """Nodes that take their columns from registers need them along the kernel's own columns, in row-major tensors."""
    if not has_fixed_columns(problem.dag):
        return None
    values: tuple[Input | Output, ...] = (*problem.dag.inputs, *problem.dag.outputs)
    for value in values:
        own = value.dtype == B1 or any("/" in mode for mode in value.modes)
        if own and value.is_tile and base(value.modes[-1]) != "n":
            return f"`{value.name}` is [{', '.join(value.modes)}]: bits, pairs and blocks are stored along n"
    return None


def few_tensors(problem: Problem) -> str | None:
    count = len(problem.dag.inputs) + len(problem.dag.outputs)
    return f"there are {count} inputs and outputs; at most {MAX_TENSORS}" if count > MAX_TENSORS else None


def matrices(problem: Problem) -> str | None:
    convolution = problem.signature.convolution
    return (convolution.not_matrices or None) if convolution else None
