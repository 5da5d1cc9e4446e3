"""The formulas and factors of operands, as kernels compute them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from evt.ir.dtype import DType
from evt.plan.epilogue.regions import Region
from evt.plan.epilogue.values import Number, Single, Size
from evt.plan.fields import Field


@dataclass(frozen=True, slots=True)
class WorkVector:
    """An input of an operand's formula, with one value for each index along k or along the operand's other mode."""

    dtype: DType
    pointer: Field
    along_k: bool


@dataclass(frozen=True, slots=True)
class Work:
    """The mainloop fusion of the kernel's operand ``operand``: the region of its element, and the region's inputs.

    ``origin`` is the part of the program that it comes from, in words.
    """

    operand: str
    region: Region
    inputs: tuple[Single | Size | Number | WorkVector, ...]
    origin: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class FactorInput:
    """An input of an operand's factor, with a value for each block of its other mode and of k; 0 blocks: no such mode.

    ``strides`` are its strides along both, and along groups of rows.
    """

    name: str
    dtype: DType
    pointer: Field
    blocks: tuple[int, int]
    strides: tuple[Field | Literal[0], Field | Literal[0], Field | Literal[0]]


@dataclass(frozen=True, slots=True)
class Factor:
    """The factor of the operand ``operand`` that multiplies the sums of a stage: its region and the region's inputs.

    A zero point is ``subtracted`` from the operand's elements instead, or ``added``.
    ``origin`` is the part of the program that it comes from, in words.
    """

    operand: str
    region: Region
    inputs: tuple[FactorInput, ...]
    origin: str = field(default="", compare=False)
    role: Literal["factor", "subtracted", "added"] = "factor"

    @property
    def member(self) -> str:
        """The member of the kernel's parameters that has its inputs."""
        return f"scales.{self.operand.lower()}" if self.role == "factor" else "scales.zeros"

    def varies(self, extent: int) -> bool:
        """Return whether it varies within a tile of this extent along the operand's mode other than k."""
        return any(each.blocks[0] and each.blocks[0] % extent for each in self.inputs)
