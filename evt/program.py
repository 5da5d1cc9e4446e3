"""The front door: a program that can be shown, emitted, explained, evaluated and called."""

from __future__ import annotations

import copy
import os
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, lru_cache
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evt.diagnostics import Diagnostic, Source, shown
from evt.emission import emit as emit_plan
from evt.errors import ArgumentError, TargetError
from evt.explain import Explanation, explain
from evt.given import check_kind, matrix_sizes, read_dtype, read_text
from evt.ir import Dag, Operand, TypedDag, infer
from evt.ir.convolution import CONVOLUTIONS, GEOMETRY, Convolution, ConvolutionProblem
from evt.ir.lower import OPERATIONS, lower, unknown_operation
from evt.language import parse, read_program
from evt.optimise import ROUNDING_KEPT, optimise, round_as_eager
from evt.plan import Options, Plan, Problem, convolution_class, find_target, natural_signature, plan
from evt.settings import ConvolutionKeywords, Keywords, Settings
from evt.untraced import skip_frames, untraced

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from evt.runtime.tensors import Bound
    from evt.tuning.tune import Tuning

#: The shapes of A and B, in PyTorch's order.
Shapes = tuple[Sequence[int], Sequence[int]]

DEFAULT_ARCH = "sm90"
DEFAULT_DTYPE = "f16"


