"""A CUTLASS kernel without its formula: ``split(text) -> Split | None``.

A formula is in the functors ``RegionN`` of an emitted file. The skeleton is the rest: it calls undefined functions
``evt_regionN``, and is equal for all formulas of one structure. Neither comments nor the names of the kernel and of its
tensors remain in it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from evt import resources

#: The name of every skeleton, as long as the name of a kernel, which replaces it in the made objects.
NAME = "evt_000000000000"
#: A variable of the launcher: the size of the kernel's parameters in bytes.
PARAMS = f"{NAME}_params"
#: Headers that formulas alone call, and a call of each, by which other headers may need it.
_FORMULA_HEADERS = {
    "functions.hpp": re.compile(r"\bfn::|EVT_HOST_DEVICE"),
    "functions_eager.hpp": re.compile(r"\bfn::eager::"),
    "functions_fast.hpp": re.compile(r"\bfn::fast::"),
    "rounded.hpp": re.compile(r"\bevt::rounded::"),
    "narrow.hpp": re.compile(r"\bevt::narrow\("),
}
_STRUCT = re.compile(r"typedef struct (\w+)_arguments \{\n(.*?)\n\} \1_arguments;", re.DOTALL)
_HEADER = re.compile(
    r"^// evt/([\w./]+)\n\n(.*?)(?=^// evt/[\w./]+\n\n|^// -+\n// YOUR EPILOGUE\n)", re.DOTALL | re.MULTILINE
)
_EPILOGUE = re.compile(
    r"^// YOUR EPILOGUE\n// -+\n(.*?)^namespace (\w+)_impl \{\n\nusing Arguments = ", re.DOTALL | re.MULTILINE
)
_FUNCTOR = re.compile(r"^struct Region(\d+) \{\n.*?^\};\n", re.DOTALL | re.MULTILINE)
_RESULT = re.compile(r"^  using Result = (\w+);\n", re.MULTILINE)
_APPLY = re.compile(r"^  (CUTLASS_HOST_DEVICE static Result apply)\((.*)\) \{\n(.*?)\n  \}\n", re.DOTALL | re.MULTILINE)
_PARAMETER = re.compile(r"\[\[maybe_unused\]\] (\w+) (\w+)")
_SCHEMA = re.compile(
    r'^extern "C" __attribute__\(\(visibility\("default"\)\)\) char const\* \w+_schema\(\) \{\n'
    r'  return ("(?:[^"\\]|\\.)*");\n\}\n',
    re.MULTILINE,
)
_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)+\'(?!\w))|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TENSOR = re.compile(r"\b(?:in|out)_\w+(?=;)")
_WORD = re.compile(r"\b[A-Za-z_]\w*")
_PARAMS_BYTES = f"""
#if !defined(EVT_DEVICE_PASS)
extern "C" {{
extern __attribute__((visibility("default"))) unsigned const {PARAMS};
unsigned const {PARAMS} = sizeof({NAME}_impl::Params);
}}
#endif
"""


@dataclass(frozen=True, slots=True)
class Split:
    """A kernel's skeleton and its formula, for NVRTC, and the ``schema`` of its arguments as a C string.

    ``regions`` is the number of functors in the formula.
    """

    name: str
    skeleton: str
    formula: str
    schema: str
    regions: int

    def renamed(self, made: bytes) -> bytes:
        """Return an object of the skeleton with the kernel's name."""
        return made.replace(NAME.encode(), self.name.encode())


