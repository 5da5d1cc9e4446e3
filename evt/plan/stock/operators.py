"""The class of CUTLASS that computes a stock formula, or the reason that none does.

The classes are output operators (2.x) or fusion operations (3.x). Each is exact where it is chosen, which excludes some
uses. The linear combinations omit C if beta is 0, although 0 times an infinity or a NaN is NaN. So beta must be a
number there. LinearCombinationClamp drops NaN, so activations use LinearCombinationGeneric. 3.x operations with more
vectors than a formula needs would read them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from evt.ir import Input, TypedDag
from evt.ir.dtype import F32, I32, DType, accumulator
from evt.plan.signature import Signature, bytes_of
from evt.plan.stock.match import IDENTITY, ONE, Activation, Factor, Stock, Term
from evt.plan.verdict import Refusal


class Own(Enum):
    """A parameter that the class of every stock epilogue has: types, elements per access, rounding."""

    C = "C"
    D = "D"
    ACCUMULATOR = "accumulator"
    COMPUTE = "compute"
    ACCESS = "access"
    ROUNDING = "rounding"


@dataclass(frozen=True, slots=True)
class Functor:
    """A functor of CUTLASS by its own name; ``applied`` to f32, or a template that the class applies."""

    name: str
    applied: bool = False

    @staticmethod
    def of(activation: Activation, applied: bool = False) -> Functor:
        """Return the functor of an activation, which has it by its full name."""
        return Functor(activation.functor.rpartition("::")[2], applied)


class Scaling(Enum):
    """Which of alpha and beta are present, in CUTLASS's words."""

    DEFAULT = "Default"
    NO_BETA = "NoBetaScaling"
    ONLY_ALPHA = "OnlyAlphaScaling"
    NOTHING = "Nothing"


class Major(Enum):
    """The layout of a matrix, in CUTLASS's words."""

    ROW = "RowMajor"
    COLUMN = "ColumnMajor"


Parameter: TypeAlias = Own | Functor | Scaling | Major | DType | bool | int


@dataclass(frozen=True)
class FusionOperation:
    """A formula that a class of CUTLASS computes: the ``name`` of the class and its template's ``parameters``.

    Tensors are named by inputs, or empty: ``vector`` is the bias, ``sources`` are the tensors times ``beta``,
    ``stored`` is the output of the value before the activation. ``members`` are the activation's arguments.
    """

    name: str
    parameters: tuple[Parameter, ...]
    alpha: Factor = ONE
    beta: Factor = ONE
    vector: str = ""
    sources: tuple[str, ...] = ()
    stored: str = ""
    members: tuple[tuple[str, float], ...] = ()

    @property
    def reads_source_only(self) -> bool:
        """Whether it is a 2.x operator that reads C alone, as every kernel of CUTLASS can."""
        return self.name in ("LinearCombination", "LinearCombinationGeneric")

    @property
    def functors(self) -> tuple[str, ...]:
        """The functors and layouts among the parameters, by CUTLASS's names."""
        named = (each for each in self.parameters if isinstance(each, Functor | Major))
        return tuple(each.name if isinstance(each, Functor) else each.value for each in named)


class _NoOperatorError(Exception):
    """The reason why no class of CUTLASS computes a formula."""


# Conditions of both generations.


def _attempt(
    choose: Callable[[Stock, TypedDag, Signature, str], FusionOperation],
    stock: Stock,
    dag: TypedDag,
    signature: Signature,
    mode: str,
) -> FusionOperation | Refusal:
    """Return the operation that ``choose`` finds, or a refusal."""
    try:
        _check(dag, stock, signature)
        return choose(stock, dag, signature, mode)
    except _NoOperatorError as reason:
        return Refusal(str(reason))


