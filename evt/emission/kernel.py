"""A whole kernel as text: ``spell(plan) -> KernelText``."""

from __future__ import annotations

from collections.abc import Sequence

from evt.emission.checks import checks
from evt.emission.configuration import configuration
from evt.emission.convolution import convolution
from evt.emission.epilogue import visitors
from evt.emission.expressions import as_int, comment, element
from evt.emission.fragment import fragment
from evt.emission.functors import functors
from evt.emission.headers import placed
from evt.emission.interface import members, rows
from evt.emission.operands import operands, tensor
from evt.emission.own import own
from evt.emission.stock import fusion_node, stock_text
from evt.emission.text import GroupValueText, KernelText, NestText, TensorText, namespace
from evt.emission.work import work, worked
from evt.emission.workspace import jobs_after, jobs_before, parts
from evt.plan import Field, Plan
from evt.plan.epilogue.broadcasts import ScalarBroadcast, VectorBroadcast
from evt.plan.epilogue.program import EpilogueProgram
from evt.plan.epilogue.values import Single
from evt.plan.moved import moved
from evt.plan.plan import GroupedPlan, HaloConvolution, Image, Matrix, OwnProduct, Tensor
from evt.plan.signature import bytes_of
from evt.plan.stock_epilogue import StockOperator
from evt.resources import NVCC_FLAGS


def spell(plan: Plan, name: str = "") -> KernelText:
    """Return everything that the plan's template prints. External names begin with ``name``."""
    a, b = operands(plan)
    spelled = convolution(plan)
    config = configuration(plan)
    found = (spelled.kernel, spelled.headers[0]) if spelled else ("", "")
    return KernelText(
        name=name,
        plan=plan,
        members=members(plan),
        rows=rows(plan),
        functions=tuple(placed(each, namespace(name)) for each in plan.functions),
        program=_comments(plan.program.strip().splitlines()),
        interface=_comments(plan.interface),
        remark=", computed as the transposed problem" if plan.transposed else "",
        config=config,
        arch_tag=f"cutlass::arch::Sm{plan.instructions}",
        math_operator=_math_operator(plan),
        accumulator=plan.accumulator.cutlass,
        epilogue_element=plan.epilogue_dtype.cutlass,
        # CUTLASS's collective of sm100 stores a D of every tile.
        epilogue_wrapper="evt::unstored" if plan.family == "sm100" and plan.destination is None else "",
        checked_columns=_checked_columns(plan),
        a=a,
        b=b,
        source=tensor(plan, "C", plan.source),
        destination=_destination(plan),
        aligned=_aligned(plan),
        checks=checks(plan.fields, "arguments->{}".format, stock=isinstance(plan.epilogue, StockOperator)),
        row_checks=checks(plan.group_fields, _word) if isinstance(plan, GroupedPlan) else None,
        flags=NVCC_FLAGS,
        functors=functors(plan),
        nest=_nest(plan),
        parts=parts(plan),
        before=jobs_before(plan),
        after=jobs_after(plan),
        convolution=spelled,
        own=own(plan),
        stock=stock_text(plan, config.threadblock_swizzle, found),
        work=work(plan),
        worked=worked(plan),
        group_fields=plan.group_fields if isinstance(plan, GroupedPlan) else (),
        group_values=_group_values(plan),
        fragment=fragment(plan) if plan.family == "own" else None,
    )


def _word(field: Field) -> str:
    """Return a group's word of a row, as a pointer or as a size."""
    return f"{'pointer' if field.kind == 'pointer' else 'size'}(row_{field.name})"


def _comments(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines of a comment, at most 40."""
    safe = map(comment, lines[:40])
    return (*safe, "...") if len(lines) > 40 else tuple(safe)


def _math_operator(plan: Plan) -> str:
    """Return CUTLASS 2.x's tag of the multiply-add."""
    if plan.family != "2x":
        return ""
    return f"cutlass::arch::OpMultiplyAdd{'' if plan.mainloop.a.dtype.is_float else 'Saturate'}"


def _checked_columns(plan: Plan) -> str:
    """Return the extent whose alignment CUTLASS checks, rounded up if the epilogue needs no whole accesses."""
    columns, access = as_int(f"arguments.{plan.columns}"), plan.elements_per_access
    return columns if plan.whole_accesses else f"({columns} + {access - 1}) / {access} * {access}"


def _destination(plan: Plan) -> TensorText:
    """Return D of the collective; in 2.x, the element type that determines the epilogue's thread map."""
    if plan.family == "2x":
        return TensorText(plan.epilogue_dtype.cutlass, "cutlass::layout::RowMajor", plan.elements_per_access)
    return tensor(plan, "D", plan.destination)


#: The alignment of all that TMA moves; threads load operands that are aligned to less.
_TMA_BYTES = 16


def _aligned(plan: Plan) -> tuple[str, ...]:
    """Return the addresses of operands and tiles that TMA moves, and their strides in bytes; copies need no check.

    CUTLASS itself checks the extents only.
    """
    if plan.family == "2x" or isinstance(plan, GroupedPlan):
        return ()
    found = []
    of_product: list[Matrix | Image | Tensor] = [
        each
        for each in (plan.mainloop.a, plan.mainloop.b)
        if isinstance(each, Matrix | Image) and each.alignment * bytes_of(each.dtype) >= _TMA_BYTES
    ]
    by_threads = isinstance(plan.mainloop, HaloConvolution) and plan.mainloop.stored > 0
    loads, stores = moved(plan)
    if isinstance(plan.mainloop, OwnProduct) and plan.mainloop.unaligned:
        loads, stores = (), ()
    for each in (*of_product, *loads, *(() if by_threads else stores)):
        strides = (each.leading, each.batch) if isinstance(each, Matrix) else each.strides
        found.append(f"arguments->{each.pointer}")
        found += [f"arguments->{stride} * {bytes_of(each.dtype)}" for stride in strides if isinstance(stride, Field)]
    return tuple(dict.fromkeys(found))


def _nest(plan: Plan) -> NestText:
    node = fusion_node(plan)
    if node is not None:
        return NestText((node,))
    if plan.family == "own" or not isinstance(plan.epilogue, EpilogueProgram):
        return NestText()
    return visitors(plan.epilogue, plan)


def _group_values(plan: Plan) -> tuple[GroupValueText, ...]:
    """Return the scalars that a group may give as numbers: the launcher writes them to the table on the device."""
    if not isinstance(plan, GroupedPlan) or not isinstance(plan.epilogue, EpilogueProgram):
        return ()
    found = []
    for step in plan.epilogue.unique:
        match step:
            case ScalarBroadcast(value=Single() as given) | VectorBroadcast(values=Single() as given):
                found.append(GroupValueText(given.number.name, given.pointer.name, element(given.dtype)))
    return tuple(found)
