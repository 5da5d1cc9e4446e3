"""Grouped products: many matrix products of one program in one launch, each with its own sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from evt.described import Described
from evt.diagnostics import Source
from evt.ir.interface import in_one_line
from evt.program import DEFAULT_ARCH, Program, program_of
from evt.request import LOOP, Shapes, from_text, problem_sizes
from evt.request.given import check_kind, refuse_positional
from evt.settings import Keywords
from evt.untraced import skip_frames, untraced

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from typing_extensions import Unpack

    from evt.explanation import Explanation
    from evt.plan import Plan
    from evt.tuning.table import Tuning


class GroupedProgram(Described):
    """A formula that is compiled for groups of matrix products. Make one with :func:`grouped_gemm`.

    A call takes lists ``[A0, A1, ...]`` and ``[B0, B1, ...]``, with A of shape ``[m, k]`` and B of shape ``[k, n]``,
    and the program's inputs by keyword. It returns a list of Ds, or a namedtuple of lists if there are several outputs.
    Each group has its own m, n and k, which may be 0. All groups have one type and one majorness per operand. An input
    is a list, one tensor or number for all groups, or a stacked tensor with the groups along its first dimension. A, B
    and the buffers in ``out`` may be stacked as well.

    With ``offsets`` the rows of the groups are consecutive: A is ``[total, k]``, inputs and outputs with rows have
    ``total`` rows, and group i has the rows from ``offsets[i]`` to ``offsets[i + 1]``. With an offset for each B, the
    offsets are the ends of the groups, as in ``torch._grouped_mm``; rows after the last end are not computed. Offsets
    are a list, or a tensor on the CPU. Ends may also be a packed tensor of int32 on the GPU; the other arguments are
    then tensors, stacked or with all rows, and numbers. Each call, or each replay of a CUDA graph, takes the values
    that the tensor has at that time. Ends that descend give empty groups.

    CUDA tensors run one fused kernel on the current stream, without synchronisation. CPU tensors run the reference.
    ``route="loop"`` launches one kernel per group instead. This supports cases that a grouped kernel does not: other
    targets, reductions, and layouts that TMA cannot move.

    A grouped program is immutable, as :class:`evt.Program` is. It compares by value and pickles.
    """

    _grouped = True

    def __init__(self, source: Source | str, **keywords: Unpack[Keywords]) -> None:
        self._set(from_text(source, "gemm", keywords, grouped=True))

    def __repr__(self) -> str:
        return (
            f"<evt.GroupedProgram {in_one_line(self.request.dag, self.request.operation, self.request.operand_modes)}>"
        )

    def plan(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Sequence[Shapes] | None = None,
    ) -> Plan:
        """Return the plan of the grouped kernel for packed tensors; with ``route="loop"``, the plan of one group's
        kernel.

        ``shapes`` are the shapes of A and B of each group. Raise TargetError (E05xx) if the target does not support it.
        """
        from evt.plan import plan
        from evt.request import grouped_problem

        if self.request.settings.route == LOOP:
            return self._member.plan(arch, a, b, shapes=shapes[0] if shapes else None)
        return plan(grouped_problem(self.request, arch, a, b, shapes), config=self.request.settings.config)

    def emit(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Sequence[Shapes] | None = None,
        name: str | None = None,
    ) -> str:
        """Return the C++ of the grouped kernel; with ``route="loop"``, the C++ of one group's kernel.

        See :meth:`evt.Program.emit`.
        """
        from evt.emission import emit

        check_kind("name", name, str | None, "text")
        return emit(self.plan(arch, a, b, shapes=shapes), name)

    def explain(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Sequence[Shapes] | None = None,
        gpu: str | None = None,
    ) -> Explanation:
        """Explain how groups are compiled: in one kernel, or in one kernel per group. See :meth:`evt.Program.explain`.

        ``shapes`` are the shapes of A and B of each group. If :meth:`tune` measured groups of similar sizes, its times
        decide.
        """
        from evt.plan import survey
        from evt.request import grouped_problem, options

        settings = self.request.settings
        problem = grouped_problem(self.request, arch, a, b, shapes)
        alone = replace(problem, grouped=False, options=options(settings, settings.deterministic is False))
        products = [(problem_sizes(self.request, each), each) for each in shapes or ()]
        config = settings.config if settings.route == LOOP else None  # else the shape of the grouped kernel
        return self._explain(problem, products, gpu, arch, survey(alone, None, config))

    @untraced
    def tune(
        self,
        A: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        B: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        /,
        *,
        offsets: Any = None,
        **inputs: Any,
    ) -> Tuning:
        """Time the grouped kernel in each of its configurations, and one kernel per group; keep the times.

        Later calls with the same types, layouts and size class take the fastest. The size class is the number of groups
        and the mean number of rows, both rounded to powers of two, with n and k; sizes that differ between groups are
        rounded too. See :meth:`evt.Program.tune` for the rest. Raise TargetError if there is no grouped kernel to
        choose.
        """
        from evt.tuning.grouped import tune_groups

        found = tune_groups(self.request, A, B, inputs, offsets)
        self._caller.forget()
        return found

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
        """Return the oracle's results for each group, as lists, also with ``offsets``.

        See :meth:`evt.Program.reference`.
        """
        from evt.runtime.given import split_held
        from evt.runtime.groups import split
        from evt.runtime.results import gather

        groups = split(self.request, A, B, inputs, None, offsets).members
        held = [split_held(self.request.dag, each.buffers)[1] for each in groups]
        results = [
            self._member.reference(each.a, each.b, float64=float64, **each.inputs, **buffers)
            for each, buffers in zip(groups, held, strict=True)
        ]
        if len(self.outputs) == 1:
            return results
        return gather(self.outputs)([[result[index] for result in results] for index in range(len(self.outputs))])

    @cached_property
    def _member(self) -> Program:
        """The program of one group."""
        return program_of(self.request.member)

    @cached_property
    def _caller(self) -> Any:
        from evt.runtime.grouped import GroupedCaller

        skip_frames()
        return GroupedCaller(self.request)

    @untraced
    def __call__(
        self,
        A: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        B: Sequence[torch.Tensor] | torch.Tensor,  # noqa: N803
        /,
        *others: NoReturn,
        out: Any = None,
        offsets: Any = None,
        **inputs: Any,
    ) -> Any:
        """Run the program on all groups; see the class."""
        if others:
            refuse_positional(("offsets", *self.request.inputs), others)
        return self._caller(A, B, inputs, out, offsets)


def grouped_gemm(text: str, **keywords: Unpack[Keywords]) -> GroupedProgram:
    """Return a program over the products ``acc = A @ B`` of many groups, in one launch.

    Keywords are the keywords of :class:`evt.settings.Settings`. ``route="loop"`` launches one kernel per group. Raise
    ProgramError if the text is not a program.
    """
    return GroupedProgram(text, **keywords)
