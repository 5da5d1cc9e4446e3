"""The epilogue of an own kernel: passes over the elements of a step, made of the operations of evt."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from evt.emission.expressions import REGISTER, comment, fragment_element, literal
from evt.emission.multiplication import multiplication
from evt.emission.operations import Names, listed, members, operation
from evt.emission.text import ColumnText, FragmentText, NodeText, PassText, StepText
from evt.ir.dtype import B1, I32, I64
from evt.launch.members import has_part
from evt.plan import Plan
from evt.plan.epilogue.broadcasts import ColumnBroadcast, Coordinate, PairBroadcast, RowBroadcast, ScalarBroadcast
from evt.plan.epilogue.computes import Apply, BlockReduce, PlaceKeys
from evt.plan.epilogue.loads import AccFetch, MaskLoad, SourceFetch
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Number, ResultShape
from evt.plan.epilogue.writes import MaskStore, Reduction
from evt.plan.gemv import Gemv
from evt.plan.geometry.halo import STEP_PIXELS
from evt.plan.joined import joins_bits, loads_bits, mask_of
from evt.plan.moved import further
from evt.plan.plan import DepthwiseConvolution, FilterGradient, HaloConvolution, Mainloop, OwnProduct
from evt.plan.transposed import is_transposed, transpose

#: The namespaces of the lanes of main loops, if not ``kit``.
_LANES: Mapping[type[Mainloop], str] = {DepthwiseConvolution: "depthwise", FilterGradient: "wgrad"}


def fragment(plan: Plan) -> FragmentText:
    """Return the epilogue of a plan as passes over the elements of a step, in the order of its steps."""
    passes, transposed = _Passes(plan, _lanes(plan)), is_transposed(plan)
    steps = [transpose(step) if transposed else step for step in plan.steps]
    for step in steps:
        passes.add(step)
    return FragmentText(
        source=fragment_element(plan.source.dtype) if plan.source else "void",
        destination=fragment_element(plan.destination.dtype) if plan.destination else "void",
        further=_further(plan),
        parts=tuple(passes.parts.values()),
        result=passes.result(),
        passes=tuple(passes.done()),
        places=any(step.reads_rows for step in steps),
        transposed=transposed,
        unaligned=isinstance(plan.mainloop, OwnProduct) and plan.mainloop.unaligned,
        keeps_zeros=isinstance(plan.mainloop, HaloConvolution) and plan.mainloop.keeps_zeros,
        multiplication=None if isinstance(plan.mainloop, DepthwiseConvolution | Gemv) else multiplication(plan),
        lanes=passes.lanes,
        of_columns=tuple(passes.of_columns),
    )


def _further(plan: Plan) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the elements of the matrices beside C and D that the kernel moves, if there are any."""
    found = further(plan)
    names = ("Loads", "Stores") if any(found) else ()
    return tuple(
        (name, tuple(fragment_element(step.dtype) for step in each)) for name, each in zip(names, found, strict=False)
    )


def _lanes(plan: Plan) -> str:
    """Return the lanes of an own kernel: see codegen/include/evt/fragment.hpp."""
    if isinstance(plan.mainloop, OwnProduct) and plan.mainloop.pairs:
        return listed("evt::kit::LanesOfPairs", (str(plan.mainloop.pairs),))
    return f"evt::{_LANES.get(type(plan.mainloop), 'kit')}::Lanes"


@dataclass(slots=True)
class _Pass:
    """A loop over elements under construction. ``kept`` are the values that later passes read."""

    exchanges: list[StepText] = field(default_factory=list)
    steps: list[StepText] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Value:
    """The value of a step: its type, and the expression of element i. A ``name`` is a variable of pass ``made``.

    ``of_column``: the elements of a column have one value.
    """

    type: str
    text: str
    name: str = ""
    made: int = 0
    of_column: bool = False


