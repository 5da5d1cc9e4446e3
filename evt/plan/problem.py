"""What the planner is asked, and how it is answered: problems, rules about them, and the routes that rules admit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evt.ir import TypedDag
from evt.plan.options import PLAIN, Options
from evt.plan.signature import ConvolutionClass, Signature, bytes_of
from evt.plan.target import Target


@dataclass(frozen=True, slots=True)
class Problem:
    """What the rules look at."""

    dag: TypedDag
    signature: Signature
    target: Target
    options: Options = PLAIN

    @property
    def operand_bytes(self) -> int:
        return bytes_of(self.dag.operands[0].dtype)

    @property
    def convolution(self) -> ConvolutionClass:
        """The class of a problem that is a convolution."""
        assert self.signature.convolution is not None
        return self.signature.convolution

    @property
    def swaps_operands(self) -> bool:
        """Whether sm90 computes D' = B' A'.

        WGMMA takes 32-bit operands K-major only. CUTLASS transposes one of them on the way, and for a K-major A
        with an N-major B it does so by swapping A and B under an epilogue that is not told: the transposed problem
        needs no swap.
        """
        layouts = (self.signature.a.contiguous, self.signature.b.contiguous)
        return self.operand_bytes == 4 and layouts == ("k", "n")

    def tensor_bytes(self, name: str) -> int:
        value = self.dag.input.get(name) or self.dag.output[name]
        assert value.dtype is not None
        return bytes_of(value.dtype)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its statement, and what gives the reason why a problem fails it, or None."""

    statement: str
    failure: Callable[[Problem], str | None]


#: What a route's kernel is: a fused epilogue of CUTLASS's own, a visitor tree, work on an operand in the main loop, or
#: a kernel of ours.
Kind = Literal["stock", "evt", "mainloop", "own"]


@dataclass(frozen=True, slots=True)
class Route:
    """A way to compile a program. Routes are tried in the order of evt.plan.routes.table.

    ``of_convolutions``: by the kernel of a convolution, so that there is nothing to say of it for matrices.
    """

    name: str
    kind: Kind
    family: str
    summary: str
    rules: tuple[Rule, ...]
    of_convolutions: bool = False

    def failures(self, problem: Problem) -> tuple[str, ...]:
        """Why this route does not apply; empty when it does."""
        return tuple(reason for rule in self.rules if (reason := rule.failure(problem)))
