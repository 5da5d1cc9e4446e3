"""Grouped products: many matrix products of one program in one launch, each with its own sizes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from evt.diagnostics import Diagnostic, hint
from evt.emission import emit as emit_plan
from evt.errors import TargetError
from evt.plan import Problem, find_target, natural_signature, plan
from evt.plan.plan import GroupedPlan
from evt.plan.routes.grouped_3x import EVT
from evt.program import DEFAULT_ARCH, Program
from evt.settings import Settings
from evt.untraced import skip_frames, untraced

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from typing_extensions import Unpack

    from evt.diagnostics import Source
    from evt.ir import Dag, Operand, TypedDag
    from evt.settings import Keywords

#: A kernel for each group, on every target.
LOOP = "loop"


class _Member(Program):
    """The program of one group. Groups of one kind have one typed graph, the same object."""

    @cached_property
    def _inferred(self) -> dict[object, TypedDag]:
        return {}

    def infer(self, dag: Dag, operands: tuple[Operand, ...]) -> TypedDag:
        key = None if dag is self.dag else dag, operands  # hashing a graph is not free
        typed = self._inferred.get(key)
        return typed if typed is not None else self._inferred.setdefault(key, super().infer(dag, operands))


class GroupedProgram:
    """A compiled formula, callable on groups of tensors. Make one with :func:`grouped_gemm`.

    Called with lists ``[A0, A1, ...]`` and ``[B0, B1, ...]`` and the program's inputs by keyword, it returns a list of
    Ds; a namedtuple of lists when there are several outputs. Groups have their own m, n and k, each of which may be 0,
    and the same types and majorness. An input is a list, one tensor or number for all groups, or a stacked tensor
    with the groups along its first dimension; so may be A, B and the buffers in ``out``.

    With ``offsets`` (a list, or a tensor on the CPU) the groups' rows lie one after the other: A is ``[total, k]``,
    inputs and outputs with rows likewise, and group i has the rows from ``offsets[i]`` to ``offsets[i + 1]``.

    CUDA tensors run one fused kernel on the current stream, without synchronisation; CPU tensors run the reference.
    ``route="loop"`` launches a kernel for each group instead, which does what a grouped kernel cannot: other
    targets, reductions, and layouts that TMA does not move.
    """

    def __init__(self, source: Source | str, **keywords: Unpack[Keywords]) -> None:
        self.settings = Settings.of(**keywords)
        routes = (EVT.name, LOOP)
        if self.settings.route not in (None, *routes):
            message = f"there is no grouped route `{self.settings.route}`"
            raise TargetError(Diagnostic("E0501", message, help=hint(self.settings.route, routes, "routes")))
        keywords["route"] = None
        #: The program of one group.
        self.program = _Member(source, "gemm", **keywords)
        if self.program.convolution is not None:
            message = f"the program's header says {self.program.operation}, and groups are of matrix products"
            raise TargetError(Diagnostic("E0501", message, help="leave the header out, or write `gemm`"))

    def __repr__(self) -> str:
        return f"<evt.GroupedProgram: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the program's inputs, in order of first use."""
        return self.program.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the program's outputs, in ``out`` order."""
        return self.program.outputs

    def plan(self, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None) -> GroupedPlan:
        """The plan of the grouped kernel for packed, aligned tensors. Raises TargetError (E05xx)."""
        dag = self.program.optimised(a, b)
        target, options = find_target(arch), self.program.options()
        made = plan(Problem(dag, natural_signature(dag), target, options, grouped=True), config=self.settings.config)
        assert isinstance(made, GroupedPlan)
        return made

    def emit(self, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None) -> str:
        """The C++ of the grouped kernel, as :meth:`evt.Program.emit`; of ``route="loop"`` that of one group's."""
        return self.program.emit(arch, a, b) if self.settings.route == LOOP else emit_plan(self.plan(arch, a, b))

    @untraced
    def reference(
        self,
        A: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        B: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        /,
        *,
        offsets: Any = None,
        float64: bool = False,
        **inputs: Any,
    ) -> Any:
        """The oracle's answer for each group, as :meth:`evt.Program.reference`: lists, also with ``offsets``."""
        from evt.runtime.groups import split

        groups = split(self.program, A, B, inputs, None, offsets).members
        results = [self.program.reference(each.a, each.b, float64=float64, **each.inputs) for each in groups]
        if len(self.outputs) == 1:
            return results
        return self.program.result_type(*([result[index] for result in results] for index in range(len(self.outputs))))

    @cached_property
    def _caller(self) -> Any:
        from evt.runtime.grouped import GroupedCaller

        skip_frames()
        return GroupedCaller(self.program, self.settings.route == LOOP)

    @untraced
    def __call__(
        self,
        A: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        B: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        /,
        *,
        out: Any = None,
        offsets: Any = None,
        **inputs: Any,
    ) -> Any:
        """Run the program on all groups; see the class."""
        return self._caller(A, B, inputs, out, offsets)


def grouped_gemm(text: str, **keywords: Unpack[Keywords]) -> GroupedProgram:
    """A program over the products ``acc = A @ B`` of many groups, in one launch.

    Keywords are those of :class:`evt.settings.Settings`; ``route="loop"`` launches a kernel for each group. Raises
    ProgramError when the text is not a program.
    """
    return GroupedProgram(text, **keywords)
