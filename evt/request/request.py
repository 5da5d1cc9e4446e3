"""The request: a program's computation and its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from operator import attrgetter
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

#: The number of results that a request keeps before it drops all, so that ever-changing sizes do not fill memory.
_MOST_ANSWERS = 256
#: The operation of a program over many products with separate extents.
GROUPED = "grouped_gemm"


@dataclass(frozen=True)
class Request:
    """A program: its graph, its settings, and the geometry of its convolution, if any.

    ``grouped`` means that it computes groups of matrix products; the graph then describes one group. ``ragged`` means
    that the groups are consecutive rows, and the graph describes all of them: see :mod:`evt.request.ragged`.
    ``functions`` are the rows of the user's functions that the graph applies: their definition is part of the program.

    Requests are equal if their graphs are equal, even if their texts differ. A request caches its hash, and pickles as
    text and numbers: see :mod:`evt.request.stored`.
    """

    dag: Dag
    settings: Settings
    convolution: Convolution | None = None
    grouped: bool = False
    ragged: bool = False
    functions: tuple[Function, ...] = field(init=False)
    #: Results derived from this object. Equal graphs may have different texts, and results show the text.
    _answers: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    #: Results that do not depend on a selected kernel: :meth:`forced` programs share them.
    _shared: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        applied = dict.fromkeys(op.function for op, _ in self.dag.table if isinstance(op, Apply))
        rows = (TABLE[name] for name in applied)
        object.__setattr__(self, "functions", tuple(row for row in rows if row.source))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.dag, self.settings, self.convolution, self.grouped, self.ragged, self.functions))

    def __copy__(self) -> Request:
        return self

    def __deepcopy__(self, memo: object) -> Request:
        return self

    def __getstate__(self) -> dict[str, object]:
        return write_state(self.dag, self.settings, self.convolution, self.functions, self.grouped, self.ragged)

    def __setstate__(self, state: Mapping[str, object]) -> None:
        self.__init__(*read_state(state))  # type: ignore[misc]

    @property
    def operation(self) -> str:
        """The operation's name: ``gemm``, ``conv2d``..."""
        return GROUPED if self.grouped else self.dag.operation

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in order of first use."""
        return tuple(value.name for value in self.dag.inputs)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in ``out`` order."""
        return tuple(value.name for value in self.dag.outputs)

    @property
    def operand_modes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes of the last two dimensions of A and of B."""
        if self.dag.operands:
            return self.dag.operands[0].modes, self.dag.operands[1].modes
        return OPERATIONS[self.dag.operation]

    @property
    def source(self) -> Source:
        """The program's text, or the text of the graph if there is none."""
        return self.dag.source or Source(str(self.dag), "<graph>")

    @property
    def is_forced(self) -> bool:
        """True if the user selected the route or the configuration."""
        return self.settings.route is not None or self.settings.config is not None

    @property
    def may_be_measured(self) -> bool:
        """True if measurements choose the kernel: neither the user nor ``batch_invariant`` does."""
        return not (self.is_forced or self.settings.batch_invariant or self.ragged)

    def forced(self, route: str | None, config: str | None) -> Request:
        """Return the program with a selected route and configuration."""
        made = replace(self, settings=replace(self.settings, route=route, config=config))
        object.__setattr__(made, "_shared", self._shared)
        return made

    @cached_property
    def member(self) -> Request:
        """The program of one group, without its grouped route."""
        return replace(self, settings=replace(self.settings, route=None), grouped=False)


def remembered(
    function: Callable[Concatenate[Request, _Question], _Answer],
) -> Callable[Concatenate[Request, _Question], _Answer]:
    """Cache a function's results in the request, so that equal arguments return one object."""
    return _cached(function, attrgetter("_answers"))


def remembered_for_kernels(
    function: Callable[Concatenate[Request, _Question], _Answer],
) -> Callable[Concatenate[Request, _Question], _Answer]:
    """Cache as :func:`remembered` the results of a function that ignores the selected route and configuration."""
    return _cached(function, attrgetter("_shared"))


def _cached(
    function: Callable[Concatenate[Request, _Question], _Answer],
    answers_of: Callable[[Request], dict[object, Any]],
) -> Callable[Concatenate[Request, _Question], _Answer]:
    @wraps(function)
    def asked(request: Request, /, *question: _Question.args, **named: _Question.kwargs) -> _Answer:
        key, answers = (function, question, *named.items()), answers_of(request)
        found: _Answer | None = answers.get(key)
        if found is not None:
            return found
        if len(answers) >= _MOST_ANSWERS:
            answers.clear()
        answer: _Answer = answers.setdefault(key, function(request, *question, **named))
        return answer

    return asked
