"""A CMake project as files: ``cmake_project(name, programs, targets, example_of) -> {path: text}``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evt import resources
from evt.export.example import Data, Example
from evt.export.kernels import Kernel, Named, is_optional, kernels_of
from evt.export.names import check_names
from evt.export.number import cxx_number
from evt.export.print import kernel_row, rendered, text_of
from evt.ir import Output
from evt.plan import Target
from evt.plan.signature import bytes_of

#: The number of bytes in a line of an array.
_LINE = 24
#: C++ types that the tests read, by PyTorch's names; a truth value is a byte.
_TYPES = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "int64": "i64",
    "int32": "i32",
    "int8": "i8",
    "uint8": "u8",
    "bool": "u8",
}


@dataclass(frozen=True)
class _Project:
    """A program in the form of the templates."""

    program: Named
    kernels: tuple[Kernel, ...]
    example: Example

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def text(self) -> tuple[str, ...]:
        """The lines of the program and of its interface."""
        return text_of(self.kernels)

    @property
    def rows(self) -> list[Mapping[str, str]]:
        """The rows of the README's table of kernels."""
        return [kernel_row(kernel) for kernel in self.kernels]

    @property
    def tested(self) -> list[Kernel]:
        """The kernel of each target that supports the example with its absent inputs."""
        optional = {each.name for each in self.program.dag.inputs if is_optional(each)}
        absent = optional - set(self.example.arguments)
        found: dict[str, Kernel] = {}
        for kernel in self.kernels:
            if set(kernel.absent) == absent:
                found.setdefault(kernel.target.name, kernel)
        return list(found.values())

    @property
    def arrays(self) -> list[Mapping[str, str]]:
        """The tensors of the example, as arrays of bytes."""
        given = {f"bytes_{name}": value for name, value in self.example.arguments.items() if isinstance(value, Data)}
        given |= {f"exact_{name}": value for name, value in self.example.results.items()}
        return [{"name": name, "comment": _shown(value), "bytes": _array(value.data)} for name, value in given.items()]

    @property
    def memories(self) -> list[Mapping[str, str]]:
        """The tensors on the GPU: the given ones and the outputs."""
        found: list[Mapping[str, str]] = []
        for name in self.program.values:
            given = self.example.arguments.get(name)
            if isinstance(given, Data):
                found.append({"name": f"memory_{name}", "value": f"bytes_{name}, sizeof(bytes_{name})"})
            elif name in self.example.results:
                found.append({"name": f"memory_{name}", "value": str(self._bytes(name))})
        return found

    @property
    def outputs(self) -> list[Mapping[str, Any]]:
        """The outputs and their expected values."""
        return [
            {
                "name": name,
                "memory": f"memory_{name}",
                "bytes": self._bytes(name),
                "type": _TYPES[self._type(name)],
                "exact_type": _TYPES[exact.dtype],
                "elements": math.prod(exact.shape),
                "tolerance": repr(self.example.tolerances[name]),
            }
            for name, exact in self.example.results.items()
        ]

    def members(self, kernel: Kernel) -> Iterator[tuple[str, str]]:
        """Yield the members of a kernel's arguments with their values, except zeros."""
        arguments, defaults = self.example.arguments, {each.name: each.default for each in self.program.dag.inputs}
        for field in kernel.plan.fields:
            given = arguments.get(field.tensor)
            if field.kind == "pointer":
                if isinstance(given, Data) or field.tensor in self.example.results:
                    yield field.name, f"memory_{field.tensor}.data()"
            elif field.kind == "size":
                if size := self.example.sizes.get((field.tensor, field.role), 0):
                    yield field.name, str(size)
            elif not isinstance(given, Data):
                number = next((each for each in (given, defaults[field.tensor]) if each is not None), 0)
                yield field.name, cxx_number(number, field.kind == "integer")

    def has_workspace(self, kernel: Kernel) -> bool:
        return any(field.role == "workspace" for field in kernel.plan.fields)

    def _type(self, name: str) -> str:
        value = self.program.values[name]
        assert isinstance(value, Output)
        assert value.dtype is not None
        return value.dtype.torch

    def _bytes(self, name: str) -> int:
        dtype = self.program.values[name].dtype
        assert dtype is not None
        return math.prod(self.example.results[name].shape) * bytes_of(dtype)


def _shown(value: Data) -> str:
    return f"{value.dtype} [{', '.join(map(str, value.shape))}], strides ({', '.join(map(str, value.strides))})"


def _array(data: bytes) -> str:
    lines = (", ".join(map(str, data[at : at + _LINE])) for at in range(0, len(data), _LINE))
    return ",\n    ".join(lines)


def cmake_project(
    name: str,
    programs: Sequence[Named],
    targets: Sequence[Target],
    example_of: Callable[[Named], Example],
) -> dict[str, str]:
    """Return the files of a CMake project whose library has the kernels, by their paths.

    Raise ArgumentError (E0607) for invalid names; ProgramError and TargetError for programs that cannot be compiled.
    """
    check_names("cmake", name, programs)
    projects = [
        _Project(program, kernels_of(program, targets, f"{name}_{program.name}"), example_of(program))
        for program in programs
    ]
    kernels = [kernel for each in projects for kernel in each.kernels]
    values: dict[str, Any] = {
        "name": name,
        "programs": projects,
        "kernels": [(each.emitted.name, each.target) for each in kernels],
    }
    files = {
        "CMakeLists.txt": rendered("cmake/CMakeLists.txt.jinja", values),
        "README.md": rendered("cmake/README.md.jinja", values),
        "test/example.hpp": resources.text("codegen", "export/cmake/example.hpp"),
    }
    for each in projects:
        files[f"test/test_{each.name}.cpp"] = rendered("cmake/test.cpp.jinja", {"program": each})
    for kernel in kernels:
        files[f"src/{kernel.emitted.name}.cu"] = kernel.emitted.text
        files[f"include/{kernel.emitted.name}.h"] = kernel.emitted.header
    return files
