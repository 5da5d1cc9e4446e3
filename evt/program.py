"""The main interface: a program that can be shown, emitted, explained, evaluated, tuned and called."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from evt.diagnostics import Source
from evt.emission import emit as emit_plan
from evt.ir.formula import formula
from evt.ir.interface import in_one_line
from evt.language import read_program
from evt.plan import Plan, Problem, Survey, plan, survey
from evt.request import LOOP, Request, Shapes, Traced, from_dag, from_text, packed_problem, problem_sizes, traced
from evt.request.given import check_kind
from evt.request.stored import unreadable
from evt.settings import ConvolutionKeywords, Keywords
from evt.untraced import inlined_as, skip_frames, untraced

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack

    from evt.explain import Explanation
    from evt.gradient import Gradient
    from evt.ir import Dag
    from evt.tuning.tune import Tuning

DEFAULT_ARCH = "sm90"

_Self = TypeVar("_Self", bound="Described")


class Described:
    """A value that a request describes: it cannot be changed, and it compares, copies and pickles as the request does.

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

    def _explain(
        self,
        problem: Problem,
        products: Sequence[tuple[Mapping[str, int], Shapes]],
        gpu: str | None,
        loop: Survey | None = None,
    ) -> Explanation:
        """Explain a problem, using its measurements where its sizes are known; see :func:`evt.explain.explain`."""
        check_kind("gpu", gpu, str | None, "its name, as the times were measured under")
        from evt.explain import explain

        settings = self.request.settings
        looped = problem.grouped and settings.route == LOOP
        found = survey(problem) if looped else survey(problem, settings.route, settings.config)
        if not products:
            return explain(found, loop=loop, looped=looped)
        from evt.measured import applicable, measurements, size_class

        extents = [sizes for sizes, _ in products]
        measured = measurements(problem, size_class(extents) if problem.grouped else extents[0], gpu)
        best = applicable(found, measured[0]) if len(measured) == 1 and not self.request.is_forced else None
        return explain(found, products, measured, best, loop, looped=looped)


