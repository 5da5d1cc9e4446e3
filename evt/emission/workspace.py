"""The workspace: copies of operands and parts of reductions, and the small kernels that make and combine them."""

from __future__ import annotations

from evt.emission.expressions import COMBINE, REGISTER, read
from evt.emission.text import Assignments, Job, Jobs, Parts
from evt.emission.visitors import parts_pointer, result_pointer
from evt.plan import Plan
from evt.plan.epilogue.nodes import Reduction
from evt.plan.plan import PaddedCopy


def parts(plan: Plan) -> tuple[Parts, ...]:
    """Return the arrays in the workspace."""
    copies = (
        Parts(
            f"padded_{copy.name}",
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
            REGISTER[node.dtype],
            _part_count(plan, node),
            read(node.extent),
            ("parts", str(node.extent)),
        )
        for node in plan.reductions
        if not node.atomic
    )
    return (*copies, *reductions)


def jobs_before(plan: Plan) -> tuple[Jobs, ...]:
    """Return what has to be done before the kernel: copies, and the identities of atomic reductions."""
    initial = [_initial_job(node) for node in plan.reductions if node.atomic]
    return _kernels(
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
    """Return what has to be done after the kernel."""
    final = tuple(_final_job(plan, node) for node in plan.reductions if not node.atomic)
    return _kernels(Jobs("finish", "FinalJobs", "Combines the parts of reductions, in a fixed order.", final))


def _kernels(*kernels: Jobs) -> tuple[Jobs, ...]:
    return tuple(kernel for kernel in kernels if kernel.jobs)


# Reductions.


def _part_count(plan: Plan, node: Reduction) -> str:
    """Return how many parts a reduction's node writes per batch."""
    if plan.family == "2x":
        return f"{node.name}::parts(arguments.{plan.rows}, arguments.{plan.columns})"
    return f"{node.name}::parts(problem_shape(arguments))"


def _initial_job(node: Reduction) -> Job:
    members = (
        ("ptr", result_pointer(node)),
        ("kept", read(node.extent)),
        ("batches", "1" if node.over_batch else "arguments.l"),
        ("stride_l", read(node.batch)),
    )
    return Job(node.name, f"evt::InitialiseJob<{COMBINE[node.kind]}, {REGISTER[node.dtype]}>", members)


def _final_job(plan: Plan, node: Reduction) -> Job:
    members = (
        ("parts_ptr", parts_pointer(node)),
        ("out", result_pointer(node)),
        ("parts", _part_count(plan, node)),
        ("kept", read(node.extent)),
        ("batches", "arguments.l"),
        ("out_stride_l", read(node.batch)),
        ("over_batch", "true" if node.over_batch else "false"),
    )
    types = (COMBINE[node.kind], REGISTER[node.dtype], node.output.cutlass)
    return Job(node.name, f"evt::FinishJob<{', '.join(types)}>", members)


# Copies of a convolution's operands.


def copy_pointer(copy: PaddedCopy) -> str:
    """Return where the copy of an operand is."""
    return f"parts<Element{copy.name}>(arguments, workspace_of(arguments).padded_{copy.name})"


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
    """Return the strides of a copy but those of the channels, outermost first."""
    extents = [*map(read, copy.extents[:-1]), _copy_row(copy)]
    steps = [copy_channels(copy)]
    for extent in reversed(extents[1:]):
        steps.append(f"{steps[-1]} * {extent}")
    return steps[::-1]


def _pad_job(copy: PaddedCopy) -> Job:
    outer, *sizes, channels = (read(extent) for extent in (*copy.extents, copy.channels))
    strides = [read(stride) for stride in copy.original.strides]
    if len(sizes) == 2:  # an image is one slice
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
    return Job(f"padded_{copy.name}", f"evt::PadJob<Element{copy.name}, {copy.vector}>", members)