def _check(dag: TypedDag, stock: Stock, signature: Signature) -> None:
    """Elements and strides that every class can take, and scalars that are numbers in f32."""
    d, name = dag.primary.dtype, dag.primary.name
    assert d is not None
    if not d.is_float or d.bits > 32:
        raise _NoOperatorError(f"{name} is {d}, and stock epilogues compute floats of at most 32 bits")
    for term in stock.terms:
        dtype = dag.input[term.name].dtype
        assert dtype is not None
        if not dtype.is_float or dtype.bits > 32:
            raise _NoOperatorError(f"`{term.name}` is {dtype}, and stock epilogues read floats of at most 32 bits")
    for name in dict.fromkeys((stock.alpha.name, *(term.factor.name for term in stock.terms))):
        value = dag.input.get(name)
        if value is not None and value.is_scalar and (value.dtype != F32 or value.modes):
            raise _NoOperatorError(f"the scalar `{name}` is {value.dtype}[{', '.join(value.modes)}], and not f32[]")
    for name in [factor.name for factor in (stock.alpha, *(term.factor for term in stock.terms)) if factor.name]:
        if dag.input[name].is_tile:
            raise _NoOperatorError(f"the factor `{name}` is a tensor")
    for term in stock.terms:
        if dag.input[term.name].flexible:
            raise _NoOperatorError(f"`{term.name}` is a vector or a single value, as a call decides")
    factors = (factor.name for factor in (stock.alpha, *(term.factor for term in stock.terms)))
    for name in (dag.primary.name, *factors, *(term.name for term in stock.terms)):
        value = dag.input.get(name)
        vector = value is not None and not (value.is_scalar or value.is_tile)
        if (vector or name == dag.primary.name) and signature[name].contiguous is None:
            raise _NoOperatorError(f"`{name}` has no mode with stride 1")


def _modes(value: Input) -> set[str]:
    return set(value.modes) - {"l"}


def _dtype(dag: TypedDag, name: str) -> DType:
    value = dag.input.get(name) or dag.output[name]
    assert value.dtype is not None
    return value.dtype


def _one_vector(dag: TypedDag, terms: tuple[Term, ...]) -> tuple[Term | None, tuple[Term, ...]]:
    """Return the vector among terms, or None, and the tensors."""
    vectors = tuple(term for term in terms if not dag.input[term.name].is_tile)
    if len(vectors) > 1:
        raise _NoOperatorError(f"`{vectors[0].name}` and `{vectors[1].name}` are vectors: stock epilogues add one")
    if vectors and not vectors[0].factor.is_one:
        raise _NoOperatorError(f"the vector `{vectors[0].name}` has a factor")
    return (vectors[0] if vectors else None), tuple(term for term in terms if term not in vectors)


def _late_vectors(dag: TypedDag, stock: Stock) -> None:
    for term in stock.outer:
        if not dag.input[term.name].is_tile:
            raise _NoOperatorError(f"the vector `{term.name}` comes after the activation")


# CUTLASS 2.x


def output_operator(stock: Stock, dag: TypedDag, signature: Signature, columns: str) -> FusionOperation | Refusal:
    """Return the output operator of CUTLASS 2.x for a formula, or why there is none.

    ``columns`` is the mode along the kernel's own columns.
    """
    return _attempt(_operator_2x, stock, dag, signature, columns)


