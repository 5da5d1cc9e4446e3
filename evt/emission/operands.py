"""A and B, C and D: their layouts, and the expressions that fill the kernel's arguments for them."""

from __future__ import annotations

from evt.emission.cutlass_nodes import row
from evt.emission.expressions import (
    as_int,
    element,
    fragment_element,
    images,
    major,
    operand_element,
    read,
    stride_value,
)
from evt.emission.text import OperandText, TensorText
from evt.emission.workspace import copy_pointer, copy_strides
from evt.plan import Field, Plan
from evt.plan.plan import GroupedPlan, Image, Matrix, MatrixProduct, OwnProduct, PaddedCopy, Tensor
from evt.plan.signature import bytes_of


def operands(plan: Plan) -> tuple[OperandText, OperandText]:
    """Return A and B."""
    loop = plan.mainloop
    if isinstance(loop, MatrixProduct):
        spell = _group_matrix if isinstance(plan, GroupedPlan) else _matrix
        return spell(loop.a, "A", plan.family == "2x"), spell(loop.b, "B", plan.family == "2x")
    return _image(loop.a, loop.rank), _image(loop.b, loop.rank)


def _tag(matrix: Matrix, place: str) -> str:
    """Return the layout tag of a matrix in place of A or B."""
    return major((matrix.contiguous == "k") == (place == "A"))


def _matrix(matrix: Matrix, place: str, tagged: bool) -> OperandText:
    """Return a matrix. A 3.x kernel without batches has a static batch stride, which a layout tag cannot express."""
    leading, batch = read(matrix.leading), "cute::_0{}" if matrix.batch == 0 else read(matrix.batch)
    static = matrix.batch == 0
    batch_type = "cute::_0" if static else "int64_t"
    if matrix.contiguous == "k":
        stride_type = f"cute::Stride<int64_t, cute::_1, {batch_type}>"
        stride = f"{{{leading}, cute::_1{{}}, {batch}}}"
    else:
        stride_type = f"cute::Stride<cute::_1, int64_t, {batch_type}>"
        stride = f"{{cute::_1{{}}, {leading}, {batch}}}"
    return OperandText(
        operand_element(matrix.dtype),
        stride_type if static and not tagged else _tag(matrix, place),
        matrix.alignment,
        read(matrix.pointer),
        stride,
        "0" if static else batch,
        leading,
    )


def _group_matrix(matrix: Matrix, place: str, tagged: bool) -> OperandText:
    """Return an array of matrices, one of each group."""
    pointers = row(f"Element{place} const*", matrix.pointer)
    strides = row(f"Kernel::InternalStride{place}", matrix.leading)
    return OperandText(operand_element(matrix.dtype), _tag(matrix, place), matrix.alignment, pointers, strides)


def _image(image: Image | PaddedCopy, rank: int) -> OperandText:
    """Return an operand of a convolution, or its copy."""
    if isinstance(image, PaddedCopy):
        pointer, strides = f"static_cast<void*>({copy_pointer(image)})", copy_strides(image)
        alignment = 16 // bytes_of(image.dtype)
    else:
        pointer, strides, alignment = read(image.pointer), [read(stride) for stride in image.strides], image.alignment
    steps = ", ".join(as_int(stride) for stride in reversed(strides))
    return OperandText(operand_element(image.dtype), images(rank), alignment, pointer, steps)


def tensor(plan: Plan, role: str, given: Tensor | None) -> TensorText:
    """Return C or D of the collective."""
    if given is None:
        return TensorText("void", major(True), 8)
    loop = plan.mainloop
    if isinstance(plan, GroupedPlan):
        return _group_tensor(role, given)
    if isinstance(loop, OwnProduct):
        return TensorText(fragment_element(given.dtype), "", given.alignment)  # own(plan) has the arguments
    if plan.family == "own":
        return _pixels(role.lower(), given)
    qualifier = "const*" if role == "C" else "*"
    pointer = f"static_cast<{element(given.dtype)} {qualifier}>(const_cast<void*>({read(given.pointer)}))"
    if isinstance(loop, MatrixProduct):
        layout, stride = major(given.row_major), stride_value(given.strides)
    else:
        part = "output_" if loop.operator == "fprop" else ""
        layout, stride = images(loop.rank), _image_stride(given, [f"{part}{name}" for name in loop.spatial])
    return TensorText(element(given.dtype), layout, given.alignment, ((f"ptr_{role}", pointer), (f"d{role}", stride)))


def _pixels(role: str, given: Tensor) -> TensorText:
    """Return a matrix of pixels that an own kernel moves as C or D."""
    pitch, _, batch = given.strides
    assert isinstance(pitch, Field)
    arguments = [(role, read(given.pointer)), (f"{role}_stride", read(pitch))]
    if isinstance(batch, Field):
        arguments.append((f"{role}_batch_stride", read(batch)))
    return TensorText(fragment_element(given.dtype), "", given.alignment, tuple(arguments))


def _image_stride(given: Tensor, pixels: list[str]) -> str:
    """Return the nested stride of rows that are pixels, whose extents have these names."""
    pitch, _, _ = given.strides
    assert isinstance(pitch, Field)
    steps = [f"arguments.{extent}" for extent in reversed(pixels)]
    strides = [" * ".join((read(pitch), *steps[:count])) for count in range(len(steps) + 1)]
    return f"cute::make_stride(cute::make_stride({', '.join(strides)}), cute::_1{{}}, cute::_0{{}})"


def _group_tensor(role: str, given: Tensor) -> TensorText:
    """Return an array of tensors, one of each group."""
    qualifier = "const*" if role == "C" else "*"
    (leading,) = (stride for stride in given.strides if isinstance(stride, Field))
    arguments = (
        (f"ptr_{role}", row(f"Element{role} {qualifier}", given.pointer)),
        (f"d{role}", row(f"Kernel::InternalStride{role}", leading)),
    )
    return TensorText(element(given.dtype), major(given.row_major), given.alignment, arguments)
