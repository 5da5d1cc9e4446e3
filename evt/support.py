"""Whether a target has a kernel for a program: ``supports(program, arch=..., shapes=...) -> Support``.

Only rules are asked. Nothing is compiled or measured, and no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from evt.described import Described
from evt.diagnostics import Diagnostic, visible
from evt.errors import ArgumentError, EvtError, InternalError, ProgramError, TargetError
from evt.estimate import Estimate, costs_of, estimate
from evt.html import Html, code, page, table
from evt.measured import named_card
from evt.plan import Plan, Survey, survey
from evt.plan.batches import refusal
from evt.plan.speed import fastest
from evt.plan.verdict import Refusal
from evt.program import DEFAULT_ARCH, Program
from evt.request import LOOP, Request, Shapes, grouped_problem, packed_problem, problem_sizes
from evt.request.given import check_kind

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from evt.settings import ConvolutionKeywords


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason why there is no kernel.

    ``code`` names the rule of a ``route`` that fails, and ``rule`` is its statement. A reason that precedes all routes
    has the code of a diagnostic (E0501: there is no such target), and no route and rule.
    """

    code: str
    message: str
    route: str = ""
    rule: str = ""

    def __str__(self) -> str:
        return f"{f'{self.route}: ' if self.route else ''}{self.code}: {self.message}"

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "route": self.route, "rule": self.rule}


@dataclass(frozen=True, slots=True, repr=False)
class Support:
    """The answer of :func:`supports`; it is true if the target has a kernel.

    ``route`` and ``config`` are the kernel that a call takes without measurements, and ``routes`` all routes that
    apply, in order of preference. ``estimate`` is its estimated time if the shapes are known. ``reasons`` are all
    reasons why there is no kernel: empty if there is one.
    """

    target: str
    route: str | None = None
    config: str | None = None
    estimate: Estimate | None = None
    routes: tuple[str, ...] = ()
    reasons: tuple[Reason, ...] = ()

    @property
    def supported(self) -> bool:
        """True if the target has a kernel."""
        return self.route is not None

    def __bool__(self) -> bool:
        return self.supported

    def __str__(self) -> str:
        if self.supported:
            lines = [
                f"yes: {self.route} {self.config} on {self.target}",
                *([str(self.estimate)] if self.estimate else ()),
            ]
        else:
            lines = [f"no kernel on {self.target}:", *(f"  {reason}" for reason in self.reasons)]
        return visible("\n".join(lines), keep="\n")

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        if self.supported:
            return page(code(str(self).partition("\n")[0]), Html(self.estimate._repr_html_() if self.estimate else ""))
        rows = [(each.route, each.code, each.message) for each in self.reasons]
        return page(table(("route", "code", "reason"), rows, f"no kernel on {self.target}"))

    def to_json(self) -> dict[str, object]:
        """Return a dict ready for JSON."""
        return {
            "supported": self.supported,
            "target": self.target,
            "route": self.route,
            "config": self.config,
            "estimate": self.estimate.to_json() if self.estimate else None,
            "routes": list(self.routes),
            "reasons": [reason.to_json() for reason in self.reasons],
        }


def supports(
    program: Described | str,
    arch: str = DEFAULT_ARCH,
    shapes: Shapes | Sequence[Shapes] | None = None,
    *,
    a: str | None = None,
    b: str | None = None,
    operation: str | None = None,
    **keywords: Unpack[ConvolutionKeywords],
) -> Support:
    """Return whether a target has a kernel for a program, with its route and estimate, or every reason why not.

    ``program`` is a program, or the text of one for ``operation`` ("gemm" by default) with the ``keywords`` of
    :func:`evt.gemm`. ``arch`` is a target or a GPU. ``shapes`` of A and B, in PyTorch's order (of each group for a
    grouped program), decide alignments and give the estimate; ``a`` and ``b`` are the types of the operands.

    Nothing is compiled, and a program, type or target without a kernel raises no error. Raise ProgramError for text
    that is not a program, and ArgumentError for shapes and keywords that do not fit, or keywords beside a program.
    """
    check_kind("program", program, Described | str, "a program or its text")
    try:
        described = _described(program, operation, keywords)
    except ProgramError as error:
        if any(each.code != _UNSUPPORTED for each in error.diagnostics):
            raise
        return Support(str(arch), reasons=_diagnosed(error))
    try:
        return _support(described.request, arch, shapes, a, b)
    except (ArgumentError, InternalError):
        raise
    except EvtError as error:
        return Support(str(arch), reasons=_diagnosed(error))


