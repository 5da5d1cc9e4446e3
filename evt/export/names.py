"""What programs, packages and arguments may be called where they are exported."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable

from evt.diagnostics import Diagnostic, shown
from evt.errors import ArgumentError
from evt.export.kernels import Named

#: Longer names would make names of functions that emission refuses.
_LONGEST = 30
#: Words of C++ that a program may not be called, besides Python's.
# fmt: off
_RESERVED = frozenset([
    "alignas", "alignof", "auto", "bool", "case", "catch", "char", "class", "const", "constexpr", "default",
    "delete", "do", "double", "enum", "explicit", "export", "extern", "float", "friend", "goto", "inline",
    "int", "long", "mutable", "namespace", "new", "operator", "private", "protected", "public", "register",
    "short", "signed", "sizeof", "static", "struct", "switch", "template", "this", "throw", "typedef",
    "typename", "union", "unsigned", "using", "virtual", "void", "volatile",
])
# fmt: on


def check_name(what: str, name: str) -> None:
    """Raise ArgumentError (E0607) for what cannot be a package or an operator."""
    fits = re.fullmatch(rf"[A-Za-z][A-Za-z0-9_]{{0,{_LONGEST - 1}}}", name)
    if fits and not keyword.iskeyword(name) and name not in _RESERVED:
        return
    suggested = re.sub(r"[^A-Za-z0-9_]+", "_", name).lstrip("_0123456789")[:_LONGEST] or "kernels"
    suggested += "_op" if keyword.iskeyword(suggested) or suggested in _RESERVED else ""
    message = f"{what} is called {shown(name)}; expected a letter, then letters, digits and underscores"
    message += f", at most {_LONGEST}, and no word of Python or C++"
    raise ArgumentError(Diagnostic("E0607", message, help=f"call it `{suggested}`"))


def check_names(package: str, programs: Iterable[Named]) -> None:
    """Raise ArgumentError (E0607) for names that a package and its programs cannot have, or that two have."""
    check_name("the package", package)
    seen: set[str] = set()
    for name in (program.name for program in programs):
        check_name("a program", name)
        if name.lower() in seen:  # some file systems do not tell them apart
            message = f"two programs are called `{name}`"
            raise ArgumentError(Diagnostic("E0607", message, help="name each: `NAME: FORMULA`, or rename its file"))
        seen.add(name.lower())
