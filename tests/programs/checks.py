"""Checks of a random program, and their failures: ``check(program) -> CheckResult``.

Every check compares evt with an independent computation, or with a promise of evt. A failure has a kind that
stays the same while the program is made smaller.
"""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch

import evt
from evt.errors import EvtError, InternalError, ProgramError
from evt.optimise import ROUNDING_KEPT, optimise
from evt.request import optimised_for, typed_graph
from evt.runtime.arguments import bind
from evt.runtime.cpu_fallback import evaluate as evaluate_call

from .call import Data, arguments, buffers, problems
from .compare import compare, same
from .emitted import faults
from .evaluator import Mode, evaluate
from .interface import reductions
from .tree import Block, Call, Program, Reduce, is_constant
from .views import Views, poisoned

TARGETS = ("sm80", "sm86", "sm89", "sm90", "sm100", "sm103", "sm120")
#: Functions that give the same bits on constants however they are computed.
FOLDED = (
    *("add", "sub", "mul", "neg", "square", "abs", "sign", "min", "max", "clamp", "floor", "ceil", "round", "trunc"),
    *("relu", "relu6", "hardtanh", "fma", "lt", "le", "gt", "ge", "eq", "ne", "logical_and", "logical_or"),
    *("logical_not", "where", "isnan", "isinf", "isfinite"),
)
#: Functions of PyTorch's that tell the zeros apart, or differ between numbers and tensors.
UNSTEADY = frozenset(
    {
        *("rcp", "rsqrt", "div", "celu", "copysign", "atan2", "fmod", "remainder"),
        *("lerp", "pow", "softplus", "logit", "xlogy"),
    }
)
T = TypeVar("T")
Tensors = Mapping[str, Any]


@dataclass(frozen=True)
class Failure:
    kind: str
    detail: str


@dataclass
class CheckResult:
    """The result for one program: failures, whether a call was accepted, and the number of compared elements."""

    failures: list[Failure] = field(default_factory=list)
    accepted: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def fail(self, kind: str, detail: str) -> None:
        self.failures.append(Failure(kind, detail))

    def attempt(self, stage: str, run: Callable[[], T], where: str = "") -> T | None:
        """Return the result of a stage; None if evt refuses with a diagnostic, or fails."""
        try:
            return run()
        except InternalError as error:
            self.fail(f"{stage}: {place_of(error)}", f"{where}{error}")
        except EvtError as error:
            codes = [each.code for each in error.diagnostics]
            self.counts[f"{stage} refused {' '.join(codes[:1])} {where}".strip(": ")] += 1
            if "E0902" in codes or not codes or not all(each.message for each in error.diagnostics):
                self.fail(f"{stage}: {' '.join(codes)}", f"{where}{error}")
            if stage == "accept" and isinstance(error, ProgramError) and not all(e.span for e in error.diagnostics):
                self.fail(f"{stage}: {codes[0]} without a place", f"{where}{error}")
        except Exception as error:  # any other exception is the failure to find
            self.fail(f"{stage}: {place_of(error)}", f"{where}{type(error).__name__}: {error}")
        return None


def place_of(error: BaseException) -> str:
    """Return the type of an exception and the last place in evt that it passed."""
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if "/evt/" in frame.filename] or frames
    return f"{type(error).__name__} at {last[-1].filename.rpartition('/evt/')[2]}:{last[-1].name}"


def make(program: Program) -> Any:
    """Return evt's program. Raise EvtError."""
    keywords = dict(program.settings) | (dict(program.geometry.words) if program.geometry else {})
    return getattr(evt, program.operation)(program.text, **keywords)


def typed(program: Program, op: Any) -> Any:
    """Return evt's program, which is one for the types of its operands. Raise ProgramError."""
    typed_graph(getattr(op, "_member", op).request, *operand_types(program))
    return op


def operand_types(program: Program) -> tuple[str | None, str | None]:
    """Return the types of A and B, where the program's header does not say them."""
    return (None, None) if program.header else (program.a, program.b)


