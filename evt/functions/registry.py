"""User-defined functions: ``function("snake(x, a=1)", cxx=..., torch=...)`` adds a row to the table."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from evt.diagnostics import Diagnostic, Source, Span, shown
from evt.errors import ArgumentError
from evt.functions import formula, scalar, single
from evt.functions.probe import probe
from evt.functions.row import Fact, Function, Parameter
from evt.functions.table import TABLE
from evt.functions.words import CXX, LANGUAGE

_NAME = re.compile(r"(?!.*__)[A-Za-z][A-Za-z0-9_]*")
_SIGNATURE = re.compile(r"\s*([^\s()]*)\s*\((.*)\)\s*", re.DOTALL)
_BRACKETS = {")": "(", "]": "["}
#: In C++: a number, a name in a namespace or of a member, or a plain name, which may be a parameter.
_WORD = re.compile(r"\.?\d[\w.]*|(?:::|\.|->)\s*\w+|(?P<name>\w+)")


def function(
    signature: str,
    *,
    cxx: str,
    torch: Callable[..., Any],
    derivative: str | Sequence[str] | None = None,
    text: str = "",
    facts: Iterable[Fact] = (),
    aliases: Sequence[str] = (),
    check: bool = True,
    replace: bool = False,
) -> Function:
    """Add a function to the language::

        evt.function(
            "snake(x, a=1)",
            cxx="x + sinf(a * x) * sinf(a * x) / a",
            torch=lambda t, x, a: x + t.sin(a * x) ** 2 / a,
            derivative="1 + sin(2 * a * x)",
        )

    ``cxx`` is one C++ expression of floats over the parameters. ``torch`` computes the function on tensors, from
    ``(torch, x, a)`` or ``(x, a)``; it is the reference and computes calls on the CPU. ``derivative`` is a formula of
    the language: the derivative with respect to the first parameter, or a sequence with one for every parameter.
    ``facts`` are not checked.

    Registration compares the three at points of a grid. The C++ takes part if there is a compiler, g++ or ``CXX``, and
    if it calls no function that only the device has. ``check=False`` skips the comparison, for a derivative that
    differs on purpose, such as a straight-through estimator.

    Registering an equal function again has no effect. ``replace=True`` gives the name to the new function; existing
    programs keep the old one. Raise ArgumentError: E0651 (the name is taken), E0652 (bad signature), E0653 (bad C++),
    E0654 (bad torch function), E0655 (bad derivative), E0656 (the name has another definition), E0607 (bad facts,
    aliases or text).
    """
    name, parameters = _read_signature(signature)
    names = [parameter.name for parameter in parameters]
    if not isinstance(text, str):
        _refuse("E0607", f"`text` is of type {type(text).__name__}; expected a sentence")
    aliases = _items("E0607", "aliases", aliases, "names")
    for place, each in enumerate((name, *aliases)):
        _check_name(each)
        if each in (name, *aliases)[:place]:
            _refuse("E0651", f"`{each}` is given twice as a name of `{name}`", help="give every alias once")
    cxx = _check_cxx(cxx, names)
    meaning = _meaning(torch, name, names)
    slots = ", ".join(f"{{{slot}}}" for slot in range(len(names)))
    row = Function(
        name,
        parameters,
        text or f"A user-defined function: `{cxx}`.",
        meaning,
        f"evt::user::fn_{name}({slots})",
        None,
        _check_facts(facts),
        aliases,
        source=_source(name, names, cxx),
    )
    row = dataclasses.replace(row, derivatives=_derivatives(row, derivative))
    if (same := _registered(row, replace)) is not None:
        return same
    if check and (fault := probe(row)) is not None:
        source = Source(fault.formula, "<derivative>") if fault.formula else None
        _refuse(
            fault.code,
            fault.message,
            source,
            help="correct one of them, or pass check=False to register the function unchecked",
        )
    with TABLE.lock:
        if (same := _registered(row, replace)) is not None:
            return same
        if TABLE.lookup(name) is None:
            TABLE.add(row)
        else:
            row = _version(row)
            TABLE.supersede(row)
    return row


def _registered(row: Function, replace: bool) -> Function | None:
    """Return an equal function if it is registered. Raise ArgumentError (E0651, E0656) for a taken name."""
    found = TABLE.lookup(row.name)
    known = found if found is not None and found.source and _is_version(found, row.name) else None
    if known is not None:
        if _equal(known, row if known.name == row.name else _renamed(row, known.name)):
            return known
        if not replace:
            help_text = "give it another name, or pass replace=True: existing programs keep the first definition"
            _refuse("E0656", f"`{row.name}` is registered with another definition", help=help_text)
    for each in (row.name, *row.aliases):
        taken = TABLE.lookup(each)
        if taken is not None and taken is not known:
            help_text = f"rename it: `{each}_`, or use the existing function"
            _refuse("E0651", f"there is a function `{each}`: `{taken}`", help=help_text)
    return None


def _is_version(row: Function, name: str) -> bool:
    """Return whether a row was registered by a name, also as the replacement of an earlier row."""
    return row.name == name or (name in row.aliases and re.fullmatch(rf"{re.escape(name)}_v\d+", row.name) is not None)


def _version(row: Function) -> Function:
    """Return a row that replaces an earlier row of its name. It gets a new name, because existing programs use the old
    one.
    """
    taken = set(TABLE.names())
    return _renamed(row, next(name for n in itertools.count(2) if (name := f"{row.name}_v{n}") not in taken))


def _renamed(row: Function, name: str) -> Function:
    """Return a row with another name, and its old name as an alias."""
    source, cxx = (text.replace(f"fn_{row.name}(", f"fn_{name}(") for text in (row.source, row.cxx))
    derivatives = tuple(re.sub(rf"\b{row.name}(?=\s*\()", name, each) for each in row.derivatives)
    aliases = (*row.aliases, row.name)
    return dataclasses.replace(row, name=name, source=source, cxx=cxx, derivatives=derivatives, aliases=aliases)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A user's torch function as a row's definition: over ``torch`` on tensors, and on Python floats."""

    function: Callable[..., Any]
    takes_torch: bool

    def __call__(self, t: Any, *arguments: Any) -> Any:
        if t in (scalar, single):
            return self._on_floats(t, arguments)
        return self.function(t, *arguments) if self.takes_torch else self.function(*arguments)

    def _on_floats(self, mirror: Any, arguments: Sequence[float]) -> float:
        """Evaluate over the mirror of torch if that suffices and Python's floats do not raise, else over torch."""
        if self.takes_torch:
            try:
                return float(self.function(mirror, *arguments))
            except (AttributeError, TypeError, ValueError, ArithmeticError):
                pass
        try:
            import torch
        except ImportError:
            return math.nan  # a constant that is not finite remains as written
        dtype = torch.float64 if mirror is scalar else torch.float32
        tensors = [torch.tensor(argument, dtype=dtype, device="cpu") for argument in arguments]
        return float(self(torch, *tensors))


