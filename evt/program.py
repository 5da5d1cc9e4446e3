"""The main interface: a program that can be shown, emitted, explained, evaluated, tuned and called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from evt.described import Described
from evt.diagnostics import Source
from evt.ir.formula import formula
from evt.ir.interface import in_one_line
from evt.language import read_program
from evt.request import Request, Shapes, Traced, from_dag, from_text, problem_sizes, traced
from evt.request.given import check_kind, refuse_positional
from evt.settings import ConvolutionKeywords, Keywords
from evt.untraced import inlined_as, skip_frames, untraced

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from evt.estimate import Estimate
    from evt.explanation import Explanation
    from evt.gradient import Gradient
    from evt.ir import Dag
    from evt.plan import Plan
    from evt.runtime.verify import Verification
    from evt.tuning.table import Tuning

DEFAULT_ARCH, NATIVE = "sm90", "native"


class Program(Described):
    """A compiled formula, callable on tensors.

    Make one from text with :func:`gemm`, :func:`linear`, :func:`conv2d` and the other functions of convolutions, from a
    file with :func:`load`, or from a graph with :meth:`from_dag`. Keywords beyond the text and the operation are the
    keywords of :class:`evt.settings.Settings`.

    A call takes A ``[..., m, k]`` and B ``[k, n]`` by position (``linear``: B ``[n, k]``, as
    torch.nn.functional.linear; convolutions: see :func:`conv2d`) and the program's inputs by keyword. It returns D
    ``[..., m, n]``, or a namedtuple in ``out`` order if there are several outputs. A field whose name is not valid
    (``class``, ``_x``) is named by its position.

    - CUDA tensors run the fused kernel on the current stream. The first call with a combination of types, layouts and
      alignments compiles it.
    - CPU tensors run the reference, with a NoKernelWarning if no GPU has a kernel for the call.
    - Output buffers are passed as ``out=`` or by output name.
    - Scalars are Python numbers or one-element device tensors, which the kernel reads on the device.
    - None omits an input that has a default.

    An output that is stored by an index, ``D[index[m], n]``, needs a buffer. Rows that the index does not name keep
    their values. If the index names a row twice, each of its elements comes from either of the two rows.

    A call raises ArgumentError (E06xx) for arguments that do not fit, TargetError (E05xx) if no route applies,
    BuildError (E07xx) if the kernel cannot be built, and LaunchError (E08xx) if it cannot run.

    A program is immutable. Two programs are equal if their requests are equal: graph, operation, geometry and settings.
    Programs pickle, also within a torch.nn.Module. Loading one raises ArgumentError: E0657 if a function that it uses
    is not registered, E0613 if this version cannot read the stored form.
    """

    _traced: Traced

    def __init__(self, source: Source | str, operation: str = "gemm", **keywords: Unpack[ConvolutionKeywords]) -> None:
        self._set(from_text(source, operation, keywords))

    def _set(self, request: Request) -> None:
        super()._set(request)
        self.__dict__["_traced"] = traced(request)

    @classmethod
    def from_dag(cls, dag: Dag, **keywords: Unpack[ConvolutionKeywords]) -> Program:
        """Return the program of a graph that :class:`evt.ir.Builder` built; it equals the program of the same formula's
        text.

        The graph holds the operation. If it declares no types for A and B, each call decides them. Keywords are the
        keywords of :class:`evt.settings.Settings` and, for a convolution, its geometry.

            builder = Builder()
            acc, bias = builder.add(Acc()), builder.add(Load("bias"))
            builder.add(Store("D"), builder.add(Apply("relu"), builder.add(Apply("add"), acc, bias)))
            inputs, outputs = [Input("bias", None, ("n",))], [Output("D", None, ("m", "n"))]
            op = Program.from_dag(builder.finish("gemm", (), inputs, outputs), relaxed=True)

        Raise ProgramError: E0412 for a graph that is not a program, E0405 for one that does not read the accumulator,
        E03xx for types and modes; TargetError (E0501) for an unknown operation; and ArgumentError for keywords.
        """
        return cls._of(from_dag(dag, keywords))

    def __repr__(self) -> str:
        return f"<evt.Program {in_one_line(self.request.dag, self.request.operation, self.request.operand_modes)}>"

    def __str__(self) -> str:
        """Return the formula as it was given, or written from the graph; it reads back as an equal program."""
        source = self.request.dag.source
        return source.text if source is not None else formula(self.request.dag)

    def plan(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        fused: bool = True,
    ) -> Plan:
        """Return the plan for packed tensors, of the kernel whose text :meth:`emit` returns.

        ``arch`` is a target or a GPU, ``a`` and ``b`` are the types of the operands, and ``shapes`` are the shapes of A
        and B. ``fused=False`` makes every operation a separate node. Raise TargetError (E05xx) if the target does not
        support it.
        """
        from evt.request import packed_problem, surveyed

        return surveyed(self.request, packed_problem(self.request, arch, a, b, shapes), fused=fused).printed.plan

    def emit(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        name: str | None = None,
    ) -> str:
        """Return the C++ of the kernel for ``arch`` (``"sm80"``, ``"sm90"``...) and operand types ``a`` and ``b``.

        The result is one self-contained .cu file, which needs the CUTLASS and CUDA headers. Its tensors are packed and
        aligned to 16 bytes, or as far as ``shapes`` of A and B allow. Its functions have the prefix ``name``, or a
        hash, so that several files link into one program. Raise ProgramError and TargetError, and ArgumentError (E0607)
        if ``name`` is not a C identifier.
        """
        from evt.emission import emit

        check_kind("name", name, str | None, "text")
        return emit(self.plan(arch, a, b, shapes=shapes), name)

    def build(
        self,
        arch: str = NATIVE,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes,
        omit: Sequence[str] = (),
    ) -> int:
        """Build the kernels of calls with A and B of these ``shapes`` before the first call; return their number.

        ``arch`` is a target or a GPU, by default this machine's; ``a`` and ``b`` are the types of the operands. Tensors
        are packed, and a convolution's are channels_last. ``omit`` names the inputs with defaults that the calls leave
        out. The kernels are kept in the cache; a named target needs no GPU. Raise TargetError, BuildError, and
        ArgumentError for shapes that do not fit, or for an input that cannot be omitted.
        """
        from evt.runtime.warm import build_kernels

        return build_kernels(self.request, arch, a, b, shapes, omit)

    def explain(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        gpu: str | None = None,
    ) -> Explanation:
        """Explain the choice of route, the refusals of the other routes, and the kernel's cost; the result prints as
        text.

        ``shapes`` of A and B, in PyTorch's order, add the costs of that problem. If :meth:`tune` measured it, its times
        are shown and decide, as in calls. ``gpu`` is the name of a GPU, or a part of the name, if several
        were measured.
        """
        from evt.request import packed_problem

        problem = packed_problem(self.request, arch, a, b, shapes)
        products = () if shapes is None else ((problem_sizes(self.request, shapes), shapes),)
        return self._explain(problem, products, gpu, arch)

    def estimate(
        self, shapes: Shapes, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None
    ) -> Estimate:
        """Return the estimated time of a call with A and B of these shapes, and the resource that bounds it.

        ``arch`` is a GPU such as ``"h200"``, or a target, which means its usual GPU. H100 and H200 have fitted
        constants, other GPUs only data sheets. Raise ArgumentError for shapes that do not fit, and TargetError.
        """
        from evt.estimate import estimate_call

        return estimate_call(self.request, shapes, arch, a, b)

    def estimates(
        self, shapes: Shapes, arch: str = DEFAULT_ARCH, a: str | None = None, b: str | None = None
    ) -> tuple[Estimate, ...]:
        """Return the :meth:`estimate` of every kernel: all routes in all configurations, the fastest first."""
        from evt.estimate import estimate_kernels

        return estimate_kernels(self.request, shapes, arch, a, b)

    def gradient(self, a: str | None = None, b: str | None = None) -> Gradient:
        """Return the gradient for operands of types ``a`` and ``b``; it prints as formulas.

        The gradient is the one that autograd computes if A, B and all floating-point inputs require grad. It consists
        of two programs. The forward program also stores the saved values. The backward program returns the gradients of
        the inputs and of the accumulator. The gradients of A and B are products with the accumulator's gradient. Raise
        ArgumentError (E0614) if there is no gradient.
        """
        from evt.gradient.program import whole_gradient

        return whole_gradient(self.request, a, b)

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
        """Return the oracle's results in PyTorch, on the tensors' device. It takes the arguments of a call.

        The oracle sums products in f64 and rounds the sums, computes in f32, and rounds each output to its type.
        ``float64=True`` computes in f64 and does not round the outputs, as a reference for kernels. The results are
        bitwise independent of PyTorch's settings. For a scattered output, pass the buffer under the output's name: the
        oracle does not write to it, and the result contains its other rows.
        """
        from evt.runtime.arguments import bind
        from evt.runtime.cpu_fallback import evaluate
        from evt.runtime.given import split_held
        from evt.runtime.results import gather

        check_kind("float64", float64, bool, "a bool")
        read, held = split_held(self.request.dag, inputs)
        results = evaluate(self.request, bind(self.request, A, B, read, held), float64)
        return gather(self.outputs)([results[name] for name in self.outputs])

    @untraced
    def verify(self, A: torch.Tensor, B: torch.Tensor, /, **inputs: Any) -> Verification:
        """Compare a call with eager PyTorch, bit for bit, on the call's tensors; the result prints as text.

        It runs the program, and the formula as a PyTorch user writes it: ``linear``, ``addmm``, ``_scaled_mm`` or a
        convolution, then an operator for each function. With ``numerics="eager"`` every difference is a product that
        sums in another order. The result is true if all bits are equal, and has the share of different ones. Raise
        ArgumentError (E0615) if PyTorch has no operators for the program.
        """
        from evt.runtime.verify import verify

        return verify(self.request, self._caller, A, B, inputs)

    @untraced
    def tune(self, A: torch.Tensor, B: torch.Tensor, /, **inputs: Any) -> Tuning:
        """Time every route that applies to a call, on the call's tensors, and keep the times; the result prints as a
        table.

        Later calls with equal types, layouts and sizes on this model of GPU take the fastest kernel, in later processes
        too. For a scattered output, pass the buffer as for :meth:`reference`. Raise LaunchError (E0801) without a GPU.
        """
        from evt.runtime.site import forget
        from evt.tuning.tune import tune

        found = tune(self.request, A, B, inputs)
        self._caller.forget()
        forget(self.request)
        return found

    @cached_property
    def _caller(self) -> Any:
        from evt.runtime.call import Caller

        skip_frames()
        return Caller(self.request)

    def _call_in_graph(
        self, A: torch.Tensor, B: torch.Tensor, /, *others: NoReturn, out: Any = None, **inputs: Any
    ) -> Any:
        """Call the program under TorchDynamo: the graph gets a custom operator."""
        from evt.runtime.operator import call_traced

        if others:
            refuse_positional(self.request.inputs, others)
        return call_traced(self._traced, A, B, out, inputs)

    @inlined_as(_call_in_graph)
    def __call__(self, A: torch.Tensor, B: torch.Tensor, /, *others: NoReturn, out: Any = None, **inputs: Any) -> Any:
        """Run the program; see :class:`Program`."""
        if others:
            refuse_positional(self.request.inputs, others)
        return self._caller(A, B, inputs, out)


def program_of(request: Request) -> Program:
    """Return the program that a request describes."""
    return Program._of(request)


def gemm(text: str, **keywords: Unpack[Keywords]) -> Program:
    """Return a program over the matrix product ``acc = A @ B`` with A [..., m, k] and B [k, n] or [..., k, n].

    Keywords are the keywords of :class:`evt.settings.Settings`. Raise ProgramError if the text is not a program.
    """
    return Program(text, "gemm", **keywords)


def linear(text: str, **keywords: Unpack[Keywords]) -> Program:
    """Return a program as :func:`gemm` does, with the weight [n, k] of torch.nn.functional.linear as B.

    The leading dimensions of A count as rows.
    """
    return Program(text, "linear", **keywords)


def conv1d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d` does, for x [N, C, L] and the weight [K, C, S]."""
    return Program(text, "conv1d", **keywords)


