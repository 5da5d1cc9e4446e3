"""The value: what a program computes, and how it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from evt.diagnostics import Source
from evt.functions import TABLE, Function
from evt.ir import Apply, Dag
from evt.ir.convolution import Convolution
from evt.ir.lower import OPERATIONS
from evt.request.stored import read_state, write_state
from evt.settings import Settings

_Question = ParamSpec("_Question")
_Answer = TypeVar("_Answer")

#: The operation of a program over many products with separate extents.
GROUPED = "grouped_gemm"


@dataclass(frozen=True)
class Request:
    """A program: its graph, how it is compiled, and the geometry of its convolution, if it is one.

    ``grouped``: it computes groups of matrix products, and the graph is that of each. ``functions`` are the rows of the
    user's functions that the graph applies: their meaning is part of the program.

    Two are equal where their graphs are, even if their texts differ. A request is hashed once, and pickles as text and
    numbers: see :mod:`evt.request.stored`.
    """

    dag: Dag
    settings: Settings
    convolution: Convolution | None = None
    grouped: bool = False
    functions: tuple[Function, ...] = field(init=False)
    #: What was derived from this very object: equal graphs may have different texts, which are shown.
    _answers: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        applied = dict.fromkeys(op.function for op, _ in self.dag.table if isinstance(op, Apply))
        rows = (TABLE[name] for name in applied)
        object.__setattr__(self, "functions", tuple(row for row in rows if row.source))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dag, self.settings, self.convolution, self.grouped, self.functions))

    def __copy__(self) -> Request:
        return self

    def __deepcopy__(self, memo: object) -> Request:
        return self

    def __getstate__(self) -> dict[str, object]:
        return write_state(self.dag, self.settings, self.convolution, self.grouped, self.functions)

    def __setstate__(self, state: Mapping[str, object]) -> None:
        dag, settings, convolution, grouped = read_state(state)
        self.__init__(dag, settings, convolution, grouped)  # type: ignore[misc]

    @property
    def operation(self) -> str:
        """The operation by name: ``gemm``, ``conv2d``..."""
        return GROUPED if self.grouped else self.dag.operation

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order of first use."""
        return tuple(value.name for value in self.dag.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in ``out`` order."""
        return tuple(value.name for value in self.dag.outputs)

    @property
    def operand_modes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes of A's and B's last two dimensions."""
        if self.dag.operands:
            return self.dag.operands[0].modes, self.dag.operands[1].modes
        return OPERATIONS[self.dag.operation]

    @property
    def source(self) -> Source:
        """The program's text; of a graph without one, the graph's."""
        return self.dag.source or Source(str(self.dag), "<graph>")

    @property
    def is_forced(self) -> bool:
        """Whether the user chose the route or the configuration."""
        return self.settings.route is not None or self.settings.config is not None

    def forced(self, route: str | None, config: str | None) -> Request:
        """Return the same program by one route, in one of its configurations."""
        return replace(self, settings=replace(self.settings, route=route, config=config))

    @cached_property
    def member(self) -> Request:
        """The program of one group; without its route, which is a grouped one."""
        return replace(self, settings=replace(self.settings, route=None), grouped=False)


def remembered(
    function: Callable[Concatenate[Request, _Question], _Answer],
) -> Callable[Concatenate[Request, _Question], _Answer]:
    """Keep a function's answers with the request: the same question returns the same object."""

    @wraps(function)
    def asked(request: Request, /, *question: _Question.args, **named: _Question.kwargs) -> _Answer:
        key = (function, question, *named.items())
        found: _Answer | None = request._answers.get(key)
        return found if found is not None else request._answers.setdefault(key, function(request, *question, **named))

    return asked
