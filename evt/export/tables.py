"""A program as the tables that the exported C++ reads: ``program_table(program, kernels, qualified) -> str``; as the
dictionary that the package's Python reads: ``shape_table(program) -> dict``.

``codegen/export/torch/csrc/program.hpp`` defines the structs; ``codegen/export/torch/shapes.py`` reads the dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from evt.export.kernels import Kernel, Named
from evt.export.number import cxx_number
from evt.export.schema import is_number
from evt.ir import Input, Interleave, Operand, Output, TypedDag
from evt.ir.convolution import Convolution
from evt.ir.dtype import B1, BOOL, I32, I64, DType
from evt.ir.node import base, distance, divisor, index_of, is_divided, written
from evt.ir.operand import epilogue_of
from evt.plan import Field

_SCALAR_TYPES = {
    "float64": "Double",
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8_e4m3fn",
    "float8_e5m2": "Float8_e5m2",
    "int64": "Long",
    "int32": "Int",
    "int8": "Char",
    "uint8": "Byte",
    "bool": "Bool",
}
#: Settings of the scheduler, which a call leaves to the kernel.
_SETTINGS = frozenset(["swizzle", "raster", "tile_rows", "tile_columns"])
_MEMBERS = {"pointer": "pointer", "number": "number", "integer": "integer", "size": "stride"}


def program_table(program: Named, kernels: Sequence[Kernel], qualified: str) -> str:
    """Return the definition of a program, whose operator is called ``qualified`` in errors."""
    dag, request = program.dag, program.request
    places = {name: place for place, name in enumerate(program.values)}
    values = [
        *map(_operand, dag.operands),
        *(_input(each, request.convolution) for each in dag.inputs),
        *(_output(each, request.convolution) for each in dag.outputs),
    ]
    parts = [
        json.dumps(qualified),
        "true" if dag.operation == "linear" else "false",
        _geometry(request.convolution),
        _block(values),
        _list(f"{{{width}, {json.dumps(what)}}}" for width, what in _columns(dag)),
        _block([_kernel(each, places) for each in kernels]),
    ]
    return f"Program const program_{program.name}{{\n    " + ",\n    ".join(parts) + "};\n"


def shape_table(program: Named) -> dict[str, Any]:
    """Return a program's modes, types and geometry, which give the shapes of its results."""
    dag, geometry = program.dag, program.request.convolution
    inputs: list[Operand | Input] = [*dag.operands, *dag.inputs]
    return {
        "linear": dag.operation == "linear",
        "convolution": None if geometry is None else _numbers(geometry),
        "columns": _columns(dag),
        "inputs": [_shape(each.name, each.dtype, each.modes) for each in inputs],
        "outputs": [
            _shape(each.name, each.dtype, each.memory_modes)
            | {"bits": each.dtype == B1, "image": _is_image(each, geometry)}
            for each in dag.outputs
        ],
    }


def _shape(name: str, dtype: DType | None, modes: Iterable[str]) -> dict[str, Any]:
    assert dtype is not None
    return {"name": name, "dtype": dtype.torch, "modes": [(base(mode), divisor(mode)) for mode in modes]}


def _numbers(geometry: Convolution) -> dict[str, Any]:
    names = ("stride", "dilation", "output_padding", "kernel_size", "padding")
    return {"kind": geometry.operator, **{name: getattr(geometry, name) for name in names}}


def _list(items: Iterable[str]) -> str:
    return "{" + ", ".join(items) + "}"


def _block(items: Iterable[str]) -> str:
    return "{\n" + "".join(f"        {each},\n" for each in items) + "    }"


def _modes(modes: Iterable[str]) -> str:
    found = []
    for mode in modes:
        letter = f"'{base(mode)}'"
        if index_of(mode):
            found.append(f"{{{letter}, 1, true}}")
        else:
            found.append(f"{{{letter}, {divisor(mode)}}}" if divisor(mode) > 1 else f"{{{letter}}}")
    return _list(found)


def _type(dtype: DType | None) -> str:
    assert dtype is not None
    return f"types::{_SCALAR_TYPES[dtype.torch]}"


def _operand(value: Operand) -> str:
    return f'{{"{value.name}", {_type(value.dtype)}, Kind::operand, {_modes(value.modes)}}}'


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _is_image(value: Input | Output, geometry: Convolution | None) -> bool:
    """Return whether a tensor is shaped [N, C, ...], as evt.reference.is_image does, which imports torch."""
    return geometry is not None and value.modes == ("m", "n") and value.dtype != B1


