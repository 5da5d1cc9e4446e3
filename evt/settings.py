"""The settings of a program: the keywords of the public functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from evt.diagnostics import Diagnostic, hint
from evt.errors import ArgumentError

if TYPE_CHECKING:
    from typing_extensions import Unpack

Numerics = Literal["precise", "eager", "match_eager"]
Accumulate = Literal["precise", "fast"]


#: The words that a setting may be.
_WORDS: Mapping[str, tuple[str, ...]] = {"numerics": get_args(Numerics), "accumulate": get_args(Accumulate)}


class Keywords(TypedDict, total=False):
    """The keywords of :class:`Settings`."""

    route: str | None
    config: str | None
    numerics: Numerics
    accumulate: Accumulate
    relaxed: bool
    fast_math: bool
    deterministic: bool | None
    recompute: bool
    batch_invariant: bool


class ConvolutionKeywords(Keywords, total=False):
    """The keywords of :class:`Settings` and of a convolution's geometry: see :func:`evt.conv2d`."""

    stride: int | Sequence[int]
    padding: int | str | Sequence[int] | Sequence[Sequence[int]]
    dilation: int | Sequence[int]
    groups: int
    output_padding: int | Sequence[int]
    kernel_size: int | Sequence[int]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a program's compilation.

    ``route`` and ``config`` select a route of ``explain`` and one of its configurations.

    ``numerics="precise"`` computes in f32 (integers in i32, f64 in f64) and rounds at the program's casts and stores.
    ``"eager"`` rounds as PyTorch's CUDA kernels do, operator by operator: each operator computes in f32 by PyTorch's
    own formula, and its result is rounded to the dtype that PyTorch gives it. ``addmm`` and ``linear`` add the bias
    before they round. docs/numerics.md has the table of the operators. ``"match_eager"`` is an alias.

    ``accumulate="precise"`` adds products of 8-bit floats in f32 after every stage of a main loop, 128 elements of k.
    ``"fast"`` leaves all sums to the tensor cores, which keep about 14 bits. Kernels of CUTLASS, and kernels with
    factors of blocks, add in f32 in both cases.

    ``relaxed`` allows rewrites that are exact for real numbers but not in f32: reassociation, division by
    multiplication with the reciprocal, ``x * 0 -> 0``. It assumes that reciprocals, products and sums of a call's
    scalars and vectors stay within f32's range. ``fast_math`` uses the hardware's approximate functions, such as
    ``tanh.approx``. Both are off by default, and ``numerics="eager"`` excludes both.

    ``deterministic`` makes reductions bitwise reproducible. ``deterministic=False`` allows atomics, which combine in
    any order, unless torch.use_deterministic_algorithms forbids them.

    ``batch_invariant``: the bits of a row do not depend on the number of rows. Only kernels of one order of sums serve
    the program; ``explain`` shows the proof. Programs and kernels without a proof raise TargetError. Measurements do
    not choose among kernels.

    ``recompute`` saves only the arguments of a call whose gradient is requested. The backward pass then computes the
    product again, in a kernel whose epilogue computes the gradients of the accumulator and of the inputs.
    """

    route: str | None = None
    config: str | None = None
    numerics: Numerics = "precise"
    accumulate: Accumulate = "precise"
    relaxed: bool = False
    fast_math: bool = False
    deterministic: bool | None = None
    recompute: bool = False
    batch_invariant: bool = False

    @staticmethod
    def of(others: Sequence[str] = (), /, **keywords: Unpack[Keywords]) -> Settings:
        """Return the settings of a call's keywords; ``others`` are the call's other keywords, for error messages.

        Raise ArgumentError (E0602, E0607) for an invalid keyword or value.
        """
        known = [field.name for field in fields(Settings)]
        given: dict[str, Any] = dict(keywords)
        for name in given:
            if name not in known:
                message = f"there is no setting `{name}`"
                raise ArgumentError(Diagnostic("E0602", message, help=hint(name, [*known, *others], "settings")))
        if isinstance(given.get("numerics"), str) and given["numerics"] == "match_eager":
            given["numerics"] = "eager"
        settings = Settings(**given)
        wanted = {"route": (str, type(None)), "config": (str, type(None)), "deterministic": (bool, type(None))}
        for name, value in given.items():
            if not isinstance(value, wanted.get(name, (bool, str) if name in _WORDS else (bool,))):
                raise ArgumentError(Diagnostic("E0607", f"`{name}` is {value!r}, of type {type(value).__name__}"))
        for name, words in _WORDS.items():
            if (value := getattr(settings, name)) not in words:
                expected = " or ".join(f'"{word}"' for word in words)
                raise ArgumentError(Diagnostic("E0607", f"`{name}` is {value!r}; expected {expected}"))
        if settings.numerics == "eager" and (settings.relaxed or settings.fast_math):
            given_too = "relaxed" if settings.relaxed else "fast_math"
            message = f'numerics="eager" does not go with `{given_too}`'
            raise ArgumentError(Diagnostic("E0607", message, help=f"leave `{given_too}` out"))
        if settings.batch_invariant and settings.deterministic is False:
            message = "`batch_invariant` does not go with `deterministic=False`: atomics add in any order"
            raise ArgumentError(Diagnostic("E0607", message, help="leave `deterministic` out"))
        return settings
