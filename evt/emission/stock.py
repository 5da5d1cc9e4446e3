"""Stock epilogues of CUTLASS: their class and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from evt.emission.expressions import (
    as_int,
    element,
    input_pointer,
    literal,
    pointer_without_const,
    read,
    stride_type,
    stride_value,
    value_of,
)
from evt.emission.text import Assignments, NodeText, StockText
from evt.ir.dtype import DType
from evt.plan import Field, Plan
from evt.plan.epilogue.values import Single, Stride
from evt.plan.plan import Convolution2x
from evt.plan.stock.operators import Functor, FusionOperation, Major, Own, Parameter, Scaling
from evt.plan.stock_epilogue import Scale, StockFusion, StockOperator, StockTensor, StockVector

_THREAD, _FUSION = "cutlass::epilogue::thread", "cutlass::epilogue::fusion"
#: The namespaces of functors that are not activations.
_FUNCTORS = {"plus": "cutlass", "multiplies": "cutlass", "NoOp": f"{_THREAD}::detail"}
#: Aliases of common template parameters.
_OWN = {
    Own.C: "ElementC",
    Own.D: "ElementD",
    Own.ACCUMULATOR: "ElementAccumulator",
    Own.COMPUTE: "ElementCompute",
    Own.ACCESS: "kElementsPerAccess",
    Own.ROUNDING: "kRoundStyle",
}
_KERNEL = "cutlass::gemm::kernel::DefaultGemm"
_SWIZZLE = "cutlass::conv::threadblock::StridedDgradIdentityThreadblockSwizzle<8>"
#: The arguments for the row strides of these tensors; other tensors have ``ldc`` and ``ldd``.
_PITCHES = {"Vector": "ldr", "Tensor": "ldt"}


@dataclass(frozen=True, slots=True)
class Given:
    """A member of a stock epilogue's arguments, the expression that fills it, and the fields that the expression reads.

    ``is_implied``: the member is a stride, or marks an absent tensor, so ``evt explain`` omits it.
    """

    member: str
    expression: str
    fields: tuple[Field, ...] = ()
    is_implied: bool = False


def given(plan: Plan) -> tuple[Given, ...]:
    """Return the arguments of a stock epilogue: first for its operator or operation, then in 2.x for its kernel."""
    match plan.epilogue:
        case StockOperator() as epilogue:
            tensors = _images if isinstance(plan.mainloop, Convolution2x) else _matrices
            return (*_operator(epilogue), *tensors(epilogue, plan))
        case StockFusion() as epilogue:
            return tuple(_operation(epilogue))
        case _:
            return ()


def _numbers(fused: FusionOperation) -> Iterator[Given]:
    """Return the arguments of an activation."""
    return (Given(member, literal(value)) for member, value in fused.members)


def _scale(member: str, scale: Scale) -> Iterator[Given]:
    """Return a factor: a number, a scalar by value or by device pointer, or a vector."""
    match scale:
        case Single(dtype, number, pointer):
            yield Given(member, value_of(scale), (number,))
            yield Given(f"{member}_ptr", input_pointer(dtype, pointer), (pointer,))
        case StockVector():
            yield from _vector(f"{member}_ptr", f"d{member.capitalize()}", scale, one="true")
        case number:
            yield Given(member, literal(number))


# 2.x


def stock_text(plan: Plan, swizzle: str, convolution: tuple[str, str]) -> StockText | None:
    """Return the output operator, if the plan has one; ``convolution`` is a convolution's kernel and its header."""
    epilogue = plan.epilogue
    if not isinstance(epilogue, StockOperator):
        return None
    fused, simple = epilogue.fused, epilogue.fused.reads_source_only
    tensors = given(plan)[len(parameters := tuple(_operator(epilogue))) :]
    if isinstance(plan.mainloop, Convolution2x):
        kernel, header = convolution
        if not simple:
            kernel, header = f"{kernel}WithBroadcast", header.replace(".h", "_with_broadcast.h")
        headers: tuple[str, ...] = (header, "cutlass/device_kernel.h")
    else:
        kernel = f"{_KERNEL}{'Universal' if simple else 'WithBroadcast'}"
        headers = ("cutlass/gemm/kernel/default_gemm_" + ("universal.h" if simple else "with_broadcast.h"),)
    return StockText(
        operator=_class(_THREAD, fused),
        kernel=kernel,
        headers=(*headers, _header(fused)),
        swizzle=_SWIZZLE if epilogue.permuted else swizzle,
        parameters=_assignments(parameters),
        arguments=_assignments(tensors),
    )


def _class(namespace: str, fused: FusionOperation) -> str:
    return f"{namespace}::{fused.name}<{', '.join(map(_parameter, fused.parameters))}>"


def _parameter(given: Parameter) -> str:
    match given:
        case Own():
            return _OWN[given]
        case Functor(name, applied):
            return f"{_FUNCTORS.get(name, _THREAD)}::{name}{'<float>' if applied else ''}"
        case Scaling():
            return f"{_THREAD}::ScaleType::{given.value}"
        case Major():
            return f"cutlass::layout::{given.value}"
        case DType():
            return given.cutlass
        case _:
            return str(given).lower()