def conv2d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the convolution of x [N, C, H, W] with the weight [K, C, R, S]; D is [N, K, P, Q].

    ``stride``, ``padding``, ``dilation`` and ``groups`` are arguments of torch.nn.functional.conv2d: a number, or one
    for each dimension. ``padding`` may also be ``"same"``, ``"valid"``, or a (before, after) pair for each dimension.
    In the formula the rows ``m`` are the output pixels (N, P, Q) and the columns ``n`` are the output channels K:
    ``bias[n]`` is [K], and ``residual[m, n]`` is [N, K, P, Q].

    Kernels need channels_last memory. A call copies any other tensor; ``evt.channels_last(weight)`` converts one once.
    D is channels_last if x or the weight is, as in PyTorch; otherwise the call copies D, or a buffer, to its memory
    format.

    The other keywords are the keywords of :class:`evt.settings.Settings`. Raise ProgramError if the text is not a
    program, and ArgumentError (E0602, E0607) for an invalid geometry.
    """
    return Program(text, "conv2d", **keywords)


def conv3d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d` does, for x [N, C, D, H, W] and the weight [K, C, T, R, S]."""
    return Program(text, "conv3d", **keywords)


def conv1d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d_dgrad` does, in one dimension."""
    return Program(text, "conv1d_dgrad", **keywords)


def conv2d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the gradient of a convolution's input, the operation of torch.conv_transpose2d.

    A call takes the output's gradient [N, K, P, Q] and the weight [K, C, R, S], and returns D [N, C, H, W]. In the
    formula the columns ``n`` are the channels C. ``output_padding`` enlarges D if the stride leaves its size open. See
    :func:`conv2d` for the rest.
    """
    return Program(text, "conv2d_dgrad", **keywords)


def conv3d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d_dgrad` does, in three dimensions."""
    return Program(text, "conv3d_dgrad", **keywords)


def conv1d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d_wgrad` does, in one dimension."""
    return Program(text, "conv1d_wgrad", **keywords)