def _refuse(
    code: str,
    message: str,
    source: Source | None = None,
    span: Span | None = None,
    *,
    help: str = "",
    notes: tuple[str, ...] = (),
) -> NoReturn:
    if source is not None and span is None:
        span = Span(0, len(source.text))
    raise ArgumentError(Diagnostic(code, message, span, help=help, notes=notes, source=source))


def _read_signature(signature: str) -> tuple[str, tuple[Parameter, ...]]:
    """Return the name and the parameters of ``name(x, a=1)``."""
    example = "write it as `snake(x, a=1)`"
    if not isinstance(signature, str):
        _refuse("E0652", f"a signature is a str, not {type(signature).__name__}", help=example)
    source = Source(signature, "<signature>")
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        _refuse("E0652", "this is not a signature", source, help=example)
    parameters: list[Parameter] = []
    for field in match[2].split(","):
        name, equals, default = (part.strip() for part in field.partition("="))
        if not _NAME.fullmatch(name) or name in CXX or name in {each.name for each in parameters}:
            what = "is given twice" if name in {each.name for each in parameters} else "cannot be a parameter"
            _refuse("E0652", f"`{name}` {what}" if name else "a parameter has no name", source, help=example)
        try:
            value = float(default) if equals else None
        except ValueError:
            value = math.nan
        if value is not None and not math.isfinite(value):
            _refuse("E0652", f"the default of `{name}` is not a finite number: `{default}`", source, help=example)
        if value is None and parameters and parameters[-1].default is not None:
            _refuse("E0652", f"`{name}` has no default and follows one that has", source, help=example)
        parameters.append(Parameter(name, value))
    return match[1], tuple(parameters)