def _described(program: Described | str, operation: str | None, keywords: Mapping[str, Any]) -> Described:
    """Return a program, or that of a text. Raise ArgumentError for an operation or keywords beside a program."""
    if isinstance(program, str):
        return Program(program, "gemm" if operation is None else operation, **keywords)
    if named := [*keywords, *([] if operation is None else ["operation"])]:
        message = f"`{named[0]}` belongs to a text; a program has its own operation and settings"
        raise ArgumentError(Diagnostic("E0602", message, help="leave it out, or pass the text"))
    return program


#: The code of features that evt does not support yet.
_UNSUPPORTED = "E0901"


def _support(request: Request, arch: str, shapes: Any, a: str | None, b: str | None) -> Support:
    """Return the answer for a program. Raise EvtError for reasons that precede the routes."""
    settings = request.settings
    products: list[Shapes] = [] if shapes is None else list(shapes) if request.grouped else [shapes]
    if request.grouped and settings.route != LOOP:
        found = survey(grouped_problem(request, arch, a, b, products or None), None, settings.config)
    else:
        one = request.member if request.grouped else request
        problem = packed_problem(one, arch, a, b, products[0] if products else None)
        found = survey(problem, None if request.grouped else settings.route, settings.config)
    sizes = [problem_sizes(request, each) for each in products]
    batches = max((each.get("l", 1) for each in sizes), default=1)
    reasons = tuple(_reasons(found, batches))
    refused = {reason.route for reason in reasons}
    try:
        plans = [each for each in found.defaults if each.route not in refused]
    except TargetError as error:
        return Support(found.problem.target.name, reasons=reasons or _diagnosed(error))
    if not plans:
        return Support(found.problem.target.name, reasons=reasons)
    made, expected = plans[0], None
    if sizes and not request.grouped:
        made, expected = _fastest(plans, found, sizes[0], products[0], arch)
    routes = tuple(each.route.name for each in found.asked if each.route.name not in refused)
    return Support(found.problem.target.name, made.route, made.config.name, expected, routes)


def _fastest(
    plans: Sequence[Plan], found: Survey, sizes: Any, shapes: Shapes, arch: str
) -> tuple[Plan, Estimate | None]:
    """Return the kernel that a call takes, and its estimate unless the product is empty."""
    card, costs = named_card(arch), costs_of(found.problem.program, sizes, shapes)
    made = plans[fastest(plans, sizes, card)]
    return made, estimate(made, sizes, costs, card) if costs.flops else None


def _reasons(found: Survey, batches: int) -> Iterator[Reason]:
    """Yield the reasons why routes have no kernel, in order of preference."""
    for each in found.asked:
        name = each.route.name
        for rule, verdict in each.verdicts:
            if isinstance(verdict, Refusal):
                yield Reason(rule.code, verdict.reason, name, rule.statement)
        if not each.applies:
            continue
        if found.config is None and each.general is None:
            for misfit in each.misfits:
                yield Reason("configuration", misfit.reason, name, "a configuration serves the program")
        if reason := refusal(found.problem.dag, each.max_batches, batches):
            yield Reason("batches", reason, name, f"batches are at most {each.max_batches} in a launch")


def _diagnosed(error: EvtError) -> tuple[Reason, ...]:
    return tuple(Reason(each.code, each.message) for each in error.diagnostics)


__all__ = ["Reason", "Support", "supports"]
