"""The members of a kernel's arguments, which its caller fills in: each with its type and meaning."""

from __future__ import annotations

from evt.emission.text import MemberText
from evt.ir.dtype import B1
from evt.ir.node import written
from evt.ir.number import decimal
from evt.plan import Field, Plan
from evt.plan.gemm import MAX_GROUPS
from evt.plan.gemv import Gemv
from evt.plan.plan import Convolution, GroupedPlan, OwnProduct, PaddedCopy, Parameter
from evt.plan.signature import bytes_of

#: The start and the end of a stride, by mode.
_STEPS = {
    "m": "row (m)",
    "n": "column (n)",
    "k": "k",
    "l": "batch",
    "depth": "slice",
    "height": "row of pixels",
    "width": "pixel",
}
#: Members that belong to no tensor.
_PLAIN = {
    "m": "rows of the product",
    "n": "columns of the product",
    "k": "the contraction dimension",
    "l": "batches, at least 1",
    "images": "images",
    "channels": "input channels, of all groups",
    "filters": "output channels, of all groups",
    "ends": "int32_t[l] in device memory: the end of each group's rows, of A, D and the other tensors with rows",
    "groups": "groups of channels, at least 1",
    "swizzle": "tiles side by side before the next row of tiles; 0: the kernel decides",
    "raster": "the order of tiles: 1 along m, 2 along n; 0: the kernel decides",
    "tile_rows": "rows of output pixels of a tile; 0: the kernel decides",
    "tile_columns": "columns of output pixels of a tile; 0: the kernel decides",
}
_ONE_BATCH = "batches: 1"
_SPATIAL = {
    "filter": "{} of the filters",
    "output": "{} of the output",
    "pad": "padding before, along the {}",
    "upper_pad": "padding after, along the {}",
    "stride": "stride of the convolution along the {}",
    "dilation": "dilation of the filters along the {}",
}
#: The modes of the product that a convolution is.
_MODES = {
    "fprop": {"m": "images * output pixels", "n": "output channels", "k": "input channels"},
    "dgrad": {"m": "images * input pixels", "n": "input channels", "k": "output channels"},
    "wgrad": {"m": "output channels", "n": "filter taps * channels of a group", "k": "images * output pixels"},
}
_OPERANDS = {
    "fprop": ("input", "filters"),
    "dgrad": ("gradient of the output", "filters"),
    "wgrad": ("gradient of the output", "input"),
}


def members(plan: Plan) -> tuple[MemberText, ...]:
    """Return the members of a kernel's arguments."""
    return _aligned(plan, plan.fields)


def rows(plan: Plan) -> tuple[MemberText, ...]:
    """Return the rows of a grouped kernel's table."""
    return _aligned(plan, plan.group_fields) if isinstance(plan, GroupedPlan) else ()


def _aligned(plan: Plan, fields: tuple[Field, ...]) -> tuple[MemberText, ...]:
    """Return members with aligned comments."""
    parameters = {each.name: each for each in plan.parameters}
    found = [(f"{_type(each, parameters.get(each.tensor))} {each.name};", each) for each in fields]
    width = max(len(declaration) for declaration, _ in found)
    return tuple(
        MemberText(declaration.ljust(width), _comment(plan, each, parameters.get(each.tensor)))
        for declaration, each in found
    )


def _type(field: Field, parameter: Parameter | None) -> str:
    if field.kind == "pointer":
        written = parameter.kind == "output" if parameter else field.role == "workspace"
        return "void*" if written else "void const*"
    return "double" if field.kind == "number" else "int64_t"


def _comment(plan: Plan, field: Field, parameter: Parameter | None) -> str:
    if parameter is None:
        return _plain(plan, field)
    match field.kind:
        case "pointer":
            return _tensor(plan, parameter)
        case "size":
            return _stride(plan, field, parameter)
        case _:
            default = "" if parameter.default is None else f"; the program's default is {decimal(parameter.default)}"
            return f"the value of {_named(parameter)} where {_member(plan, parameter, 'pointer')} is null{default}"