class _Passes:
    """The objects and statements of an epilogue. An exchange between lanes begins another pass over the elements."""

    def __init__(self, plan: Plan, lanes: str) -> None:
        self.plan = plan
        self.lanes = lanes
        self.names = Names(
            self.part,
            fragment_element,
            batched=False,
            many=isinstance(plan.mainloop, OwnProduct) and plan.mainloop.has_many,
            packed=isinstance(plan.mainloop, OwnProduct),
        )
        self.loads, self.stores = further(plan)
        self.mask = mask_of(plan)
        self.parts: dict[str, NodeText] = {}
        self.passes = [_Pass()]
        self.of_columns: list[ColumnText] = []
        self.values: list[_Value] = []  # of each step

    def part(self, operation: str, arguments: tuple[str, ...]) -> str:
        """Return the type of an operation's object. A column broadcast has values for all rows of a warp's tile."""
        lanes, loop, config = self.lanes, self.plan.mainloop, self.plan.config
        if operation == "ColumnBroadcast" and isinstance(loop, OwnProduct | Gemv):
            rows = STEP_PIXELS if config.schedule == "own_rows" else config.tile[0]
            rows = config.tile[1] if is_transposed(self.plan) else rows
            rows = loop.tile.rows_of_warp if isinstance(loop, Gemv) else rows
            paired = (lanes,) if isinstance(loop, OwnProduct) and loop.pairs else ()
            lanes = listed("evt::fragment::LanesOfTile", (str(rows), *paired))
        if operation == "MaskLoad" and loads_bits(self.plan):
            lanes = listed("evt::fragment::LanesOfTile", (str(config.tile[0]), lanes))
            return listed("evt::own::Part", (lanes, "evt::own::TileMaskLoad"))
        if operation == "MaskStore" and joins_bits(self.plan):
            return listed("evt::own::Part", (lanes, "evt::own::JoinedMaskStore"))
        return listed("evt::own::Part", (lanes, listed(f"evt::epilogue::{operation}", arguments)))

    def add(self, step: Step) -> None:
        """Add a step: its object, if it has one, its statement, and its value."""
        if has_part(step):
            self.parts[step.name] = NodeText(
                step.name,
                operation(step, self.names),
                members(step, self.names),
                comment(step.origin),
                fetched=step.fetches,
                finished=isinstance(step, Reduction),
                keeps_rows=isinstance(step, MaskStore)
                or (isinstance(step, Reduction) and step.shape is ResultShape.COLUMN),
                ends_parts=isinstance(step, MaskStore) and joins_bits(self.plan),
                follows=isinstance(step, ColumnBroadcast) and isinstance(self.plan.mainloop, OwnProduct),
                begins_tiles=isinstance(step, MaskLoad) and loads_bits(self.plan),
                masks_words=step is self.mask,
            )
        if step.passes:
            self.values.append(self.values[step.operands[0]])
            if step.name in self.parts:
                self.state(f"{step.name}.put({self.given(step)}, i, places);", step)
            elif step in self.stores:
                self.state(f"store.template further<{self.stores.index(step)}>(i, {self.given(step)});", step)
            return
        self.values.append(self.value(step))

    def value(self, step: Step) -> _Value:
        """Return the value of a step. A step that returns its operand stands for the operand's value."""
        match step:
            case AccFetch():
                return _Value(REGISTER[self.plan.accumulator], "acc(i)")
            case SourceFetch(dtype):
                return _Value(REGISTER[dtype.compute], "source(i)")
            case ScalarBroadcast(Number(dtype, value)):
                return _Value(REGISTER[dtype], literal(value, dtype), of_column=True)
            case Step(exchanges=True):
                return self.exchanged(step)
            case Apply(region):
                of_column = all(self.values[operand].of_column for operand in step.operands)
                made = self.named_of_column if of_column else self.named
                return made(REGISTER[step.result], f"{region.name}::apply({self.given(step)})", step)
        type_ = REGISTER[I64 if isinstance(step, PlaceKeys) else step.result]
        if step in self.loads:
            return _Value(type_, f"source.template further<{self.loads.index(step)}>(i)")
        if step.operands:
            return self.named(type_, f"{step.name}.get(i, places, {self.given(step)})", step)
        if step is self.mask:  # which the kernel applies to words of D
            return _Value(type_, "true")
        fetched = f", fetched.{step.name}" if step.fetches else ""
        return _Value(type_, f"{step.name}.get(i, places{fetched})", of_column=_is_of_column(step))

    def given(self, step: Step) -> str:
        """Return the operands of a step."""
        return ", ".join(self.read(self.values[operand]) for operand in step.operands)

    def read(self, value: _Value) -> str:
        """Return an element of a value; an array keeps values of earlier passes."""
        if not value.name or value.made == len(self.passes) - 1:
            return value.text
        self.keep(value)
        return f"{value.name}_values[i]"

    def keep(self, value: _Value) -> None:
        """Keep a variable of a pass in an array."""
        made = self.passes[value.made]
        if value.name not in made.kept:
            made.kept[value.name] = value.type
            made.steps.append(StepText((f"{value.name}_values[i] = {value.name};",), ""))

    def named(self, type_: str, text: str, step: Step) -> _Value:
        """Return a new variable."""
        name = f"v{len(self.values)}"
        self.state(f"{type_} const {name} = {text};", step)
        return _Value(type_, name, name, len(self.passes) - 1)

    def named_of_column(self, type_: str, text: str, step: Step) -> _Value:
        """Return an element of a new array of the thread's columns, which ``compute_columns`` computes."""
        name = f"c{len(self.values)}"
        read = f"{name}[Lanes::column_of(i)]"
        self.of_columns.append(ColumnText(type_, name, _statement(f"{read} = {text};", step)))
        return _Value(type_, read, of_column=True)

    def exchanged(self, step: Step) -> _Value:
        """Return the result of an exchange, as an array that later passes read."""
        operand = self.values[step.operands[0]]
        if not operand.name:
            operand = self.values[step.operands[0]] = self.named(operand.type, operand.text, step)
        type_ = operand.type
        if isinstance(step, BlockReduce) and type_ == REGISTER[B1]:
            type_ = REGISTER[I32]
        self.keep(operand)
        if self.passes[-1].steps:
            self.passes.append(_Pass())
        statement = f"auto const {step.name}_values = {step.name}.exchange({operand.name}_values, places);"
        self.passes[-1].exchanges.append(_statement(statement, step))
        return _Value(type_, f"{step.name}_values[i]")

    def state(self, statement: str, step: Step) -> None:
        self.passes[-1].steps.append(_statement(statement, step))

    def result(self) -> tuple[str, str]:
        """Return the type of the last output, and its element in the last pass."""
        return self.values[-1].type, self.read(self.values[-1])

    def done(self) -> Iterator[PassText]:
        for made in self.passes:
            kept = tuple((f"{name}_values", type_) for name, type_ in made.kept.items())
            yield PassText(tuple(made.exchanges), tuple(made.steps), kept)


def _is_of_column(step: Step) -> bool:
    """Return whether a step without operands has one value for the elements of a column of a tile."""
    if isinstance(step, Coordinate):
        return step.axis != "row"
    return isinstance(step, ScalarBroadcast | RowBroadcast | PairBroadcast)


def _statement(statement: str, step: Step) -> StepText:
    """Return a statement, wrapped to the line length."""
    lines = textwrap.wrap(statement, 108, break_long_words=False, break_on_hyphens=False)
    return StepText(tuple(lines), comment(step.origin))
