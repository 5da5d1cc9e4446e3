"""A program as an operator of PyTorch: ``schemas_of(program) -> (Schema, ...)``.

Numbers are floats, ints and bools in the operator's default schema. A program with numbers also gets an overload,
``.Tensor``, which takes them as one-element tensors and reads them on the device. The overload is defined first,
because PyTorch takes the first schema that fits, and reads tensors as numbers if it can.
"""

from __future__ import annotations

import keyword
import math
import sys
from dataclasses import dataclass

from evt.diagnostics import Diagnostic
from evt.errors import ArgumentError, TargetError
from evt.export.kernels import Named
from evt.ir import Input
from evt.ir.dtype import BOOL

#: Names of arguments that PyTorch's parser of schemas rejects.
_RESERVED = frozenset(["self", "Tensor", "out", "A", "B"])


@dataclass(frozen=True, slots=True)
class Schema:
    """One schema of an operator: its name with the overload's name, and the text that PyTorch parses.

    ``kinds`` has the first letter of each argument's type, in upper case if it may be None.
    """

    name: str
    text: str
    kinds: str

    @property
    def overload(self) -> str:
        """The name of the overload, "" for the default."""
        return self.name.partition(".")[2]

    @property
    def symbol(self) -> str:
        """The name of its kinds in C++."""
        return f"kinds_of_{self.name.replace('.', '_')}"


def schemas_of(program: Named) -> tuple[Schema, ...]:
    """Return the schemas of a program's operator.

    Raise ArgumentError (E0607) for inputs that PyTorch cannot name; TargetError (E0502) for outputs that are stored by
    an index.
    """
    dag = program.dag
    for output in dag.outputs:
        if output.is_indexed:
            message = f"`{output.name}` of `{program.name}` is stored by an index, into a buffer that the call gives"
            raise TargetError(
                Diagnostic("E0502", message, help="an operator returns new tensors: use `evt export --cmake`")
            )
    for value in dag.inputs:
        if keyword.iskeyword(value.name) or value.name in _RESERVED:
            message = f"the input `{value.name}` of `{program.name}` cannot be an argument of an operator"
            raise ArgumentError(Diagnostic("E0607", message, help=f"call it `{value.name}_`"))
    numbers = any(is_number(value) for value in dag.inputs)
    return tuple(_schema(program, tensors) for tensors in ((True, False) if numbers else (False,)))


def is_number(value: Input) -> bool:
    """Return whether an operator takes an input as a number."""
    return value.is_scalar and not value.flexible and not value.modes


def _schema(program: Named, tensors: bool) -> Schema:
    name = program.name + (".Tensor" if tensors else "")
    inputs = [_argument(value, tensors) for value in program.dag.inputs]
    listed = ", ".join(["Tensor A", "Tensor B", *(["*", *inputs] if inputs else [])])
    outputs = [f"Tensor {each.name}" for each in program.dag.outputs]
    returned = "Tensor" if len(outputs) == 1 else f"({', '.join(['Tensor'] * len(outputs))})"
    types = [each.split()[0] for each in inputs]
    kinds = "tt" + "".join(each[0].upper() if each.endswith("?") else each[0].lower() for each in types)
    return Schema(name, f"{name}({listed}) -> {returned}", kinds)


def _argument(value: Input, tensors: bool) -> str:
    if tensors or not is_number(value):
        optional = value.default is not None
        return f"Tensor? {value.name}=None" if optional else f"Tensor {value.name}"
    assert value.dtype is not None
    kind = "bool" if value.dtype == BOOL else "float" if value.dtype.is_float else "int"
    if value.default is None:
        return f"{kind} {value.name}"
    if kind == "float" and not _is_written(value.default):
        return f"{kind}? {value.name}=None"
    default = bool(value.default) if kind == "bool" else value.default
    return f"{kind} {value.name}={default!r}"


def _is_written(value: float) -> bool:
    """Return whether PyTorch's text of schemas preserves a double: no infinity, subnormal number or negative zero."""
    zero = value == 0 and math.copysign(1, value) > 0
    return zero or sys.float_info.min <= abs(value) < math.inf