class Program:
    """A compiled formula, callable on tensors.

    Make one with :func:`gemm`, :func:`linear`, :func:`conv2d` and its like, or :func:`load`.

    Called with A ``[..., m, k]`` and B ``[k, n]`` (``linear``: B ``[n, k]``, as torch.nn.functional.linear; for
    convolutions see :func:`conv2d`) and the program's inputs by keyword, it returns D ``[..., m, n]``; a namedtuple in
    ``out`` order when there are several outputs. CUDA tensors run the fused kernel, on the current stream, compiled at
    the first call with a combination of types, layouts and alignments; CPU tensors run the reference, with a
    NoKernelWarning where no GPU would have a kernel. Buffers to write into come as ``out=`` or by output name. Scalars
    are Python numbers or one-element device tensors, which are read on the device. None leaves out what has a default.

    An output whose name cannot be a field of a namedtuple (``class``, ``_x``) is found by its position.

    Keywords beyond the text and the operation are those of :class:`evt.settings.Settings`.
    """

    def __init__(self, source: Source | str, operation: str = "gemm", **keywords: Unpack[ConvolutionKeywords]) -> None:
        given: dict[str, Any] = dict(keywords)
        known = isinstance(operation, str) and operation in OPERATIONS
        of_geometry = {name: given.pop(name) for name in GEOMETRY if name in given}
        self.settings = Settings.of(GEOMETRY if known and operation in CONVOLUTIONS else (), **given)
        if not known:
            message = f"there is no operation `{shown(operation)}`"
            raise TargetError(Diagnostic("E0501", message, help=unknown_operation(shown(operation))))
        self.source = read_text(source)
        self.dag: Dag = lower(parse(self.source), operation)
        self.operation = self.dag.operation
        self.convolution: Convolution | None = None
        if self.operation in CONVOLUTIONS:
            self.convolution = Convolution.of(self.operation, of_geometry)
        elif of_geometry:
            message = f"`{next(iter(of_geometry))}` is for convolutions, and the operation is {self.operation}"
            raise ArgumentError(Diagnostic("E0602", message, help="call evt.conv2d, or leave it out"))
        skip_frames()
        self._optimised = lru_cache(maxsize=64)(self._optimise)
        self._rewritten = lru_cache(maxsize=64)(self._rewrite)
        infer(self.dag, self._operands(None, None))  # what is wrong with types and modes is so for all operands

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
        return self._rewritten(dag)

    def _rewrite(self, dag: TypedDag) -> TypedDag:
        if self.settings.numerics == "match_eager":
            return optimise(dag, ROUNDING_KEPT)
        return optimise(dag, relaxed=self.settings.relaxed)

    def options(self, atomic: bool = False) -> Options:
        """What a kernel of this program may give up or must keep."""
        return Options(atomic, self.settings.fast_math, self.settings.numerics == "match_eager")

    def _operands(self, a: str | None, b: str | None) -> tuple[Operand, ...]:
        if self.dag.operands:
            for operand, asked in zip(self.dag.operands, (a, b), strict=True):
                if asked is not None and read_dtype(asked) != operand.dtype:
                    raise TargetError(
                        Diagnostic(
                            "E0305",
                            f"the program declares {operand.name}: {operand.dtype}; {read_dtype(asked)} was asked for",
                            help="leave the type out, or change the program's header",
                        )
                    )
            return self.dag.operands
        first = read_dtype(next((each for each in (a, b) if each is not None), DEFAULT_DTYPE))
        modes_a, modes_b = self.operand_modes
        return Operand("A", first, modes_a), Operand("B", first if b is None else read_dtype(b), modes_b)

    def sizes(self, shapes: Shapes | None) -> Mapping[str, int]:
        """The extents of a problem by mode, for the shapes of A and B; nothing without shapes.

        Raises ArgumentError (E0604) when they do not fit.
        """
        return {} if shapes is None else self._problem(shapes)[1]

    def _problem(self, shapes: Shapes) -> tuple[ConvolutionProblem | None, Mapping[str, int]]:
        try:
            a, b = (tuple(map(index, shape)) for shape in shapes)
            if min((*a, *b), default=0) < 0:
                raise ValueError(f"A is {list(a)} and B is {list(b)}: an extent is negative")
            if self.convolution is not None:
                problem = self.convolution.problem(a, b)
                return problem, problem.extents
            return None, matrix_sizes(self.operand_modes, a, b)
        except TypeError:
            message = f"`shapes` are {shapes!r}; expected those of A and B, sequences of whole numbers"
            raise ArgumentError(Diagnostic("E0607", message)) from None
        except ValueError as error:
            raise ArgumentError(Diagnostic("E0604", str(error))) from None

    def problem(self, arch: str, a: str | None, b: str | None, shapes: Shapes | None = None) -> Problem:
        """What the planner is asked: the optimised program for packed tensors, which ``shapes`` of A and B align."""
        dag = self.optimised(a, b)
        convolution, extents = (None, None) if shapes is None else self._problem(shapes)
        of = None
        if self.convolution is not None:
            element_bytes = dag.operands[0].dtype.bits // 8
            elements = convolution.largest_operand if convolution is not None else 0
            of = convolution_class(self.convolution, convolution, element_bytes, elements * element_bytes)
        signature = natural_signature(dag, of, extents)
        return Problem(dag, signature, find_target(arch), self.options(self.settings.deterministic is False))

    def plan(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        fused: bool = True,
    ) -> Plan:
        """The plan for packed tensors. Raises TargetError (E05xx) when the target cannot do it."""
        problem, settings = self.problem(arch, a, b, shapes), self.settings
        return plan(problem, settings.route, settings.config, fused=fused)

    def emit(
        self, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None, *, shapes: Shapes | None = None
    ) -> str:
        """The C++ of the kernel for ``arch`` (``"sm80"``, ``"sm90"``...) and operand types ``a`` and ``b``.

        One self-contained .cu file for packed tensors, whose alignment is 16 bytes, or what ``shapes`` of A and B
        leave of it; it needs the CUTLASS and CUDA headers. Raises ProgramError and TargetError.
        """
        return emit_plan(self.plan(arch, a, b, shapes=shapes))

    def explain(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        gpu: str | None = None,
    ) -> Explanation:
        """Which route is taken, which are not and why, and what the kernel costs; prints as text.

        ``shapes`` of A and B, in PyTorch's order, make the costs those of a problem. What :meth:`tune` measured of it
        is shown, and decides, as it does for calls; ``gpu`` names the one of several GPUs that it was measured on.
        """
        check_kind("gpu", gpu, str | None, "its name, as the times were measured under")
        problem, sizes, forced = self.problem(arch, a, b, shapes), self.sizes(shapes), self.settings.route
        if shapes is None:
            return explain(problem, forced)
        from evt.tuning.choice import applicable, measurements

        found = measurements(problem, sizes, gpu)
        free = len(found) == 1 and forced is None and self.settings.config is None
        return explain(problem, forced, sizes, shapes, found, applicable(problem, found[0]) if free else None)

    @untraced
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

        Sums products in f64 and rounds the sums, computes in f32 and rounds each output to its type;
        ``float64=True`` computes in f64 and leaves the outputs unrounded, as a yardstick for kernels. The same bits
        whatever PyTorch is set to.
        """
        from evt.runtime.arguments import bind
        from evt.runtime.convolution import call_reference

        check_kind("float64", float64, bool, "a bool")
        results = call_reference(self, bind(self, A, B, inputs, {}), float64)
        if len(self.outputs) == 1:
            return results[self.outputs[0]]
        return self.result_type(*(results[name] for name in self.outputs))

    @untraced
    def tune(self, A: torch.Tensor, B: torch.Tensor, /, **inputs: Any) -> Tuning:
        """Time every route that applies to a call, on its own tensors, and keep the times; prints as a table.

        Calls of the same program, types, layouts and sizes on the same kind of GPU then take the fastest kernel, in
        this process and in later ones, instead of the first that the rules admit. It takes compiling all of them.
        Raises LaunchError (E0801) without a GPU.
        """
        from evt.tuning.tune import tune

        found = tune(self, A, B, inputs)
        self._caller.forget()
        return found

    def measured(self, bound: Bound, device: int, atomic: bool = False) -> tuple[str, str] | None:
        """The route and configuration that were measured to be best for a bound call, where none is forced."""
        if self.settings.route is not None or self.settings.config is not None:
            return None
        from evt.tuning.choice import measured_choice

        best = measured_choice(self, bound, device, atomic)
        return None if best is None else (best.route, best.config)

    def forced(self, route: str, config: str) -> Program:
        """The same program by one route, in one of its configurations."""
        other = copy.copy(self)
        other.__dict__.pop("_caller", None)
        other.settings = Settings.of(**{**asdict(self.settings), "route": route, "config": config})
        return other

    @cached_property
    def _caller(self) -> Any:
        from evt.runtime.call import Caller

        skip_frames()
        return Caller(self)

    @untraced
    def __call__(self, A: torch.Tensor, B: torch.Tensor, /, *, out: Any = None, **inputs: Any) -> Any:
        """Run the program; see the class."""
        return self._caller(A, B, inputs, out)


def gemm(text: str, **keywords: Unpack[Keywords]) -> Program:
    """A program over the product ``acc = A @ B`` with A [..., m, k] and B [k, n] (or [..., k, n]).

    Keywords are those of :class:`evt.settings.Settings`. Raises ProgramError when the text is not a program.
    """
    return Program(text, "gemm", **keywords)


def linear(text: str, **keywords: Unpack[Keywords]) -> Program:
    """As :func:`gemm`, with B the weight [n, k] of torch.nn.functional.linear; leading dimensions of A are rows."""
    return Program(text, "linear", **keywords)


def conv1d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d`, of x [N, C, L] and the weight [K, C, S]."""
    return Program(text, "conv1d", **keywords)


