"""A program as an immutable value, before its operations: ``Described``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, TypeVar

from evt.ir.formula import formula
from evt.request import LOOP, Request, Shapes, graph_at
from evt.request.given import check_kind
from evt.request.stored import unreadable
from evt.untraced import skip_frames

if TYPE_CHECKING:
    from evt.draw.drawing import Drawing
    from evt.explanation import Explanation
    from evt.plan import Problem, Survey

_Self = TypeVar("_Self", bound="Described")


class Described:
    """An immutable value that a request describes. It compares, copies and pickles as the request does.

    Compiled kernels are not part of it: a copy is the object itself, and a pickle contains text and numbers.
    """

    request: Request
    _grouped: ClassVar[bool] = False

    @classmethod
    def _of(cls: type[_Self], request: Request) -> _Self:
        made = cls.__new__(cls)
        made._set(request)
        return made

    def _set(self, request: Request) -> None:
        self.__dict__["request"] = request
        skip_frames()

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the program's inputs, in order of first use."""
        return self.request.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the program's outputs, in ``out`` order."""
        return self.request.outputs

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed, so `{name}` cannot be set; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a {type(self).__name__} cannot be changed, so `{name}` cannot be deleted")

    def __eq__(self, other: object) -> bool:
        return self.request == other.request if isinstance(other, Described) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.request)

    def __copy__(self: _Self) -> _Self:
        return self

    def __deepcopy__(self: _Self, memo: object) -> _Self:
        return self

    def __getstate__(self) -> dict[str, object]:
        return self.request.__getstate__()

    def __setstate__(self, state: Mapping[str, object]) -> None:
        request = Request.__new__(Request)
        request.__setstate__(state)
        if request.grouped != self._grouped:
            raise unreadable(state, f"it is a program of {request.operation}")
        self._set(request)

    def graph(self, stage: str = "dag", a: str | None = None, b: str | None = None) -> Drawing:
        """Return a drawing of the program's graph: a picture in notebooks, a text at a prompt.

        ``stage`` is ``"dag"`` for the graph as written, ``"typed"`` for operands of types ``a`` and ``b``, or
        ``"optimised"``. ``op.graph().save("graph.svg")`` writes a file. Raise ArgumentError (E0607) for another stage.
        """
        from evt.draw.drawing import Drawing

        return Drawing(graph_at(self.request, stage, a, b))

    def _repr_html_(self) -> str:
        from evt.draw.program import program_html

        dag = self.request.dag
        return program_html(dag, dag.source.text if dag.source is not None else formula(dag))

    def _explain(
        self,
        problem: Problem,
        products: Sequence[tuple[Mapping[str, int], Shapes]],
        gpu: str | None,
        arch: str,
        loop: Survey | None = None,
    ) -> Explanation:
        """Explain a problem on a target or GPU, with its measurements and its estimate if its sizes are known."""
        check_kind("gpu", gpu, str | None, "its name, or a part of the name")
        from evt.explain import explain
        from evt.plan import survey

        settings = self.request.settings
        looped = problem.grouped and settings.route == LOOP
        found = survey(problem) if looped else survey(problem, settings.route, settings.config)
        if not products:
            return explain(found, loop=loop, looped=looped, unmeasured=gpu or "")
        from evt.measured import applicable, measurements, named_card, size_class
        from evt.plan.cards import asked_card, is_called

        extents, card = [sizes for sizes, _ in products], asked_card(arch)
        measured = measurements(problem, size_class(extents) if problem.grouped else extents[0])
        if gpu is not None:
            exact = tuple(each for each in measured if each.gpu == gpu)
            measured = exact or tuple(each for each in measured if gpu.lower() in each.gpu.lower())
        elif card is not None:
            measured = tuple(each for each in measured if is_called(card, each.gpu))
        best = applicable(found, measured[0]) if len(measured) == 1 and self.request.may_be_measured else None
        missing, card = "" if measured else gpu or "", named_card(arch)
        return explain(found, products, measured, best, loop, looped=looped, card=card, unmeasured=missing)