def split(text: str) -> Split | None:
    """Return the parts of an emitted file; None for a file without regions, or of a form that is not known."""
    declared, epilogue, schema = _STRUCT.search(text), _EPILOGUE.search(text), _SCHEMA.search(text)
    functors = list(_FUNCTOR.finditer(text, epilogue.end() if epilogue else 0))
    if not (declared and epilogue and schema and functors):
        return None
    name = declared[1]
    calls = [_call(functor) for functor in functors]
    headers = [found for found in _HEADER.finditer(text) if found[1] in _FORMULA_HEADERS]
    if None in calls or epilogue[2] != name or len(name) != len(NAME):
        return None
    cuts = {found.span(): "" for found in headers}
    cuts[epilogue.span(1)] = "".join(f"{declaration};\n" for declaration, _, _ in filter(None, calls))
    cuts |= {functor.span(): call[1] for functor, call in zip(functors, calls, strict=True) if call}
    cuts[schema.span()] = ""
    rest = _without(text, cuts)
    needed = [found for found in headers if _FORMULA_HEADERS[found[1]].search(rest)]
    if needed:
        cuts = {span: new for span, new in cuts.items() if span not in {found.span() for found in needed}}
        rest = _without(text, cuts)
    skeleton = _renamed(_uncommented(rest), name, declared[2])
    definitions = "\n".join(definition for _, _, definition in filter(None, calls))
    formula = (
        f"{_prelude(name)}\n{''.join(found[2] for found in headers)}\n{epilogue[1]}\n"
        f"namespace {name}_impl {{\n{definitions}}}\n"
    )
    return Split(name, f"{skeleton}{_PARAMS_BYTES}", formula, schema[1], len(functors))


def formula_headers() -> dict[str, str]:
    """Return empty texts for the standard headers that evt's headers include; the prelude replaces them."""
    return dict.fromkeys(("cmath", "cstdint", "cutlass/cutlass.h"), "")


def _call(functor: re.Match[str]) -> tuple[str, str, str] | None:
    """Return the declaration, the calling functor and the definition of a region's function."""
    result, apply = _RESULT.search(functor[0]), _APPLY.search(functor[0])
    if not (result and apply):
        return None
    given = apply[2].split(", ") if apply[2] else []
    parameters = [_PARAMETER.fullmatch(each) for each in given]
    if not all(parameters):
        return None
    types = [each[1] for each in parameters if each]
    function = f'extern "C" __device__ {result[1]} evt_region{functor[1]}'
    numbered = ", ".join(f"{each} x{index}" for index, each in enumerate(types))
    values = ", ".join(f"x{index}" for index in range(len(types)))
    body = f"""  {apply[1]}({numbered}) {{
#if defined(__CUDA_ARCH__)
    return ::evt_region{functor[1]}({values});
#else
    return {{}};
#endif
  }}
"""
    calling = functor[0].replace(apply[0], body)
    return (
        f"{function}({', '.join(types)}) __attribute__((const))",
        calling,
        f"{function}({apply[2]}) {{\n{apply[3]}\n}}\n",
    )


def _without(text: str, cuts: dict[tuple[int, int], str]) -> str:
    """Return a text with spans replaced."""
    parts, at = [], 0
    for (start, end), new in sorted(cuts.items()):
        parts += [text[at:start], new]
        at = end
    return "".join((*parts, text[at:]))


def _uncommented(text: str) -> str:
    """Return C++ without comments, empty lines and spaces at the ends of lines."""
    plain = _COMMENT.sub(lambda found: found[1] or " ", text)
    return "".join(f"{line}\n" for each in plain.splitlines() if (line := each.rstrip()))


def _renamed(text: str, name: str, members: str) -> str:
    """Return C++ with other names for the kernel and its tensors; names that collide stay."""
    tensors = {each: f"{each.split('_')[0]}_{index}" for index, each in enumerate(_TENSOR.findall(members))}
    longest = sorted(tensors, key=len, reverse=True)
    ends = re.compile(rf"(?:^|(?<=_))(?:{'|'.join(map(re.escape, longest))})$") if longest else None

    def of(word: str) -> str:
        if word == name or word.startswith(f"{name}_"):
            return NAME + word.removeprefix(name)
        return ends.sub(lambda found: tensors[found[0]], word) if ends and ("in_" in word or "out_" in word) else word

    words = set(_WORD.findall(text))
    new = {word: of(word) for word in words}
    if len(set(new.values())) < len(new):
        new = {word: word if other in tensors else other for word, other in new.items()}
    return _WORD.sub(lambda found: new[found[0]], text)


@functools.cache
def _prelude_text() -> str:
    return resources.text("codegen", "include/evt/formula.hpp")


def _prelude(name: str) -> str:
    """Return the prelude, with evt's functions in the kernel's namespace."""
    return (
        _prelude_text()
        .replace("\nnamespace evt {\n", f"\nnamespace {name}_impl {{\nnamespace evt {{\n")
        .replace("}  // namespace evt\n", "}  // namespace evt\n}\n")
    )