def conv2d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the gradient of a convolution's weight.

    A call takes the output's gradient [N, K, P, Q] and x [N, C, H, W]. It returns D [K, C, R, S] for a weight of
    ``kernel_size``. In the formula the rows ``m`` are the output channels K, and the columns ``n`` are taps and
    channels (R, S, C). See :func:`conv2d` for the rest.
    """
    return Program(text, "conv2d_wgrad", **keywords)


def conv3d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program as :func:`conv2d_wgrad` does, in three dimensions."""
    return Program(text, "conv3d_wgrad", **keywords)


def load(path: str | Path, operation: str = "gemm", **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return the program in a ``.evt`` file; its header, if any, takes precedence over ``operation``.

    Operations are ``gemm``, ``linear`` and the functions of convolutions, ``conv2d``... See :func:`conv2d` for the
    keywords of convolutions. Raise ProgramError (E0105) if the file cannot be read.
    """
    check_kind("path", path, (str, os.PathLike), "a file's name")
    return Program(read_program(path), operation, **keywords)


def emit(
    text: str,
    op: str = "gemm",
    arch: str = DEFAULT_ARCH,
    dtype: str | None = None,
    name: str | None = None,
    **keywords: Unpack[ConvolutionKeywords],
) -> str:
    """Return the C++ of a formula in one step: ``emit("D = relu(acc + bias)", arch="sm80", dtype="bf16")``."""
    return Program(text, op, **keywords).emit(arch, dtype, dtype, name=name)
