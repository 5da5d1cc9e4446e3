"""The workspace: copies of operands and partial results, and the small kernels that make and combine them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evt.emission.expressions import COMBINE, REGISTER, element, input_pointer, part_type, read, size, value_of
from evt.emission.operations import parts_pointer, result_pointer
from evt.emission.text import Assignments, Job, Jobs, Parts
from evt.ir.node import PLACES
from evt.launch.padded import part_of
from evt.plan import Field, Plan
from evt.plan.epilogue.results import Combined, Given, Operand, Result, ResultIndex
from evt.plan.epilogue.values import Number, Single, Size
from evt.plan.epilogue.writes import Reduction
from evt.plan.plan import FilterGradient, Matrix, OwnProduct, PaddedCopy, RowCopy
from evt.plan.signature import bytes_of


def parts(plan: Plan) -> tuple[Parts, ...]:
    """Return the arrays in the workspace."""
    copies = (
        Parts(
            part_of(copy),
            f"Element{copy.name}",
            read(copy.extents[0]),
            copy_strides(copy)[0],
            tuple(str(extent) for extent in (*copy.extents, copy.channels)),
        )
        for copy in plan.copies
    )
    reductions = (
        Parts(
            node.name,
            part_type(node),
            _part_count(plan, node),
            read(node.extent),
            ("parts", str(node.extent)),
        )
        for node in plan.reductions
        if not node.atomic
    )
    sums = [_SUMS] * isinstance(plan.mainloop, FilterGradient)
    return (*copies, *map(_row_copy_part, plan.row_copies), *sums, *reductions)


#: The partial sums of a filter gradient.
_SUMS = Parts(
    "partial_sums",
    "float",
    "Kernel::splits(problem_of(arguments))",
    "Kernel::elements(problem_of(arguments))",
    ("parts", "m", "n"),
)


def partial_sums() -> str:
    """Return the place of the partial sums of a filter gradient."""
    return f"parts<float>(arguments, workspace.{_SUMS.node})"


def jobs_before(plan: Plan) -> tuple[Jobs, ...]:
    """Return the work before the kernel: copies, and the identities of atomic reductions."""
    initial = [_initial_job(node, node.atomic) for node in plan.reductions if node.atomic]
    return _kernels(
        Jobs("copy", "CopyJobs", "Copies operands into aligned rows.", tuple(map(_row_copy_job, plan.row_copies))),
        Jobs(
            "pad",
            "PadJobs",
            "Copies the operands, with zeros behind their channels.",
            tuple(map(_pad_job, plan.copies)),
        ),
        Jobs(
            "initialise",
            "InitialJobs",
            "Fills the results of atomic reductions with the identity.",
            tuple(initial),
        ),
    )


def jobs_after(plan: Plan) -> tuple[Jobs, ...]:
    """Return the work after the kernel: the final reductions."""
    final = tuple(_final_job(plan, result) for result in plan.results)
    return _kernels(Jobs("finish", "FinalJobs", "Combines the parts of reductions, in a fixed order.", final))


def _kernels(*kernels: Jobs) -> tuple[Jobs, ...]:
    return tuple(kernel for kernel in kernels if kernel.jobs)


# Reductions.

#: The operands that read one of two moments.
_MOMENTS = {"mean": "evt::CombinedMean", "var": "evt::CombinedVariance"}


def _part_count(plan: Plan, node: Reduction) -> str:
    """Return how many partial results a reduction's node writes per batch."""
    if plan.family == "2x":
        return f"{node.name}::parts(arguments.{plan.rows}, arguments.{plan.columns})"
    if plan.family == "own":
        return f"decltype(Epilogue::{node.name})::parts(tiles_of(arguments))"
    return f"{node.name}::parts(problem_shape(arguments))"


def _initial_job(node: Reduction, result: Result) -> Job:
    members = (
        ("ptr", result_pointer(result)),
        ("kept", read(node.extent)),
        ("batches", "1" if node.over_batch else "arguments.l"),
        ("stride_l", read(result.batch)),
    )
    return Job(node.name, f"evt::InitialiseJob<{COMBINE[node.kind]}, {REGISTER[node.dtype]}>", members)