def check(program: Program, targets: Sequence[str] = TARGETS) -> CheckResult:
    """Everything that needs neither a compiler nor a GPU."""
    report = CheckResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        op = report.attempt("accept", lambda: typed(program, make(program)))
        if op is not None:
            check_names(program, op, report)
            check_emission(program, op, targets, report)
            for data in problems(program):
                check_values(program, op, data, report)
            if program.operation == "grouped_gemm" and report.accepted:
                check_groups(program, op, report)
    return report


def check_names(program: Program, op: Any, report: CheckResult) -> None:
    """Check that a program has the inputs and outputs of its text."""
    for what in ("inputs", "outputs"):
        wanted, found = ({each.name for each in getattr(program, what)}, set(getattr(op, what)))
        if wanted != found:
            report.fail(f"accept: other {what}", f"{sorted(found)}, expected {sorted(wanted)}")


def check_emission(program: Program, op: Any, targets: Sequence[str], report: CheckResult) -> None:
    """Every target gives a text or says why not; some are explained, and emitted once more."""
    types = operand_types(program)
    for index, arch in enumerate(targets):
        text = report.attempt("emit", partial(op.emit, arch, *types), f"{arch}: ")
        if text is None:
            continue
        report.counts[f"emitted {arch}"] += 1
        for fault in faults(text):
            report.fail(f"text: {fault.partition(':')[0]}", f"{arch}: {fault}")
        if (program.seed + index) % 32 == 0:
            again = report.attempt("emit", lambda: make(program).emit(arch, *types), f"{arch}: ")  # noqa: B023
            if again != text:
                report.fail("text: another one the second time", f"{arch}: {program.seed}")
        if (program.seed + index) % 32 == 1 and hasattr(op, "explain"):
            report.attempt("explain", lambda: op.explain(arch, *types).details(), f"{arch}: ")  # noqa: B023


def check_values(program: Program, op: Any, data: Data, report: CheckResult) -> None:
    """Compare the reference, in f32 and in doubles, as written and optimised, with the evaluator and itself."""
    single = getattr(op, "_member", op)  # of a grouped program, that of one group
    a, b, inputs = arguments(program, data)
    inputs = {name: value for name, value in inputs.items() if name in op.inputs}
    bound = report.attempt("bind", lambda: bind(single.request, a, b, inputs, buffers(program, data)))
    if bound is None:
        report.fail("bind: refused", "a call that fits the program")
        return
    report.accepted = True
    report.counts["evaluations"] += 1

    def evaluated(stage: str, dag: Any, float64: bool = False) -> Tensors | None:
        if dag is None:
            return None
        return report.attempt(stage, lambda: evaluate_call(single.request, replace(bound, dag=dag), float64))

    settings = dict(program.settings)
    relaxed = bool(settings.get("relaxed"))
    written = evaluated("reference", bound.dag)
    if written is None:
        return
    double = evaluated("float64", bound.dag, True)
    exact = evaluated("exact", report.attempt("optimise", lambda: optimise(bound.dag, ROUNDING_KEPT)))
    rewritten = report.attempt("optimise", lambda: optimised_for(single.request, bound.dag.operands, bound.absent))
    optimised = evaluated("optimised", rewritten)
    held, layouts = buffers(program, data), Views(program, data)
    poison = {each.name: layouts.output(each, poisoned(written[each.name])) for each in program.outputs}
    for stage, given in (("call", held), ("buffers", {**poison, **buffers(program, data)})):
        called = report.attempt(stage, lambda: call(single, a, b, inputs, given, written))  # noqa: B023
        if called is not None:
            agree(report, stage, written, called, same_bits)
        else:
            report.fail(f"{stage}: refused", "what the reference and the checks of a call accept")
    if exact is not None and is_steady(program):
        agree(report, "exact", written, exact, same)
    kinds = reductions(program)
    for stage, mode, found in (
        ("float64", Mode(single=False), double),
        ("reference", Mode(single=True), written),
        ("optimised", Mode(single=True, loose=True, finite=relaxed), optimised),
    ):
        if found is not None:
            compare(program, data, stage, evaluate(program, data, mode), found, kinds, report)


