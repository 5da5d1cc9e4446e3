"""A kernel and its problems: ``draw_case(slot, seed) -> Case``."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from evt.compilation import KernelSource
from evt.diagnostics import Diagnostic
from evt.errors import EvtError, TargetError
from evt.plan import Candidate, Config, Plan, Target

from ..draw import Draw, Profile
from ..generator import generate
from ..sizes import geometry
from ..tree import Program
from .calls import made_call
from .extents import resized, units_of
from .kinds import Slot
from .stock import stock_program

#: The number of programs drawn for a kernel, and of problems for each launch of it.
ATTEMPTS, TRIES = 300, 6


@dataclass(frozen=True)
class Case:
    """A kernel with its problems: programs of one text and different sizes, data and pitches.

    ``layouts`` decides about the order and alignment of tensors in memory; with 0 they are packed.
    """

    index: int
    route: str
    problems: tuple[Program, ...]
    layouts: int
    source: KernelSource
    refused: int = 0

    @property
    def program(self) -> Program:
        return self.problems[0]

    @property
    def types(self) -> str:
        return self.program.a if self.program.a == self.program.b else f"{self.program.a}*{self.program.b}"

    @property
    def deterministic(self) -> bool:
        return dict(self.program.settings).get("deterministic") is not False


def draw_case(slot: Slot, seed: int, target: Target, launches: int = 4, attempts: int = ATTEMPTS) -> Case | None:
    """Return the kernel of a slot, or None if no program drawn for it has one on the slot's route."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for attempt in range(attempts):
            number = (seed * 1_000_003 + slot.index) * 10_007 + attempt
            draw = Draw(number)
            try:
                case = _attempt(draw, slot, number, target, launches)
            except EvtError:
                continue
            return replace(case, refused=attempt)
    return None


def _attempt(draw: Draw, slot: Slot, number: int, target: Target, launches: int) -> Case:
    """Return the case of one draw. Raise EvtError where evt refuses it."""
    kind = slot.kind
    program = _program(draw, slot, number)
    units, layouts = units_of(draw, kind, program), 0 if draw.chance(6) else number
    first = resized(draw, kind, program, units, True)
    call = made_call(first, layouts, "cpu")
    chosen = call.survey(target).chosen
    first = replace(first, settings=(*first.settings, ("config", _config(draw, chosen))))
    call = made_call(first, layouts, "cpu")
    source = call.source(target)
    problems = [first]
    for turn in range(TRIES * (launches - 1)):
        if len(problems) == launches:
            break
        other = replace(resized(draw, kind, first, units, False), seed=number * 100 + turn)
        if _extents(other) in map(_extents, problems):
            continue
        try:
            if made_call(other, layouts, "cpu").source(target) == source:
                problems.append(other)
        except EvtError:
            continue
    if len(problems) == 1 < launches and draw.chance(1.1):  # a kernel that few sizes take
        raise TargetError(Diagnostic("E0502", "the kernel takes no other problem"))
    return Case(slot.index, kind.route, tuple(problems), layouts, source)


def _extents(problem: Program) -> tuple[object, ...]:
    return problem.sizes, problem.geometry, problem.groups


def _config(draw: Draw, chosen: Candidate) -> str:
    """Return the name of a configuration that fits, half of the time one that is built without a request.

    Raise TargetError if none is found.
    """
    known = chosen.default_configs if draw.chance(2) else _all_configs(chosen)
    for _ in range(TRIES):
        config = draw.pick(known)
        if isinstance(chosen.try_plan(config), Plan):
            return config.name
    raise TargetError(Diagnostic("E0502", "no configuration fits"))


def _all_configs(chosen: Candidate) -> tuple[Config, ...]:
    """Return the configurations; of products also the tiles that only a request builds."""
    return tuple(chosen.search_space.values()) if chosen.route.name.startswith("gemm-own") else chosen.configs


def _program(draw: Draw, slot: Slot, number: int) -> Program:
    """Return the program of a slot, with sizes that are replaced."""
    kind = slot.kind
    if kind.stock:
        program = stock_program(number, draw.pick(kind.operations), slot.pair)
        if program.operation.startswith("conv"):
            program = replace(program, geometry=geometry(draw, program.operation, 1))
    else:
        profile = Profile(kind.operations, pairs=(slot.pair,), feeds=kind.feeds, by_offsets=kind.by_offsets)
        program = generate(number, profile)
    kept = [(name, value) for name, value in program.settings if name not in ("fast_math", "route")]
    route = [] if kind.grouped and not kind.by_offsets else [("route", kind.route)]
    return replace(program, settings=(*kept, *route), views=False)
