"""Epilogues of CUTLASS 3.x: the collective loads C and stores D, and visitors or a fusion operation do the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from evt.ir import Input
from evt.ir.dtype import F16
from evt.plan.epilogue.facts import is_collective
from evt.plan.epilogue.program import EpilogueProgram, epilogue_program
from evt.plan.kernels.draft import Collective, Draft
from evt.plan.kernels.memory import Budget, Space, is_tma
from evt.plan.plan import Epilogue, Tensor
from evt.plan.stock.match import Factor
from evt.plan.stock.operators import FusionOperation
from evt.plan.stock_epilogue import Scale, StockFusion, StockVector


@dataclass(frozen=True)
class Placed:
    """The steps beside the collective's own tensors, with the remaining memory; ``draft`` has the steps' members."""

    draft: Draft
    program: EpilogueProgram
    budget: Budget


#: Makes the epilogue itself, once the collective's tensors are placed.
Make: TypeAlias = Callable[[Draft, Placed], Epilogue]
#: Whether the collective can load an input as C, if TMA can.
MayBeSource: TypeAlias = Callable[[Draft, Input], bool]


def collective(draft: Draft, space: Space, make: Make, may_be_source: MayBeSource) -> Collective:
    """Plan the collective epilogue; ``may_be_source`` says which inputs it can load as C."""
    source, placed = _place_source(draft, space, may_be_source)
    c, d = _tensors(draft, source)
    epilogue = make(draft, placed)
    # F16 cuts the tiles of an epilogue whose D is stored by a visitor.
    return Collective(epilogue, placed.program, c, d, d.dtype if d else F16, placed.budget.used)


def visitors(draft: Draft, placed: Placed) -> EpilogueProgram:
    """Return a visitor epilogue, the general case."""
    draft.take(placed.draft)
    return placed.program.with_access(placed.budget.access)


def has_batches(draft: Draft, value: Input) -> bool:
    """Return whether a tensor has separate data in every batch, like C."""
    return draft.signature[value.name].batch == "strided"


def _place_source(draft: Draft, space: Space, may_be_source: MayBeSource) -> tuple[str | None, Placed]:
    """Return the matrix that the collective loads as C, and the steps beside it.

    It is the first of :func:`_sources` whose tiles fit in shared memory; without one, steps load every input.
    """
    implicit = draft.primary if draft.stores_tile else None
    for source in (*(_sources(draft, may_be_source) if draft.stores_tile else ()), None):
        fork = draft.fork()
        _tensors(fork, source)
        program = epilogue_program(fork, source=source, implicit_store=implicit, fused=draft.selection.fused)
        budget = Budget(draft, space, source, program)
        if budget.left >= 0:
            break
    return source, Placed(fork, program, budget)


def _tensors(draft: Draft, source: str | None) -> tuple[Tensor | None, Tensor | None]:
    """Return C and D of the collective."""
    c = tensor(draft, source) if source is not None else None
    return c, tensor(draft, draft.primary) if draft.stores_tile else None


def _sources(draft: Draft, may_be_source: MayBeSource) -> list[str]:
    """Return the tile inputs that the collective can load as C, the cheapest first: C shares shared memory with D.

    The best has D's width and major order; then D's width; then the first. TMA must be able to load it.
    """
    layout, bits = draft.signature[draft.primary], draft.dtype(draft.primary).bits
    candidates = [
        value
        for value in draft.dag.inputs
        if is_collective(value)
        and may_be_source(draft, value)
        and is_tma(draft, value.name, draft.signature[value.name])
    ]

    def cost(value: Input) -> tuple[bool, bool, int]:
        same_order = draft.signature[value.name].contiguous == layout.contiguous
        return draft.dtype(value.name).bits != bits, not same_order, draft.dag.inputs.index(value)

    return [value.name for value in sorted(candidates, key=cost)]


def tensor(draft: Draft, name: str) -> Tensor:
    """Return the tensor that the collective itself loads as C or stores as D."""
    layout, pointer, strides = draft.signature[name], draft.fields.pointer(name), draft.strides(name)
    if (
        draft.signature.convolution is not None
    ):  # its rows are pixels, which have a pitch even if they are not contiguous
        strides = (draft.fields.stride(name, "m"), *strides[1:])
    row_major = layout.contiguous == draft.columns
    return Tensor(draft.dtype(name), row_major, layout.alignment, pointer, strides)


# A fusion operation of CUTLASS's own.


def stock_fusion(draft: Draft, placed: Placed) -> StockFusion:
    """Plan one node; CUTLASS makes it from the operation's name, on every 3.x architecture from the nodes of sm90."""
    found = draft.selection.matches[FusionOperation]
    if found.stored:
        draft.strides(found.stored)
    has_beta = bool(found.sources) or found.name != "ScaledAcc"
    return StockFusion(
        found,
        _scale(draft, found.alpha),
        _scale(draft, found.beta) if has_beta else None,
        _vector(draft, found.vector) if found.vector else None,
        _stored(draft, found.stored, placed.budget) if found.stored else None,
    )


def _scale(draft: Draft, factor: Factor) -> Scale:
    """Return a factor: a number, a scalar by value or by device pointer, or a vector."""
    if not factor.name:
        return factor.value
    value = draft.dag.input[factor.name]
    return draft.single(value) if value.is_scalar else _vector(draft, factor.name)


def _vector(draft: Draft, name: str) -> StockVector:
    value = draft.dag.input[name]
    pointer, batch = draft.fields.pointer(name), draft.batch(name, "l" in value.modes)
    along_rows = draft.rows in value.modes
    return StockVector(draft.dtype(name), pointer, (1, 0, batch) if along_rows else (0, 1, batch))


def _stored(draft: Draft, name: str, budget: Budget) -> StockVector:
    """Return the tensor that is stored besides D, through shared memory."""
    budget.takes(name, stores=True)
    return StockVector(draft.dtype(name), draft.fields.pointer(name), draft.strides(name))