def conv2d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """A program over the convolution ``acc`` of x [N, C, H, W] with the weight [K, C, R, S], D [N, K, P, Q].

    ``stride``, ``padding``, ``dilation`` and ``groups`` are those of torch.nn.functional.conv2d: a number, or one for
    each dimension; ``padding`` also ``"same"``, ``"valid"``, or a (before, after) pair for each dimension. The
    formula's rows ``m`` are the output's pixels (N, P, Q), its columns ``n`` the channels K: ``bias[n]``, and
    ``residual[m, n]``, which is [N, K, P, Q] as D is.

    Kernels work on channels_last memory. A tensor that is not so is converted at the call, by a copy; pass
    ``evt.channels_last(weight)`` to convert it once. D is channels_last where x or the weight is, as in PyTorch,
    else it is copied to contiguous memory. So is a buffer that is not channels_last.

    The other keywords are those of :class:`evt.settings.Settings`. Raises ProgramError when the text is not a program
    and ArgumentError (E0602, E0607) for a geometry that is none.
    """
    return Program(text, "conv2d", **keywords)


def conv3d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d`, of x [N, C, D, H, W] and the weight [K, C, T, R, S]."""
    return Program(text, "conv3d", **keywords)


def conv1d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d_dgrad`, of one dimension."""
    return Program(text, "conv1d_dgrad", **keywords)


def conv2d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """A program over the input's gradient of a convolution, which is what conv_transpose2d computes.

    Called with the output's gradient [N, K, P, Q] and the weight [K, C, R, S], it returns D [N, C, H, W]; the formula's
    columns ``n`` are the channels C. ``output_padding`` enlarges D where the stride leaves its size open. The rest is
    as in :func:`conv2d`.
    """
    return Program(text, "conv2d_dgrad", **keywords)


def conv3d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d_dgrad`, of three dimensions."""
    return Program(text, "conv3d_dgrad", **keywords)


def conv1d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d_wgrad`, of one dimension."""
    return Program(text, "conv1d_wgrad", **keywords)


def conv2d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """A program over the weight's gradient of a convolution.

    Called with the output's gradient [N, K, P, Q] and x [N, C, H, W], it returns D [K, C, R, S] for filters of
    ``kernel_size``; the formula's rows ``m`` are the filters K, its columns ``n`` taps and channels (R, S, C). The
    rest is as in :func:`conv2d`.
    """
    return Program(text, "conv2d_wgrad", **keywords)


def conv3d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """As :func:`conv2d_wgrad`, of three dimensions."""
    return Program(text, "conv3d_wgrad", **keywords)


def load(path: str | Path, operation: str = "gemm", **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """The program in a ``.evt`` file; its header, if any, decides over ``operation``.

    Operations are ``gemm`` and ``linear``, and the names of the functions of convolutions, whose keywords are as in
    :func:`conv2d`. Raises ProgramError (E0105) when the file cannot be read.
    """
    check_kind("path", path, (str, os.PathLike), "a file's name")
    return Program(read_program(path), operation, **keywords)


def emit(
    text: str,
    op: str = "gemm",
    arch: str = DEFAULT_ARCH,
    dtype: str | None = None,
    **keywords: Unpack[ConvolutionKeywords],
) -> str:
    """The C++ of a formula in one step: ``emit("D = relu(acc + bias)", arch="sm80", dtype="bf16")``."""
    return Program(text, op, **keywords).emit(arch, dtype, dtype)