def _items(code: str, name: str, value: object, wanted: str) -> tuple[Any, ...]:
    """Return the items of a sequence; a text counts as one item."""
    if isinstance(value, str):
        return (value,)
    try:
        return tuple(value)  # type: ignore[arg-type]
    except TypeError:
        _refuse(code, f"`{name}` is of type {type(value).__name__}; expected {wanted}")


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        help_text = "letters, digits and single underscores, a letter first"
        _refuse("E0652", f"`{shown(name)}` cannot be a function's name", help=help_text)
    if name in LANGUAGE:
        _refuse("E0651", f"`{name}` is a word of the language", help=f"rename it: `{name}_`")


def _check_cxx(cxx: str, names: Sequence[str]) -> str:
    """Return the expression on one line, after the checks that need no C++ compiler."""
    help_text = f"write one expression over {', '.join(names)}, such as `{names[0]} * {names[0]}`"
    if not isinstance(cxx, str) or not cxx.strip():
        _refuse("E0653", "the C++ expression is empty", help=help_text)
    source = Source(cxx, "<cxx>")
    for pattern, what in (
        (r"[^\x20-\x7e\n\t]", "has a character that is not plain ASCII"),
        (r"#", "has a preprocessor line"),
        (r"//|/\*", "has a comment"),
        (r"[{};]|<%|%>|<:|:>|%:", "is more than an expression"),
        (r"[\"'\\@$`]", "has a character that arithmetic does not use"),
        (r"\b(return|asm|goto|throw|new|delete)\b", "is more than an expression"),
    ):
        if match := re.search(pattern, cxx):
            _refuse("E0653", f"the C++ {what}", source, Span(match.start(), match.end()), help=help_text)
    opened: list[int] = []
    for place, char in enumerate(cxx):
        if char in "([":
            opened.append(place)
        elif char in ")]" and (not opened or cxx[opened.pop()] != _BRACKETS[char]):
            _refuse("E0653", f"the C++ has a `{char}` that nothing opens", source, Span(place, place + 1))
    if opened:
        _refuse("E0653", f"the C++ never closes a `{cxx[opened[-1]]}`", source, Span(opened[-1], opened[-1] + 1))
    if not any(match["name"] in names for match in _WORD.finditer(cxx)):
        _refuse("E0653", "the C++ uses none of the parameters", source, help=help_text)
    return " ".join(cxx.split())


def _source(name: str, names: Sequence[str], cxx: str) -> str:
    """Return the C++ definition, with the expression on a separate line.

    The user's names get a prefix, because they may be names of macros, or of C++ functions that the expression calls.
    """
    used = set[str]()

    def prefixed(word: re.Match[str]) -> str:
        if word["name"] not in names:
            return word[0]
        used.add(word["name"])
        return f"p_{word['name']}"

    body = _WORD.sub(prefixed, cxx)
    parameters = ", ".join(f"{'' if each in used else '[[maybe_unused]] '}float p_{each}" for each in names)
    head = f"EVT_HOST_DEVICE float fn_{name}({parameters}) {{"
    return f"namespace evt::user {{\n\n{head}\n  return {body};\n}}\n\n}}  // namespace evt::user"