def _final_job(plan: Plan, result: Result) -> Job:
    """Return the job of a result. With ``batch_invariant``, the order of parts is the same for every number of rows."""
    made = _combining_job(plan, result)
    return replace(made, type=f"evt::InOneOrder<{made.type}>") if plan.options.batch_invariant else made


def _combining_job(plan: Plan, result: Result) -> Job:
    """Return the job of a stored reduction, or of a value computed from reductions."""
    nodes = {node.name: node for node in plan.reductions}
    own = ("out", result_pointer(result))
    over = ("over_batch", "true" if result.over_batch else "false")
    batches = ("batches", "arguments.images" if result.of_images else "arguments.l")
    if result.region is None:
        (operand,) = result.operands
        assert isinstance(operand, Combined)
        node = nodes[operand.reduction]
        members: Assignments = (
            ("parts_ptr", parts_pointer(node)),
            own,
            ("parts", _part_count(plan, node) + " / arguments.images" * result.of_images),
            ("kept", read(result.extent)),
            batches,
            ("out_stride_l", read(result.batch)),
            over,
        )
        type_ = f"evt::FinishJob<{COMBINE[node.kind]}, {REGISTER[node.dtype]}, {result.dtype.cutlass}>"
        return Job(result.name, type_, members)
    spelled = [_operand(plan, nodes, operand, result.of_images) for operand in result.operands]
    kept = read(result.extent) if result.divisor == 1 else f"{read(result.extent)} / {result.divisor}"
    members = (
        ("operands", f"cute::make_tuple({', '.join(f'{type_}{{{values}}}' for type_, values in spelled)})"),
        own,
        ("kept", kept),
        batches,
        ("out_stride_l", read(result.batch)),
        over,
    )
    types = (result.region.name, result.dtype.cutlass, *(type_ for type_, _ in spelled))
    return Job(result.name, f"evt::ComputeJob<{', '.join(types)}>", members)


def _operand(plan: Plan, nodes: Mapping[str, Reduction], operand: Operand, of_images: bool) -> tuple[str, str]:
    """Return the C++ type of a result's operand, and the expression that reads it."""
    match operand:
        case Combined(name, width, distance, moment, merged):
            node, number = nodes[name], list(nodes).index(name)
            count = _part_count(plan, node) + " * arguments.l" * node.over_batch + " / arguments.images" * of_images
            given = f"{parts_pointer(node)}, {count}, {read(node.extent)}"
            if node.kind in PLACES:
                return f"evt::CombinedPlace<{number}>", f"{{{given}}}"
            columns = "" if width == 1 else f", {width}, 1, true" if merged else f", {width}, {distance}"
            type_ = f"evt::Combined<{number}, {COMBINE[node.kind]}, {part_type(node)}{columns}>"
            return (f"{_MOMENTS[moment]}<{type_}>", f"{{{given}}}") if moment else (type_, given)
        case Given(dtype, Single() as values, stride, batch):
            given = f"{value_of(values)}, {input_pointer(dtype, values.pointer)}"
            return f"evt::Given<{element(dtype)}>", f"{given}, {read(stride)}, {read(batch)}"
        case Given(dtype, Field() as pointer, stride, batch):
            given = f"{element(dtype)}(0), {input_pointer(dtype, pointer)}"
            return f"evt::Given<{element(dtype)}>", f"{given}, {read(stride)}, {read(batch)}"
        case Size():
            return "evt::Given<int32_t>", f"{size(operand)}, nullptr, 0, 0"
        case Number(_, value):
            return "evt::Given<int32_t>", f"{int(value)}, nullptr, 0, 0"
        case ResultIndex(batch):
            return f"evt::Place<{'true' if batch else 'false'}>", ""
    raise AssertionError(operand)


# Copies of a convolution's operands.


def copy_pointer(copy: PaddedCopy) -> str:
    """Return where the copy of an operand is."""
    return f"parts<Element{copy.name}>(arguments, workspace_of(arguments).{part_of(copy)})"


