"""Random products for property tests of single stages: ``programs()`` draws a :class:`Sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hypothesis import strategies as st

from evt.errors import ProgramError
from evt.functions import TABLE
from evt.ir import Operand, TypedDag, infer, lower
from evt.ir.dtype import BY_NAME
from evt.language import parse
from evt.request import typed_graph

from .call import arguments, problems
from .checks import FOLDED, UNSTEADY, is_steady, make, operand_types
from .draw import Profile
from .generator import generate
from .tree import Program

_SEEDS = st.integers(0, 2**32)


@dataclass(frozen=True)
class Sample:
    """A valid program with tame data, which is compared to the bit."""

    program: Program

    @property
    def text(self) -> str:
        return self.program.text

    @cached_property
    def dag(self) -> TypedDag:
        return typed_graph(make(self.program).request, *operand_types(self.program))

    def data(self) -> tuple[Any, Any, dict[str, Any]]:
        """Return A, B and the inputs, the same at every call."""
        return arguments(self.program, problems(self.program)[0])

    def __repr__(self) -> str:
        return f"\n{self.program}\n"


def typed(text: str, operand: str = "f16") -> TypedDag:
    """Return a program's typed graph, for a gemm of row-major operands."""
    dtype = BY_NAME[operand]
    return infer(lower(parse(text)), (Operand("A", dtype, ("m", "k")), Operand("B", dtype, ("k", "n"))))


def programs(functions: Sequence[str] | None = None, exact: bool = False) -> st.SearchStrategy[Sample]:
    """Return valid products. ``exact``: every rewriting that is exact in f32 gives the same bits in PyTorch too."""
    names = [name for name in functions or TABLE if not (exact and name in UNSTEADY)]
    profile = Profile(("gemm",), tuple(names), FOLDED if exact else None, tame=True)
    samples = _SEEDS.map(lambda seed: Sample(generate(seed, profile)))
    return samples.filter(lambda sample: is_valid(sample) and (not exact or is_steady(sample.program)))


def is_valid(sample: Sample) -> bool:
    try:
        return sample.dag is not None
    except ProgramError:
        return False