def _operator_2x(stock: Stock, dag: TypedDag, signature: Signature, columns: str) -> FusionOperation:
    d, name = dag.primary.dtype, dag.primary.name
    assert d is not None
    if d.bits < 16:
        raise _NoOperatorError(f"{name} is {d}: the stock operators for 8 bits scale")
    if signature[name].contiguous != columns:
        raise _NoOperatorError(f"{name} is not contiguous along {columns}")
    _late_vectors(dag, stock)
    vector, early = _one_vector(dag, stock.inner)
    if stock.alpha.name and not dag.input[stock.alpha.name].is_scalar:
        raise _NoOperatorError(f"`{stock.alpha.name}` is a vector, and CUTLASS 2.x scales by a number")
    if vector is not None and _modes(dag.input[vector.name]) != {columns}:
        raise _NoOperatorError(
            f"`{vector.name}` has one value for each of the kernel's rows, and CUTLASS 2.x adds one a column"
        )
    tiles = (*early, *stock.outer)
    for term in tiles:
        value, factor = dag.input[term.name], term.factor
        if value.dtype != d:
            raise _NoOperatorError(
                f"`{term.name}` is {value.dtype} and {name} is {d}: CUTLASS 2.x reads C in the type of D"
            )
        if signature[term.name].contiguous != columns:
            raise _NoOperatorError(f"`{term.name}` is not contiguous along {columns}, as {name} is")
        if factor.name and not dag.input[factor.name].is_scalar:
            raise _NoOperatorError(f"`{factor.name}` is a vector, and CUTLASS 2.x scales by a number")
    if d.bits == 16 and accumulator(dag.operands[0].dtype) == I32:
        _whole_accesses(dag, signature, (name, stock.stored, *(term.name for term in (*stock.inner, *stock.outer))))
    stored = dag.output.get(stock.stored)
    if stored is not None:
        assert stored.dtype is not None
        if not stored.is_tile or not stored.dtype.is_float or not 16 <= stored.dtype.bits <= 32:
            raise _NoOperatorError(
                f"`{stock.stored}` is {stored.dtype}, and is stored as a tensor of 16 or 32-bit floats"
            )
        if signature[stock.stored].contiguous != columns:
            raise _NoOperatorError(f"`{stock.stored}` is not contiguous along {columns}, as {name} is")
    vector_name = vector.name if vector else ""
    if stock.outer:
        if early:
            raise _NoOperatorError(
                f"`{early[0].name}` enters before the activation and `{stock.outer[0].name}` after it"
            )
        return _residual(stock, dag, vector_name, tiles)
    if not early and not stock.stored and (vector is None or dag.input[vector.name].dtype == d):
        return _linear(stock, vector_name)
    if not early or stock.inner[-1] == vector or stock.stored:
        return _biased(stock, dag, vector_name, early)
    if len(early) == 1 and vector is None and not early[0].factor.name and early[0].factor.value:
        return _linear(stock, early[0].name, early[0].factor)
    if len(stock.inner) > 1 and vector is not None and stock.inner[0] != vector:
        raise _NoOperatorError(
            f"`{vector.name}` is added after `{stock.inner[0].name}` and before `{stock.inner[-1].name}`"
        )
    return _residual(stock, dag, vector_name, tiles)