class Program(Described):
    """A compiled formula, callable on tensors.

    Make one with :func:`gemm`, :func:`linear`, :func:`conv2d` and the like, or :func:`load`; from a graph with
    :meth:`from_dag`.

    Called with A ``[..., m, k]`` and B ``[k, n]`` (``linear``: B ``[n, k]``, as torch.nn.functional.linear; for
    convolutions see :func:`conv2d`) and the program's inputs by keyword, it returns D ``[..., m, n]``; a namedtuple in
    ``out`` order when there are several outputs. CUDA tensors run the fused kernel, on the current stream, compiled at
    the first call with a combination of types, layouts and alignments; CPU tensors run the reference, with a
    NoKernelWarning where no GPU would have a kernel. Output buffers are passed as ``out=`` or by output name. Scalars
    are Python numbers or one-element device tensors, which are read on the device. None leaves out an input with a
    default.

    An output that is stored by an index, ``D[index[m], n]``, needs a buffer. Rows that the index does not name keep
    what they hold; where it names a row twice, each element stored is that of one of the two: which is not promised.

    An output whose name cannot be a field of a namedtuple (``class``, ``_x``) is found by its position.

    Keywords beyond the text and the operation are those of :class:`evt.settings.Settings`.

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
        """Return the program of a graph that :class:`evt.ir.Builder` built, equal to that of the same formula's text.

        The operation is the graph's; the types of A and B, where it declares none, are those of each call. Keywords are
        those of :class:`evt.settings.Settings` and, for a convolution, its geometry.

        Raise ProgramError: E0412 for a graph that is not a program, E0405 for one that does not read the accumulator,
        E03xx for types and modes; TargetError (E0501) for an unknown operation; and ArgumentError for keywords.

            builder = Builder()
            acc, bias = builder.add(Acc()), builder.add(Load("bias"))
            builder.add(Store("D"), builder.add(Apply("relu"), builder.add(Apply("add"), acc, bias)))
            inputs, outputs = [Input("bias", None, ("n",))], [Output("D", None, ("m", "n"))]
            op = Program.from_dag(builder.finish("gemm", (), inputs, outputs), relaxed=True)
        """
        return cls._of(from_dag(dag, keywords))

    def __repr__(self) -> str:
        return f"<evt.Program {in_one_line(self.request.dag, self.request.operation, self.request.operand_modes)}>"

    def __str__(self) -> str:
        """Return the formula, which can be typed back: as it was given, or written from the graph."""
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
        """Return the plan for packed tensors. Raise TargetError (E05xx) when the target cannot do it."""
        settings = self.request.settings
        return plan(packed_problem(self.request, arch, a, b, shapes), settings.route, settings.config, fused=fused)

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

        It is one self-contained .cu file for packed tensors, aligned to 16 bytes, or as far as ``shapes`` of A and B
        allow; it needs the CUTLASS and CUDA headers. Its functions' names begin with ``name``, or with one made of a
        hash, so any number of files link into one program. Raise ProgramError and TargetError, and ArgumentError
        (E0607) when ``name`` is not a name in C.
        """
        check_kind("name", name, str | None, "text")
        return emit_plan(self.plan(arch, a, b, shapes=shapes), name)

    def explain(
        self,
        arch: str = DEFAULT_ARCH,
        a: str | None = None,
        b: str | None = None,
        *,
        shapes: Shapes | None = None,
        gpu: str | None = None,
    ) -> Explanation:
        """Explain which route is taken, why the others are not, and what the kernel costs; the result prints as text.

        With ``shapes`` of A and B, in PyTorch's order, the costs are those of a problem. What :meth:`tune` measured for
        it is shown, and decides, as it does for calls; ``gpu`` names the GPU if it was measured on several.
        """
        problem = packed_problem(self.request, arch, a, b, shapes)
        products = () if shapes is None else ((problem_sizes(self.request, shapes), shapes),)
        return self._explain(problem, products, gpu)

    def gradient(self, a: str | None = None, b: str | None = None) -> Gradient:
        """Return the gradient for operands of types ``a`` and ``b``; it prints as formulas.

        It is what autograd computes where A, B and all inputs of floating-point types require grad: the forward program
        with outputs for what is saved, and the backward program, which gives the gradients of the inputs and of the
        accumulator. Those of A and B are products with the latter. Raise ArgumentError (E0614) where there is none.
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
        """Return the oracle's results in PyTorch, on the tensors' device; the arguments are those of a call.

        Sums products in f64 and rounds the sums, computes in f32 and rounds each output to its type;
        ``float64=True`` computes in f64 and leaves the outputs unrounded, as a yardstick for kernels. The same bits
        whatever PyTorch is set to. Of an output that is scattered the call gives the buffer, under its name: it is
        not written to, and the answer has its other rows.
        """
        from evt.runtime.answer import evaluate
        from evt.runtime.arguments import bind, split_held
        from evt.runtime.results import gather

        check_kind("float64", float64, bool, "a bool")
        read, held = split_held(self.request.dag, inputs)
        results = evaluate(self.request, bind(self.request, A, B, read, held), float64)
        return gather(self.outputs)([results[name] for name in self.outputs])

    @untraced
    def tune(self, A: torch.Tensor, B: torch.Tensor, /, **inputs: Any) -> Tuning:
        """Time every route that applies to a call, on its own tensors, and keep the times; the result prints as a
        table.

        Calls of the same program, types, layouts and sizes on the same kind of GPU then take the fastest kernel, in
        this process and in later ones, instead of the first that the rules admit. It takes compiling all of them.
        Of an output that is scattered the call gives the buffer, as to :meth:`reference`; it is not written to.
        Raises LaunchError (E0801) without a GPU.
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

    def _call_in_graph(self, A: torch.Tensor, B: torch.Tensor, /, *, out: Any = None, **inputs: Any) -> Any:
        """Call the program where TorchDynamo traces: a custom operator stands in the graph."""
        from evt.runtime.operator import call_traced

        return call_traced(self._traced, A, B, out, inputs)

    @inlined_as(_call_in_graph)
    def __call__(self, A: torch.Tensor, B: torch.Tensor, /, *, out: Any = None, **inputs: Any) -> Any:
        """Run the program; see the class."""
        return self._caller(A, B, inputs, out)