def _meaning(torch: Callable[..., Any], name: str, names: Sequence[str]) -> Meaning:
    """Return the torch function as a definition. Its signature decides whether it takes the namespace first."""
    wanted = f"`lambda t, {', '.join(names)}: ...` or `lambda {', '.join(names)}: ...`"
    if not callable(torch):
        _refuse("E0654", f"the PyTorch definition of `{name}` is {type(torch).__name__}, not a function", help=wanted)
    try:
        signature = inspect.signature(torch)
    except (TypeError, ValueError):  # a builtin, such as torch.sin
        return Meaning(torch, False)
    positional = [
        p.name for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]

    def takes(count: int) -> bool:
        try:
            signature.bind(*range(count))
        except TypeError:
            return False
        return True

    with_torch, without = takes(len(names) + 1), takes(len(names))
    if with_torch and (not without or positional[:1] in (["t"], ["torch"])):
        return Meaning(torch, True)
    if not without:
        _refuse(
            "E0654",
            f"the PyTorch definition of `{name}` does not take the arguments of its signature",
            help=f"write {wanted}",
        )
    return Meaning(torch, False)


def _check_facts(facts: Iterable[Fact]) -> frozenset[Fact]:
    given = _items("E0607", "facts", facts, "members of evt.functions.Fact")
    for fact in given:
        if not isinstance(fact, Fact):
            _refuse("E0607", f"a fact is a member of evt.functions.Fact, not {shown(fact)}")
    if Fact.INTEGER in given:
        _refuse("E0653", "the C++ is of floats, so `Fact.INTEGER` does not hold", help="omit that fact")
    return frozenset(given)


def _derivatives(row: Function, derivative: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one checked derivative for each parameter, "" for a parameter without one."""
    if derivative is None:
        return ()
    count = len(row.parameters)
    if isinstance(derivative, str):
        given = (derivative, *[""] * (count - 1)) if row.required <= 1 else (derivative,)
    else:
        given = _items("E0655", "derivative", derivative, "a formula, or one for each parameter")
    if len(given) != count:
        _refuse(
            "E0655",
            f"`{row.name}` has {count} parameters and {len(given)} derivative{'s' * (len(given) != 1)}",
            help=f"give one for each of {', '.join(parameter.name for parameter in row.parameters)}",
        )
    for each in given[:1] if isinstance(derivative, str) else given:
        if not isinstance(each, str):
            _refuse("E0655", f"a derivative is a formula, not {type(each).__name__}", help='such as "1 + sin(2 * x)"')
        for problem in formula.problems(each, row):
            _refuse("E0655", problem.message, problem.source, problem.span, help=problem.help)
    return given


def _equal(known: Function, row: Function) -> bool:
    """Return whether two rows are equal functions; torch functions are equal if their code and closures are."""
    a, b = known.torch, row.torch
    assert isinstance(a, Meaning)
    assert isinstance(b, Meaning)
    return dataclasses.replace(known, torch=b, text="") == dataclasses.replace(row, text="") and (
        a.takes_torch == b.takes_torch and _code(a.function) == _code(b.function)
    )


def _code(function: Callable[..., Any]) -> object:
    """Return the values that identify a Python function, without its place in a file; other callables identify
    themselves.
    """
    if not inspect.isfunction(function):
        return _plain(function)
    code = function.__code__
    around = (cell.cell_contents for cell in function.__closure__ or ())
    given = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
    return (*_plain(code), tuple(map(_plain, around)), tuple(map(_plain, given)))


def _plain(value: Any) -> tuple[object, ...]:
    """Return a comparable value: numbers and text unchanged, code by its instructions, other values by identity."""
    if inspect.iscode(value):
        constants = tuple(map(_plain, value.co_consts))
        return value.co_code, constants, value.co_names, value.co_varnames, value.co_freevars, value.co_flags
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), repr(value)
    return tuple(map(_plain, value)) if isinstance(value, tuple) else (id(value),)