def _header(fused: FusionOperation) -> str:
    """Return the header of CUTLASS that has an output operator."""
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in fused.name)
    return f"cutlass/epilogue/thread/{words[1:]}.h"


def _assignments(given: tuple[Given, ...]) -> Assignments:
    return tuple((each.member, each.expression) for each in given)


def _operator(epilogue: StockOperator) -> Iterator[Given]:
    yield from _scale("alpha", epilogue.alpha)
    yield from _scale("beta", epilogue.beta)
    yield from _numbers(epilogue.fused)


def _matrices(epilogue: StockOperator, plan: Plan) -> Iterator[Given]:
    """Return the kernel's arguments for tensors, vectors (whose row stride is 0) and absent tensors.

    CUTLASS does not initialise members that are not set.
    """
    for role, tensor in epilogue.tensors:
        yield _pointer(f"ptr_{role}", tensor)
        yield _pitch(_PITCHES.get(role, f"ld{role.lower()}"), tensor)
        yield Given(f"batch_stride_{role}", read(tensor.batch) if tensor else "0", is_implied=True)


def _images(epilogue: StockOperator, plan: Plan) -> Iterator[Given]:
    """Return the kernel's arguments for the tensors of a convolution's epilogue."""
    assert isinstance(plan.mainloop, Convolution2x)
    for role, tensor in epilogue.tensors:
        if role in _PITCHES:
            yield _pointer(f"ptr_{role}", tensor)
            yield _pitch(_PITCHES[role], tensor)
            continue
        assert tensor is not None
        # CUTLASS reads the row stride from one of these strides, so all of them have its value.
        strides = ", ".join([_pitch("", tensor).expression] * (plan.mainloop.rank + 1))
        expression = f"{{{_pointer('', tensor).expression}, LayoutC(cutlass::make_Coord({strides}))}}"
        yield Given(f"ref_{role}", expression, (tensor.pointer, *_fields(tensor.pitch)))


def _pointer(member: str, tensor: StockTensor | None) -> Given:
    """Return a tensor's address, which CUTLASS wants without const."""
    if tensor is None:
        return Given(member, "nullptr", is_implied=True)
    return Given(member, pointer_without_const(tensor.dtype, tensor.pointer), (tensor.pointer,))


def _pitch(member: str, tensor: StockTensor | None) -> Given:
    if tensor is None or tensor.pitch == 0:
        return Given(member, "0", is_implied=True)
    return Given(member, as_int(read(tensor.pitch)), is_implied=True)


def _fields(*strides: Stride) -> tuple[Field, ...]:
    return tuple(stride for stride in strides if isinstance(stride, Field))


# 3.x


def fusion_node(plan: Plan) -> NodeText | None:
    """Return the fusion operation of a plan that has one, as the only node of its visitor."""
    epilogue = plan.epilogue
    if not isinstance(epilogue, StockFusion):
        return None
    policy = "cutlass::epilogue::Sm90TmaWarpSpecialized<kStagesC, kStagesD, 1, kReuseSmemC, false>"
    parts = [policy, _class(_FUSION, epilogue.fused), "TileShape, EpilogueTile"]
    aliases: Assignments = ()
    if (stored := epilogue.stored) is not None:
        descriptor = "descriptor_of_Operation"
        aliases = ((descriptor, f"StoreDescriptor<{stride_type(stored.strides)}, {element(stored.dtype)}>"),)
        parts.append(f"{descriptor}::SmemLayoutAtom, {descriptor}::CopyOpR2S")
    lines = ",\n    ".join(parts)
    return NodeText("Operation", f"fusion::FusionCallbacks<\n    {lines}>", _assignments(given(plan)), aliases=aliases)


def _operation(epilogue: StockFusion) -> Iterator[Given]:
    yield from _scale("alpha", epilogue.alpha)
    if epilogue.beta is not None:
        yield from _scale("beta", epilogue.beta)
    if epilogue.bias is not None:
        yield from _vector("bias_ptr", "dBias", epilogue.bias, one="cute::_1{}")
    if (stored := epilogue.stored) is not None:
        yield Given("aux_ptr", pointer_without_const(stored.dtype, stored.pointer), (stored.pointer,))
        yield Given("dAux", stride_value(stored.strides), _fields(*stored.strides))
    yield from _numbers(epilogue.fused)


def _vector(pointer: str, stride: str, vector: StockVector, one: Literal["true", "cute::_1{}"]) -> Iterator[Given]:
    """Return a vector's pointer, and its strides of (rows, columns, batch)."""
    *along, batch = vector.strides
    yield Given(pointer, input_pointer(vector.dtype, vector.pointer), (vector.pointer,))
    values = [one if step == 1 else "cute::_0{}" for step in along]
    last = read(batch) if isinstance(batch, Field) else "0"
    yield Given(stride, f"{{{', '.join([*values, last])}}}", _fields(batch))
