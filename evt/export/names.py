"""Valid names of programs and packages in generated files: ``check_names(kind, package, programs)``.

The files separate the user's names from their own by prefixes. This module lists the names that remain reserved.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterable
from typing import Literal, TypeAlias

from evt.diagnostics import Diagnostic, shown
from evt.errors import ArgumentError
from evt.export.kernels import Named

#: The kind of package: an extension of PyTorch, or a CMake project.
Kind: TypeAlias = Literal["torch", "cmake"]

#: The longest name; longer ones would make function names that emission refuses.
_LONGEST = 30
# fmt: off
#: Keywords and alternative tokens of C++, and macros of its standard library: callers of the kernels are in C++.
_CXX = frozenset([
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch", "char",
    "char16_t", "char32_t", "char8_t", "class", "co_await", "co_return", "co_yield", "compl", "concept", "const",
    "const_cast", "consteval", "constexpr", "constinit", "continue", "decltype", "default", "delete", "do", "double",
    "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for", "friend", "goto", "if",
    "inline", "int", "long", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or",
    "or_eq", "private", "protected", "public", "register", "reinterpret_cast", "requires", "return",
    "short", "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
    "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "typeof", "union", "unsigned", "using",
    "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
    "EOF", "HUGE_VAL", "INFINITY", "NAN", "NULL", "assert", "errno", "linux", "offsetof", "setjmp", "stderr", "stdin",
    "stdout", "unix",
])
#: Modules that an extension, its build or its tests import, and attributes of PyTorch's modules of operators.
_MODULES = frozenset([
    "cutlass", "cutlass_library", "distutils", "evt", "functorch", "numpy", "nvidia", "pip", "pkg_resources", "pytest",
    "setuptools", "torch", "torchgen", "triton", "wheel",
    "import_module", "load_library", "loaded_libraries",
])
#: Folders and files next to the folder of an extension.
_FOLDERS = frozenset(["build", "csrc", "dist", "setup", "tests"])
#: Namespaces of PyTorch's own operators.
_NAMESPACES = frozenset([
    "aten", "c10d", "c10d_functional", "debug_mode_ops", "debugprims", "export", "fbgemm", "flex_lib", "fsdp",
    "higher_order", "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "onnx",
    "onnx_symbolic", "prim", "prims", "profiler", "quantization", "quantized", "quantized_decomposed", "rngprims",
    "sparse", "static_runtime", "streams", "symm_mem", "torchaudio", "torchvision",
])
#: Targets of CMake, CTest and CPack, and packages whose variables a project of that name would set.
_TARGETS = frozenset([
    "ALL_BUILD", "CMAKE", "CTest", "CUDA", "CUDAToolkit", "CUTLASS", "INSTALL", "PACKAGE", "PROJECT", "Python3",
    "RUN_TESTS", "Threads", "ZERO_CHECK", "all", "clean", "depend", "edit_cache", "help", "install",
    "list_install_components", "package", "package_source", "preinstall", "rebuild_cache", "test",
    *(f"{model}{step}" for model in ("Continuous", "Experimental", "Nightly") for step in
      ("", "Build", "Configure", "Coverage", "MemCheck", "Start", "Submit", "Test", "Update")), "NightlyMemoryCheck",
])
# fmt: on
#: Words that PyTorch's parser of schemas reads as a value or a type, and the name of a namespace itself.
_OPERATORS = frozenset(["NoneType", "name"])


def check_package(kind: Kind, name: str) -> None:
    """Raise ArgumentError (E0607) for an invalid name of a package."""
    if kind == "cmake":
        _check("the package", name, _TARGETS, "a target or a variable of CMake")
    else:
        taken = _MODULES | _FOLDERS | _NAMESPACES | sys.stdlib_module_names
        _check("the package", name, taken, "a module of Python, a namespace of PyTorch or a folder of the sources")


def check_names(kind: Kind, package: str, programs: Iterable[Named]) -> None:
    """Raise ArgumentError (E0607) for invalid names of a package and its programs, and for duplicates."""
    check_package(kind, package)
    seen: set[str] = set()
    for name in (program.name for program in programs):
        _check("a program", name, _OPERATORS if kind == "torch" else frozenset(), "a word of PyTorch")
        if name.lower() in seen:  # some file systems do not distinguish them
            message = f"two programs are called `{name}`"
            raise ArgumentError(Diagnostic("E0607", message, help="name each: `NAME: FORMULA`, or rename its file"))
        seen.add(name.lower())


def _check(what: str, name: str, taken: frozenset[str], of: str) -> None:
    """Raise ArgumentError (E0607) for a name of another form, a word of Python or C++, and a name that is ``taken``."""
    if _is_free(name, taken):
        return
    if is_identifier(name):
        message = f"{what} is called `{name}`, which is {of if name in taken else 'a word of Python or C++'}"
    else:
        message = f"{what} is called {shown(name)}; expected a letter, then letters, digits and single underscores"
        message += f" between them, at most {_LONGEST}"
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).lstrip("_0123456789")
    suggested = (f"{plain[: _LONGEST - len(end)].rstrip('_')}{end}" for end in ("", "_op"))
    help = next((each for each in suggested if plain and _is_free(each, taken)), "kernels")
    raise ArgumentError(Diagnostic("E0607", message, help=f"call it `{help}`"))


def _is_free(name: str, taken: frozenset[str]) -> bool:
    return is_identifier(name) and not keyword.iskeyword(name) and name not in _CXX and name not in taken


def is_identifier(name: str) -> bool:
    """Return whether a name is an identifier: C++ reserves double underscores, and packages end in no underscore."""
    return len(name) <= _LONGEST and re.fullmatch(r"[A-Za-z](_?[A-Za-z0-9])*", name) is not None
