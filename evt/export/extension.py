"""A PyTorch extension as files: ``torch_extension(name, programs, targets, example_of) -> {path: text}``."""

from __future__ import annotations

import json
import pprint
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evt import resources
from evt.export.example import Data, Example
from evt.export.kernels import Kernel, Named, kernels_of
from evt.export.names import check_names
from evt.export.print import kernel_row, rendered, text_of
from evt.export.schema import Schema, schemas_of
from evt.export.tables import program_table, shape_table
from evt.plan import Target

#: The C++ that every extension shares.
_HEADERS = (
    "aten.hpp",
    "aten_operators.hpp",
    "call.hpp",
    "memory.hpp",
    "program.hpp",
    "stable.hpp",
    "stable_operators.hpp",
    "tensor.hpp",
)


@dataclass(frozen=True)
class _Operator:
    """A program in the form of the templates."""

    program: Named
    kernels: tuple[Kernel, ...]
    schemas: tuple[Schema, ...]
    extension: str

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def convolution(self) -> bool:
        return self.program.request.convolution is not None

    @property
    def text(self) -> tuple[str, ...]:
        """The lines of the program and of its interface."""
        return text_of(self.kernels)

    @property
    def table(self) -> str:
        return program_table(self.program, self.kernels, f"{self.extension}::{self.name}")

    @property
    def shapes(self) -> str:
        """The table that the package's Python reads."""
        return pprint.pformat(shape_table(self.program), width=100, sort_dicts=False)

    @property
    def capabilities(self) -> list[int]:
        return sorted({each for kernel in self.kernels for each in kernel.capabilities})

    @property
    def rows(self) -> list[Mapping[str, str]]:
        """The rows of the README's table of kernels."""
        return [kernel_row(kernel) for kernel in self.kernels]


def torch_extension(
    name: str,
    programs: Sequence[Named],
    targets: Sequence[Target],
    example_of: Callable[[Named], Example] | None = None,
    *,
    digested: bool = False,
) -> dict[str, str]:
    """Return the files of an extension whose operators are ``torch.ops.NAME.PROGRAM``, by their paths.

    ``example_of`` makes the calls of its tests; without it there are none. ``digested`` means that the name is a digest
    of the programs: a process may then load several libraries of one name, and the first one counts. Such a library is
    for the release that it is built with: programs in C++ load it without the package's Python. Raise ArgumentError
    (E0607) for invalid names; ProgramError and TargetError for programs that cannot be compiled.
    """
    check_names("torch", name, programs)
    operators = [
        _Operator(program, kernels_of(program, targets, f"{name}_{program.name}"), schemas_of(program), name)
        for program in programs
    ]
    kernels = [kernel for each in operators for kernel in each.kernels]
    values: dict[str, Any] = {
        "name": name,
        "programs": operators,
        "digested": digested,
        "flags": resources.NVCC_FLAGS,
        "kernels": [(each.emitted.name, each.target) for each in kernels],
    }
    files = {
        "pyproject.toml": rendered("torch/pyproject.toml.jinja", values),
        "setup.py": rendered("torch/setup.py.jinja", values),
        "README.md": rendered("torch/README.md.jinja", values),
        f"{name}/__init__.py": rendered("torch/__init__.py.jinja", values),
        f"{name}/shapes.py": resources.text("codegen", "export/torch/shapes.py"),
        "csrc/binding.cpp": rendered("torch/binding.cpp.jinja", values),
    }
    for header in _HEADERS:
        files[f"csrc/{header}"] = resources.text("codegen", f"export/torch/csrc/{header}")
    for kernel in kernels:
        files[f"csrc/kernels/{kernel.emitted.name}.cu"] = kernel.emitted.text
        files[f"csrc/kernels/{kernel.emitted.name}.h"] = kernel.emitted.header
    if example_of is None:
        return files
    files[f"tests/test_{name}.py"] = rendered("torch/test.py.jinja", values)
    for program in programs:
        files[f"tests/{program.name}.json"] = json.dumps(_stored(example_of(program)), indent=1) + "\n"
    return files


def _stored(example: Example) -> dict[str, object]:
    """Return an example in JSON form."""

    def stored(value: object) -> object:
        if not isinstance(value, Data):
            return value
        shape, strides = list(value.shape), list(value.strides)
        return {"dtype": value.dtype, "shape": shape, "strides": strides, "data": value.data.hex()}

    return {
        "arguments": {name: stored(value) for name, value in example.arguments.items()},
        "results": {name: stored(value) for name, value in example.results.items()},
        "tolerances": dict(example.tolerances),
    }