def call(op: Any, a: Any, b: Any, inputs: Tensors, given: Tensors, like: Tensors) -> Tensors:
    """Return the outputs of a call, those written into the buffers ``given`` as tensors of the usual strides."""
    every = given.keys() == set(op.outputs)
    if every:
        result = op(a, b, out=dict(given) if len(given) > 1 else next(iter(given.values())), **inputs)
    else:
        result = op(a, b, **inputs, **given)
    found = dict(zip(op.outputs, [result] if len(op.outputs) == 1 else result, strict=True))
    return found | {name: torch.empty_like(like[name]).copy_(found[name]) for name in given}


def check_groups(program: Program, op: Any, report: CheckResult) -> None:
    """Check that a call of all groups returns the results of calls of single groups."""
    groups = [arguments(program, data) for data in problems(program)]
    names = list(op.inputs)
    operands = [[each[index] for each in groups] for index in (0, 1)]
    absent = {each.name for each in program.inputs if each.given == "absent"}
    inputs = {name: [each[2][name] for each in groups] for name in names if name not in absent}
    together = report.attempt("groups", lambda: op.reference(*operands, **inputs))
    called = report.attempt("groups", lambda: op(*operands, **inputs))
    if together is None or called is None:
        report.fail("groups: refused", "what each group accepts")
        return
    for index, (a, b, given) in enumerate(groups):
        alone = op._member.reference(a, b, **{name: given[name] for name in inputs})
        alone = [alone] if len(op.outputs) == 1 else alone
        for name, whole, other, one in zip(
            op.outputs, *(_lists(op, each) for each in (together, called)), alone, strict=True
        ):
            if not (same_bits(whole[index], one) and same_bits(other[index], one)):
                report.fail("groups: another value", f"{name} of group {index}")


def _lists(op: Any, outputs: Any) -> Any:
    return [outputs] if len(op.outputs) == 1 else outputs


def agree(report: CheckResult, stage: str, one: Tensors, two: Tensors, equal: Callable[[Any, Any], bool]) -> None:
    report.counts[f"compared {stage}"] += sum(each.numel() for each in one.values())
    for name, value in one.items():
        if not equal(two[name], value):
            differ = [] if two[name].shape != value.shape else _different(two[name], value)
            report.fail(f"{stage}: another value", f"{name}: {differ}")


def _different(one: Any, two: Any) -> list[tuple[float, float]]:
    pairs = zip(one.double().flatten().tolist(), two.double().flatten().tolist(), strict=True)
    return [(x, y) for x, y in pairs if x != y and not (x != x and y != y)][:3]


def same_bits(one: Any, two: Any) -> bool:
    """Return whether type, shape, bits and, except for a tensor without elements, strides are equal."""
    if one.shape != two.shape or one.dtype != two.dtype or (one.numel() and one.stride() != two.stride()):
        return False
    return bool((one.reshape(-1).view(torch.uint8) == two.reshape(-1).view(torch.uint8)).all())


def is_steady(program: Program) -> bool:
    """Return whether every exact rewriting gives the same bits in PyTorch too."""
    nodes = list(program.expressions())
    if any(isinstance(node, Reduce | Block) and node.kind in ("sum", "mean", "var") for node in nodes):
        return False  # whose order depends on strides
    calls = [node for node in nodes if isinstance(node, Call)]
    defined = {each.name for each in program.defines}
    given_nothing = any(each.given == "absent" for each in program.inputs)
    return not given_nothing and not any(
        node.primes
        or node.function in defined
        or node.function in UNSTEADY
        or (node.function not in FOLDED and all(map(is_constant, node.arguments)))
        for node in calls
    )