def _input(value: Input, geometry: Convolution | None) -> str:
    assert value.dtype is not None
    kind = "number" if is_number(value) else "flexible" if value.flexible else "tensor"
    fallback, range_ = "std::nullopt", ""
    if value.default is not None:
        fallback = f"Number({cxx_number(value.default, not value.dtype.is_float)})"
    if value.dtype in (I32, I64, BOOL) and is_number(value):
        range_ = f", {cxx_number(value.dtype.least, True)}, {cxx_number(value.dtype.largest, True)}"
    flags = ", ".join(map(_bool, (value.batchable, value.dtype == B1, _is_image(value, geometry))))
    name = json.dumps(value.name)
    return f"{{{name}, {_type(value.dtype)}, Kind::{kind}, {_modes(value.modes)}, {flags}, {fallback}{range_}}}"


def _output(value: Output, geometry: Convolution | None) -> str:
    flags = ", ".join(map(_bool, (value.batchable, value.dtype == B1, _is_image(value, geometry))))
    return f"{{{json.dumps(value.name)}, {_type(value.dtype)}, Kind::output, {_modes(value.memory_modes)}, {flags}}}"


def _geometry(given: Convolution | None) -> str:
    if given is None:
        return "{}"
    numbers = (given.stride, given.dilation, given.output_padding, given.kernel_size)
    lists = ", ".join(_list(map(str, each)) for each in numbers)
    if given.padding is None:
        return f"{{Convolution::{given.operator}, {lists}, std::nullopt}}"
    pairs = _list(f"{{{before}, {after}}}" for before, after in given.padding)
    of = "std::vector<std::pair<std::int64_t, std::int64_t>>"
    return f"{{Convolution::{given.operator}, {lists}, {of}{pairs}}}"


def _columns(dag: TypedDag) -> list[tuple[int, str]]:
    """Return the required divisors of the program's number of columns, and their names."""
    found = {mode for value in epilogue_of(dag).types for mode in value.modes if is_divided(mode)}
    found |= {f"n/2@{op.block}" for op, _ in dag.table if isinstance(op, Interleave)}
    made = {}
    for mode in sorted(found):
        apart = distance(mode)
        width = divisor(mode) * apart if base(mode) == "n" else 1
        pairs = "pairs of columns" if apart == 1 else f"pairs of columns {apart} apart"
        made[width] = pairs if written(mode) == "n/2" else f"blocks of {width} columns"
    return [(width, what) for width, what in sorted(made.items()) if width > 1]


def _kernel(kernel: Kernel, places: dict[str, int]) -> str:
    name = kernel.emitted.name
    needs = (
        f"{{{places[need.name]}, '{base(need.contiguous)}', {need.alignment}, Batch::{need.batch}}}"
        for need in kernel.needs
    )
    limits = (_bool(each in kernel.limits) for each in ("operands_below_2_gib", "filters_up_to_32", "im2col"))
    functions = (
        f"[](void const* arguments, std::size_t size, void* stream) {{ "
        f"return {name}_run(static_cast<{name}_arguments const*>(arguments), size, stream); }}",
        f"[](void const* arguments) {{ return {name}_workspace(static_cast<{name}_arguments const*>(arguments)); }}",
        f"{name}_error_string",
    )
    parts = [
        json.dumps(name),
        _list(map(str, kernel.capabilities)),
        _list(str(places[each]) for each in kernel.absent),
        _list(needs),
        "\n            " + _list(_member(each, places) for each in kernel.plan.fields),
        str(kernel.most_batches),
        _list(limits),
    ]
    return "{" + ", ".join(parts) + ",\n         " + ",\n         ".join(functions) + "}"


def _member(field: Field, places: dict[str, int]) -> str:
    kind = f"Member::Kind::{_MEMBERS[field.kind]}"
    if field.role == "workspace":
        return "{Member::Kind::workspace}"
    if field.tensor:
        step = f", int(Step::{field.role.replace(' ', '_')})" if field.kind == "size" else ""
        return f"{{{kind}, {places[field.tensor]}{step}}}"
    size = "zero" if field.role in _SETTINGS else field.role
    return f"{{Member::Kind::size, 0, int(Size::{size})}}"