def _whole_accesses(dag: TypedDag, signature: Signature, names: tuple[str, ...]) -> None:
    """Refuse narrow accesses: CUTLASS stages an i32 accumulator for a 16-bit D by 8 elements, or not at all."""
    for name in filter(None, names):
        needed = min(8, 16 // bytes_of(_dtype(dag, name)))
        if signature[name].alignment < needed:
            raise _NoOperatorError(
                f"`{name}` is aligned to {signature[name].alignment} of its elements: CUTLASS 2.x stores an i32 "
                f"accumulator in 16 bits by accesses of 8, which need {needed}"
            )


def _linear(stock: Stock, source: str, beta: Factor = ONE) -> FusionOperation:
    """Return activation(alpha * acc + beta * source); a vector is a source whose rows are the same."""
    scaling = Scaling.NO_BETA if beta.is_one else Scaling.DEFAULT
    if not source:
        scaling = Scaling.NOTHING if stock.alpha.is_one else Scaling.ONLY_ALPHA
    name = "LinearCombination"
    parameters: tuple[Parameter, ...] = (Own.D, Own.ACCESS, Own.ACCUMULATOR, F32, scaling, Own.ROUNDING)
    if not stock.last.is_identity:
        name, parameters = "LinearCombinationGeneric", (Functor.of(stock.last), *parameters)
    sources = (source,) if source else ()
    return FusionOperation(name, parameters, stock.alpha, beta, "", sources, "", stock.last.arguments)


def _biased(stock: Stock, dag: TypedDag, vector: str, sources: tuple[Term, ...]) -> FusionOperation:
    """Return activation(alpha * acc + beta * source + vector), possibly with the activation's argument stored."""
    if len(sources) > 1:
        raise _NoOperatorError(
            f"`{sources[0].name}` and `{sources[1].name}` are two tensors before a vector or a store"
        )
    beta = sources[0].factor if sources else Factor(value=0.0)
    if sources and (beta.name or not beta.value):
        raise _NoOperatorError(f"the stock operator leaves `{sources[0].name}` out where its factor is 0")
    if sources and vector and stock.inner[0].name == vector:
        raise _NoOperatorError(
            f"`{vector}` is added before `{sources[0].name}`, and the operator that stores adds it after"
        )
    parameters: tuple[Parameter, ...] = (
        *(Own.D, Own.ACCUMULATOR, F32, Own.D),
        _dtype(dag, stock.stored) if stock.stored else Own.D,
        Own.ACCESS,
        Functor.of(stock.last, applied=True),
        Functor("plus", applied=True),
        bool(stock.stored),
        _dtype(dag, vector) if vector else Own.D,
    )
    names = tuple(term.name for term in sources)
    members = tuple((f"elementwise.{member}", value) for member, value in stock.last.arguments)
    return FusionOperation(
        "LinearCombinationBiasElementwise", parameters, stock.alpha, beta, vector, names, stock.stored, members
    )


def _residual(stock: Stock, dag: TypedDag, vector: str, sources: tuple[Term, ...]) -> FusionOperation:
    """Return last(first(alpha * acc + vector) + beta * source), or with two sources."""
    if len(sources) > 2:
        raise _NoOperatorError(f"{len(sources)} tensors are read, and stock operators read two")
    if len({term.factor for term in sources}) > 1:
        raise _NoOperatorError(f"`{sources[0].name}` and `{sources[1].name}` have different factors")
    for activation in stock.activations:
        if activation.arguments:
            name = Functor.of(activation).name
            raise _NoOperatorError(f"the stock operator with a residual does not pass arguments to {name}")
    binary = [Functor("plus" if term.operation == "+" else "multiplies") for term in sources]
    parameters: tuple[Parameter, ...] = (
        *(Own.D, Own.ACCUMULATOR, F32, Own.D, Own.ACCESS),
        *(Functor.of(stock.first), binary[0], Functor.of(stock.last)),
        binary[1] if len(sources) > 1 else Functor("NoOp"),
        False,
        _dtype(dag, vector) if vector else Own.D,
    )
    names = tuple(term.name for term in sources)
    return FusionOperation("LinearCombinationResidualBlock", parameters, stock.alpha, sources[0].factor, vector, names)


# CUTLASS 3.x


def fusion_operation(stock: Stock, dag: TypedDag, signature: Signature, rows: str) -> FusionOperation | Refusal:
    """Return the fusion operation of CUTLASS 3.x for a formula, or why there is none.

    ``rows`` is the mode along the kernel's own rows.
    """
    return _attempt(_operation_3x, stock, dag, signature, rows)


def _operation_3x(stock: Stock, dag: TypedDag, signature: Signature, rows: str) -> FusionOperation:
    _late_vectors(dag, stock)
    vector, early = _one_vector(dag, stock.inner)
    sources = (*early, *stock.outer)
    if len(sources) > 1:
        raise _NoOperatorError(
            f"`{sources[0].name}` and `{sources[1].name}` are two tensors, and there is one source C"
        )
    source = sources[0] if sources else None
    beta = source.factor if source else Factor(value=0.0)
    if source is not None:
        _check_source(dag, signature, source)
    along = {rows: "PerRow"}.get(next(iter(_modes(dag.input[vector.name]))), "PerCol") if vector else ""
    scaled = _scale_vectors(stock, dag, rows)
    if scaled:
        return _scaled_vectors(stock, dag, vector, source, along, scaled)
    if stock.outer:
        raise _NoOperatorError(
            "the stock operation with a residual after the activation reads alpha and beta as vectors"
        )
    if source is not None and (beta.name or not beta.value):
        raise _NoOperatorError(f"the stock operation leaves `{source.name}` out where its factor is 0")
    if vector is not None and source is not None and stock.inner[0] is source:
        raise _NoOperatorError(
            f"`{vector.name}` is added after `{source.name}`, and the stock operation adds it before"
        )
    if stock.stored and vector is None:
        raise _NoOperatorError(f"the stock operation that stores `{stock.stored}` adds a vector")
    activation = [] if stock.last.is_identity else [Functor.of(stock.last)]
    parameters: list[Parameter] = [*activation, Own.D, Own.COMPUTE]
    if vector is not None:
        name = f"LinComb{along}Bias{'EltAct' if activation else ''}{'Aux' if stock.stored else ''}"
        if stock.stored:
            layout = signature[stock.stored]
            major = Major.COLUMN if layout.contiguous == rows else Major.ROW
            parameters = [major, *parameters, _dtype(dag, stock.stored)]
        parameters += [_dtype(dag, vector.name), Own.C, F32]
        parameters += [signature[stock.stored].alignment, 1] if stock.stored else [1]
    elif source is None and not activation:
        name = "ScaledAcc"
        parameters.append(F32)
    else:
        name = "LinCombEltAct" if activation else "LinearCombination"
        parameters += [Own.C, F32]
    return FusionOperation(
        name,
        (*parameters, Own.ROUNDING),
        stock.alpha,
        beta,
        vector.name if vector else "",
        (source.name,) if source else (),
        stock.stored,
        tuple((f"activation.{member}", value) for member, value in stock.last.arguments),
    )


def _check_source(dag: TypedDag, signature: Signature, source: Term) -> None:
    """Raise _NoOperatorError unless the collective itself can load C: with TMA, and one for every batch."""
    layout, dtype = signature[source.name], dag.input[source.name].dtype
    assert dtype is not None
    if source.operation != "+":
        raise _NoOperatorError(f"`{source.name}` multiplies, and the stock operations add C")
    if layout.batch != "strided":
        raise _NoOperatorError(f"`{source.name}` is the same for every batch, and the collective loads C for each")
    if layout.contiguous is None or layout.alignment * bytes_of(dtype) < 16:
        raise _NoOperatorError(f"`{source.name}` cannot be moved by TMA")


def _scale_vectors(stock: Stock, dag: TypedDag, rows: str) -> str:
    """Return ``PerRow`` or ``PerCol`` where the factors of acc and C are vectors, or "" where none is."""
    names = [stock.alpha.name, *(term.factor.name for term in stock.terms)]
    vectors = [dag.input[name] for name in names if name and not dag.input[name].is_scalar]
    for value in vectors:
        if value.flexible:
            raise _NoOperatorError(f"`{value.name}` is a vector or a single value, as a call decides")
    kinds = {"PerRow" if _modes(value) == {rows} else "PerCol" for value in vectors}
    if len(kinds) > 1:
        raise _NoOperatorError("the factors run along rows and along columns")
    return next(iter(kinds), "")


def _scaled_vectors(
    stock: Stock, dag: TypedDag, vector: Term | None, source: Term | None, along: str, scaled: str
) -> FusionOperation:
    """Return activation(alpha * acc + bias + beta * C), or with C added last; alpha, beta and bias are vectors."""
    alpha, beta = (dag.input.get(name) for name in (stock.alpha.name, source.factor.name if source else ""))
    if vector is None or source is None or alpha is None or beta is None or {along} != {scaled}:
        raise _NoOperatorError(
            "the stock operation with a vector of factors has one for acc, one for C, and a bias like them"
        )
    if alpha.is_scalar or beta.is_scalar or alpha.dtype != beta.dtype:
        raise _NoOperatorError(f"`{alpha.name}` and `{beta.name}` are not vectors of one type")
    assert alpha.dtype is not None
    if not alpha.dtype.is_float or alpha.dtype.bits > 32:
        raise _NoOperatorError(f"`{alpha.name}` is {alpha.dtype}, and stock epilogues read floats of at most 32 bits")
    if stock.stored:
        raise _NoOperatorError(f"no stock operation with vectors of factors stores `{stock.stored}`")
    residual = bool(stock.outer)
    if residual and scaled != "PerCol":
        raise _NoOperatorError("the stock operation with a residual after the activation has factors for columns")
    if residual and stock.last != IDENTITY:
        raise _NoOperatorError("the stock operation with a residual after the activation ends there")
    if not residual and stock.inner[0] is not vector:
        raise _NoOperatorError(
            f"`{vector.name}` is added after `{source.name}`, and the stock operation adds it before"
        )
    activation: Activation = stock.first if residual else stock.last
    name = f"{scaled}{'ResAdd' if residual else 'LinComb'}{scaled}BiasEltAct"
    return FusionOperation(
        name,
        (
            *(Functor.of(activation), Own.D, Own.COMPUTE, _dtype(dag, vector.name), Own.C, alpha.dtype),
            *(1, 1, Own.ROUNDING),
        ),
        stock.alpha,
        source.factor,
        vector.name,
        (source.name,),
        "",
        tuple((f"activation.{member}", value) for member, value in activation.arguments),
    )