def program_of(request: Request) -> Program:
    """Return the program that a request describes."""
    return Program._of(request)


def gemm(text: str, **keywords: Unpack[Keywords]) -> Program:
    """Return a program over the product ``acc = A @ B`` with A [..., m, k] and B [k, n] (or [..., k, n]).

    Keywords are those of :class:`evt.settings.Settings`. Raise ProgramError when the text is not a program.
    """
    return Program(text, "gemm", **keywords)


def linear(text: str, **keywords: Unpack[Keywords]) -> Program:
    """Return a program like :func:`gemm`'s with the weight [n, k] of torch.nn.functional.linear as B.

    Leading dimensions of A are rows.
    """
    return Program(text, "linear", **keywords)


def conv1d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d`'s for x [N, C, L] and the weight [K, C, S]."""
    return Program(text, "conv1d", **keywords)


def conv2d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the convolution ``acc`` of x [N, C, H, W] with the weight [K, C, R, S], D [N, K, P, Q].

    ``stride``, ``padding``, ``dilation`` and ``groups`` are those of torch.nn.functional.conv2d: a number, or one for
    each dimension; ``padding`` also ``"same"``, ``"valid"``, or a (before, after) pair for each dimension. The
    formula's rows ``m`` are the output pixels (N, P, Q), its columns ``n`` the output channels K: ``bias[n]``, and
    ``residual[m, n]``, which is [N, K, P, Q] as D is.

    Kernels need channels_last memory. Any other tensor is copied at the call; pass
    ``evt.channels_last(weight)`` to convert it once. D is channels_last where x or the weight is, as in PyTorch,
    else it is copied to contiguous memory. So is a buffer that is not channels_last.

    The other keywords are those of :class:`evt.settings.Settings`. Raise ProgramError when the text is not a program
    and ArgumentError (E0602, E0607) for an invalid geometry.
    """
    return Program(text, "conv2d", **keywords)


def conv3d(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d`'s for x [N, C, D, H, W] and the weight [K, C, T, R, S]."""
    return Program(text, "conv3d", **keywords)


def conv1d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d_dgrad`'s in one dimension."""
    return Program(text, "conv1d_dgrad", **keywords)


def conv2d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the gradient of a convolution's input, which is what conv_transpose2d computes.

    Called with the output's gradient [N, K, P, Q] and the weight [K, C, R, S], it returns D [N, C, H, W]; the formula's
    columns ``n`` are the channels C. ``output_padding`` enlarges D where the stride leaves its size open. The rest is
    as in :func:`conv2d`.
    """
    return Program(text, "conv2d_dgrad", **keywords)


def conv3d_dgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d_dgrad`'s in three dimensions."""
    return Program(text, "conv3d_dgrad", **keywords)


def conv1d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d_wgrad`'s in one dimension."""
    return Program(text, "conv1d_wgrad", **keywords)


def conv2d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program over the gradient of a convolution's weight.

    Called with the output's gradient [N, K, P, Q] and x [N, C, H, W], it returns D [K, C, R, S] for a weight of
    ``kernel_size``; the formula's rows ``m`` are the output channels K, its columns ``n`` taps and channels (R, S, C).
    The rest is as in :func:`conv2d`.
    """
    return Program(text, "conv2d_wgrad", **keywords)


def conv3d_wgrad(text: str, **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return a program like :func:`conv2d_wgrad`'s in three dimensions."""
    return Program(text, "conv3d_wgrad", **keywords)


def load(path: str | Path, operation: str = "gemm", **keywords: Unpack[ConvolutionKeywords]) -> Program:
    """Return the program in a ``.evt`` file; its header, if any, takes precedence over ``operation``.

    Operations are ``gemm`` and ``linear``, and the names of the functions of convolutions, whose keywords are as in
    :func:`conv2d`. Raise ProgramError (E0105) when the file cannot be read.
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