def copy_channels(copy: PaddedCopy) -> str:
    """Return the channels of a copy's pixels."""
    return (
        str(copy.padded_channels) if copy.padded_channels else f"evt::rounded_up<{copy.vector}>({read(copy.channels)})"
    )


def _copy_row(copy: PaddedCopy) -> str:
    """Return the pixels of a copy's rows."""
    width = read(copy.extents[-1])
    if copy.row is None:
        return width
    if copy.row.padding is not None:
        before, after = map(read, copy.row.padding)
        width = f"{before} + {width} + {after}"
    return f"evt::rounded_up<{copy.row.pixels}>({width})"


def copy_strides(copy: PaddedCopy) -> list[str]:
    """Return the strides of a copy except the channels', outermost first."""
    extents = [*map(read, copy.extents[:-1]), _copy_row(copy)]
    steps = [copy_channels(copy)]
    for extent in reversed(extents[1:]):
        steps.append(f"{steps[-1]} * {extent}")
    return steps[::-1]


def _pad_job(copy: PaddedCopy) -> Job:
    outer, *sizes, channels = (read(extent) for extent in (*copy.extents, copy.channels))
    strides = [read(stride) for stride in copy.original.strides]
    if len(sizes) == 2:  # a two-dimensional image is one slice
        sizes, strides = ["1", *sizes], [strides[0], "0", *strides[1:]]
    members: Assignments = (
        ("from", f"static_cast<Element{copy.name} const*>({read(copy.original.pointer)})"),
        ("to", copy_pointer(copy)),
        *zip(("outer", "slices", "rows", "pixels", "channels"), (outer, *sizes, channels), strict=True),
        *zip((f"stride_{each}" for each in ("outer", "slice", "row", "pixel")), strides, strict=True),
        ("before", read(copy.row.padding[0]) if copy.row and copy.row.padding else "0"),
        ("padded_pixels", _copy_row(copy)),
        ("padded_channels", copy_channels(copy)),
    )
    access = min(copy.vector, copy.original.alignment)
    return Job(part_of(copy), f"evt::PadJob<Element{copy.name}, {copy.vector}, {access}>", members)


# Copies of a product's operands.


def operand_of(loop: OwnProduct, matrix: Matrix) -> tuple[str, str, str]:
    """Return the address of A or B, or of its copy; its leading stride; and the stride of its batches, if any."""
    copy = loop.copy_of(matrix)
    if copy is None:
        return read(matrix.pointer), read(matrix.leading), read(matrix.batch) if isinstance(matrix.batch, Field) else ""
    pitch = _pitch(copy)
    return _row_copy_pointer(copy), pitch, f"{read(copy.rows)} * {pitch}" if copy.batches else ""


def _pitch(copy: RowCopy) -> str:
    """Return the elements from one row of a copy to the next."""
    return f"evt::pitch_of<{copy.line}>({read(copy.columns)})"


def _row_copy_element(copy: RowCopy) -> str:
    return f"uint{8 * bytes_of(copy.matrix.dtype)}_t"


def _row_copy_pointer(copy: RowCopy) -> str:
    return f"parts<{_row_copy_element(copy)}>(arguments, workspace.{copy.name})"


def _row_copy_part(copy: RowCopy) -> Parts:
    extents = tuple(str(extent) for extent in (copy.batches, copy.rows, copy.columns) if extent)
    batches = read(copy.batches) if copy.batches else "1"
    return Parts(copy.name, _row_copy_element(copy), read(copy.rows), _pitch(copy), extents, batches)


def _row_copy_job(copy: RowCopy) -> Job:
    matrix, element = copy.matrix, _row_copy_element(copy)
    members: Assignments = (
        ("from", f"static_cast<{element} const*>({read(matrix.pointer)})"),
        ("to", _row_copy_pointer(copy)),
        ("batches", read(copy.batches) if copy.batches else "1"),
        ("rows", read(copy.rows)),
        ("columns", read(copy.columns)),
        ("stride_batch", read(matrix.batch)),
        ("stride_row", read(matrix.leading)),
        ("pitch", _pitch(copy)),
    )
    return Job(copy.name, f"evt::RowsJob<{element}>", members)
