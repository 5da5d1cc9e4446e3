"""The front door: a program that can be shown, emitted, explained, evaluated and called."""

from __future__ import annotations

from collections import namedtuple
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evt.diagnostics import Diagnostic, Source, hint
from evt.emission import emit as emit_plan
from evt.errors import TargetError
from evt.explain import Explanation, explain
from evt.ir import Dag, Operand, TypedDag, infer, lower
from evt.ir.dtype import BY_NAME, OPERANDS, DType
from evt.ir.lower import OPERATIONS, PLANNED_OPERATIONS
from evt.language import parse, read_program
from evt.optimise import ROUNDING_KEPT, optimise, round_as_eager
from evt.plan import Options, Plan, Problem, find_target, natural_signature, plan
from evt.settings import Keywords, Settings

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

DEFAULT_ARCH = "sm90"
DEFAULT_DTYPE = "f16"


class Program:
    """A compiled formula, callable on tensors.

    Make one with :func:`gemm`, :func:`linear` or :func:`load`.

    Called with A ``[..., m, k]`` and B ``[k, n]`` (``linear``: B ``[n, k]``, as torch.nn.functional.linear) and the
    program's inputs by keyword, it returns D ``[..., m, n]``; a namedtuple in ``out`` order when there are several
    outputs. CUDA tensors run the fused kernel, on the current stream, compiled at the first call with a combination
    of types, layouts and alignments; CPU tensors run the reference. Buffers to write into come as ``out=`` or by
    output name. Scalars are Python numbers or one-element device tensors, which are read on the device.

    An output whose name cannot be a field of a namedtuple (``class``, ``_x``) is found by its position.

    Keywords beyond the text and the operation are those of :class:`evt.settings.Settings`.
    """

    def __init__(self, source: Source, operation: str = "gemm", **keywords: Unpack[Keywords]) -> None:
        self.settings = Settings.of(**keywords)
        if operation in PLANNED_OPERATIONS:
            raise TargetError(
                Diagnostic(
                    "E0901",
                    f"the operation `{operation}` is not supported yet",
                    help=f"operations: {', '.join(OPERATIONS)}",
                )
            )
        if operation not in OPERATIONS:
            raise TargetError(
                Diagnostic(
                    "E0501",
                    f"there is no operation `{operation}`",
                    help=hint(operation, OPERATIONS, "operations"),
                )
            )
        self.source = source
        self.dag: Dag = lower(parse(source), operation)
        self.operation = self.dag.operation
        self._optimised = lru_cache(maxsize=64)(self._optimise)

    def __repr__(self) -> str:
        return f"<evt.Program {self.operation}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the program's inputs, in order of first use."""
        return tuple(value.name for value in self.dag.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the program's outputs, in ``out`` order."""
        return tuple(value.name for value in self.dag.outputs)

    @property
    def operand_modes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes of A's and B's last two dimensions."""
        if self.dag.operands:
            return self.dag.operands[0].modes, self.dag.operands[1].modes
        return OPERATIONS[self.operation]

    @cached_property
    def result_type(self) -> Any:
        """The namedtuple that a call with several outputs returns."""
        return namedtuple("Outputs", self.outputs, rename=True)

    def typed(self, a: str | None = None, b: str | None = None) -> TypedDag:
        """The program with types, for operands of types ``a`` and ``b`` (default: the header's, else f16)."""
        return self.infer(self.dag, self._operands(a, b))

    def optimised(self, a: str | None = None, b: str | None = None) -> TypedDag:
        """The typed program after the optimiser."""
        return self._optimised(self._operands(a, b))

    def _optimise(self, operands: tuple[Operand, ...]) -> TypedDag:
        return self.optimise(self.infer(self.dag, operands))

    def infer(self, dag: Dag, operands: tuple[Operand, ...]) -> TypedDag:
        """``dag``, this program or a part of it, with types, and with the rounding points that the settings ask for."""
        typed = infer(dag, operands)
        return round_as_eager(typed) if self.settings.numerics == "match_eager" else typed

    def optimise(self, dag: TypedDag) -> TypedDag:
        """``dag`` after the passes that the settings allow."""
        if self.settings.numerics == "match_eager":
            return optimise(dag, ROUNDING_KEPT)
        return optimise(dag, relaxed=self.settings.relaxed)

    def options(self, atomic: bool = False) -> Options:
        """What a kernel of this program may give up or must keep."""
        return Options(atomic, self.settings.fast_math, self.settings.numerics == "match_eager")

    def _operands(self, a: str | None, b: str | None) -> tuple[Operand, ...]:
        if self.dag.operands:
            for operand, asked in zip(self.dag.operands, (a, b), strict=True):
                if asked is not None and _dtype(asked) != operand.dtype:
                    raise TargetError(
                        Diagnostic(
                            "E0305",
                            f"the program declares {operand.name}: {operand.dtype}; {asked} was asked for",
                            help="leave the type out, or change the program's header",
                        )
                    )
            return self.dag.operands
        first = _dtype(a or b or DEFAULT_DTYPE)
        modes_a, modes_b = self.operand_modes
        return Operand("A", first, modes_a), Operand("B", _dtype(b) if b else first, modes_b)

    def plan(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        fused: bool = True,
    ) -> Plan:
        """The plan for packed, aligned tensors. Raises TargetError (E05xx) when the target cannot do it."""
        dag = self.optimised(a, b)
        target = find_target(arch)
        settings, options = self.settings, self.options(self.settings.deterministic is False)
        signature = natural_signature(dag)
        return plan(dag, signature, target, route=settings.route, config=settings.config, fused=fused, options=options)

    def emit(self, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None) -> str:
        """The C++ of the kernel for ``arch`` (``"sm80"``, ``"sm90"``...) and operand types ``a`` and ``b``.

        One self-contained .cu file for packed, 16-byte-aligned tensors; it needs the CUTLASS and CUDA headers.
        Raises ProgramError and TargetError.
        """
        return emit_plan(self.plan(arch, a, b))

    def explain(self, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None) -> Explanation:
        """Which route is taken, which are not and why, and what the kernel costs; prints as text."""
        dag = self.optimised(a, b)
        options = self.options(self.settings.deterministic is False)
        problem = Problem(dag, natural_signature(dag), find_target(arch), options)
        return explain(problem, self.settings.route)

    def reference(
        self,
        A: torch.Tensor,
        B: torch.Tensor,
        /,
        *,
        float64: bool = False,
        **inputs: Any,
    ) -> Any:
        """The oracle's answer in PyTorch, on the tensors' device, called as the program itself.

        Computes in f32 and rounds each output to its type; ``float64=True`` computes in f64 and leaves the
        outputs unrounded, as a yardstick for kernels.
        """
        from evt.reference import reference
        from evt.runtime.arguments import bind

        bound = bind(self, A, B, inputs, {})
        results = reference(bound.dag, A, B, inputs, float64=float64)
        if len(self.outputs) == 1:
            return results[self.outputs[0]]
        return self.result_type(*(results[name] for name in self.outputs))

    @cached_property
    def _caller(self) -> Any:
        from evt.runtime.call import Caller

        return Caller(self)

    def __call__(self, A: torch.Tensor, B: torch.Tensor, /, *, out: Any = None, **inputs: Any) -> Any:
        """Run the program; see the class."""
        return self._caller(A, B, inputs, out)


def _dtype(name: object) -> DType:
    """The type of a name, or of a torch dtype, which prints as ``torch.float16``."""
    dtype = BY_NAME.get(str(name).removeprefix("torch."))
    if dtype is None:
        types = [each.name for each in OPERANDS]
        raise TargetError(Diagnostic("E0303", f"there is no type `{name}`", help=hint(name, types, "types")))
    return dtype


def gemm(text: str, **keywords: Unpack[Keywords]) -> Program:
    """A program over the product ``acc = A @ B`` with A [..., m, k] and B [k, n] (or [..., k, n]).

    Keywords are those of :class:`evt.settings.Settings`. Raises ProgramError when the text is not a program.
    """
    return Program(Source(text), "gemm", **keywords)


def linear(text: str, **keywords: Unpack[Keywords]) -> Program:
    """As :func:`gemm`, with B the weight [n, k] of torch.nn.functional.linear; leading dimensions of A are rows."""
    return Program(Source(text), "linear", **keywords)


def load(path: str | Path, operation: str = "gemm", **keywords: Unpack[Keywords]) -> Program:
    """The program in a ``.evt`` file. Raises ProgramError (E0105) when it cannot be read."""
    return Program(read_program(path), operation, **keywords)


def emit(
    text: str, op: str = "gemm", arch: str = DEFAULT_ARCH, dtype: str | None = None, **keywords: Unpack[Keywords]
) -> str:
    """The C++ of a formula in one step: ``emit("D = relu(acc + bias)", arch="sm80", dtype="bf16")``."""
    return Program(Source(text), op, **keywords).emit(arch, dtype, dtype)