def _plain(plan: Plan, field: Field) -> str:
    match field.role:
        case "workspace":
            return "device memory, of the size that the workspace function returns"
        case "table":
            return "the rows listed above, in host memory; it may change after the call"
        case "groups" if isinstance(plan, GroupedPlan):
            return "how many products"
    if field.role.startswith("varies "):
        return "1 where it is a vector in every group, 0 where it is a single value"
    if isinstance(plan.mainloop, Convolution) and field.role in _MODES[plan.mainloop.operator]:
        return _MODES[plan.mainloop.operator][field.role]
    if field.role == "l" and isinstance(plan.mainloop, OwnProduct):
        if plan.mainloop.ends is not None:
            return f"groups of rows, 1 to {MAX_GROUPS}"
        return _PLAIN["l"] if plan.mainloop.batched else _ONE_BATCH
    if field.role == "l" and isinstance(plan.mainloop, Gemv):
        return _ONE_BATCH
    if field.role in _PLAIN:
        return _PLAIN[field.role]
    part, _, dimension = field.role.rpartition("_")
    if not part:
        return f"{dimension} of the input"
    return _SPATIAL.get(part, field.role).format(dimension)


def _tensor(plan: Plan, parameter: Parameter) -> str:
    """Return the description of a pointer's tensor."""
    layout, size = parameter.layout, bytes_of(parameter.dtype)
    if parameter.kind == "operand" and isinstance(plan.mainloop, Convolution):
        accesses = _accesses(_loaded(plan, parameter), size, "the channels")
        return f"{_image(plan, parameter)} {_named(parameter)}: {parameter.dtype}, channels contiguous{accesses}"
    what = f"{parameter.kind} {_named(parameter)}: {parameter.dtype}[{', '.join(map(written, parameter.modes))}]"
    if parameter.dtype == B1:
        return f"{what}, 8 columns to a byte, the first in its lowest bit"
    if layout is None or parameter.flexible:
        number = _member(plan, parameter, "value")
        return f"{what}, or null for {number}" if number else what
    if layout.contiguous is None or len(parameter.modes) == 1:
        return what
    inner = written(layout.contiguous)
    return f"{what}, {inner} contiguous{_accesses(layout.alignment, size, inner)}"


def _named(parameter: Parameter) -> str:
    """Return a parameter's name, of bounded length."""
    return parameter.name if len(parameter.name) <= 40 else f"{parameter.name[:40]}..."


def _member(plan: Plan, parameter: Parameter, role: str) -> str:
    """Return the member that has a parameter's pointer or its value, if there is one."""
    fields = (*plan.fields, *(plan.group_fields if isinstance(plan, GroupedPlan) else ()))
    return next((each.name for each in fields if each.tensor == parameter.name and each.role == role), "")


def _loaded(plan: Plan, parameter: Parameter) -> int:
    """Return the elements of an access to an operand of a convolution; a copy reads single elements."""
    loop = plan.mainloop
    assert isinstance(loop, Convolution)
    image = loop.a if loop.a.name == parameter.name else loop.b
    return 1 if isinstance(image, PaddedCopy) else image.alignment


def _accesses(alignment: int, size: int, inner: str) -> str:
    """Return the requirements of accesses of a number of elements."""
    if alignment == 1:
        return ""
    return f"; aligned to {alignment * size} bytes, strides and {inner} multiples of {alignment}"


def _image(plan: Plan, parameter: Parameter) -> str:
    loop = plan.mainloop
    assert isinstance(loop, Convolution)
    return _OPERANDS[loop.operator][parameter.name == "B"]


def _stride(plan: Plan, field: Field, parameter: Parameter) -> str:
    """Return the description of a stride."""
    name, mode = _named(parameter), field.role
    if parameter.flexible and mode != "l":
        return f"1 where {name} is a vector, 0 where it is a single value"
    if mode.startswith("extent "):
        return f"rows of {name}: an index names 0 to this - 1"
    unit = "bytes" if parameter.dtype == B1 else "elements"
    outer = "filter" if mode == "outer" and _image(plan, parameter) == "filters" else "image"
    if mode not in _STEPS and mode != "outer":
        return f"{mode} of {name}"
    step = outer if mode == "outer" else _STEPS[mode]
    shared = "; 0 where all batches share it" if mode == "l" and parameter.kind != "output" else ""
    return f"{unit} of {name} from one {step} to the next{shared}"
