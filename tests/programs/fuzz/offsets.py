"""The call of groups of consecutive rows, whose ends are on the device: the tensors of all groups as one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

import evt

from ..call import Data, arguments, is_shared
from ..dtypes import PACKED
from ..interface import memory_modes, reductions
from ..outputs import shape_of
from ..tree import Input, Output, Program
from ..values import tensor

#: The keyword of the ends.
OFFSETS = "offsets"


def rows_of(program: Program) -> tuple[int, ...]:
    """Return the rows of each group."""
    return tuple(each.rows[0] for each in program.groups)


def rows_beyond(program: Program) -> int:
    """Return the number of rows behind the last group, which the kernel does not write."""
    return random.Random(f"{program.seed} beyond").choice((0, 0, 1, 5))


def axis_of_rows(program: Program, value: Input | Output) -> int | None:
    """Return the dimension of the rows in the tensor of one group, if it has them."""
    modes = memory_modes(value, reductions(program).get(value.name, frozenset())) if isinstance(value, Output) else ()
    bases = [mode.partition("/")[0] for mode in (modes or value.modes) if mode != "l"]
    return bases.index("m") if "m" in bases else None


def whole_arguments(
    program: Program, groups: Sequence[Data]
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor | float | int]]:
    """Return A, B and the inputs of all groups: rows one after another, other tensors stacked."""
    each = [arguments(program, data) for data in groups]
    beyond, rows_of_a = rows_beyond(program), program.operand_modes[0].index("m")
    inputs: dict[str, torch.Tensor | float | int] = {}
    for value in program.inputs:
        found = [given[value.name] for _, _, given in each if value.name in given]
        if not found:
            continue
        if is_shared(value, groups[0]):
            inputs[value.name] = found[0]
        elif (axis := axis_of_rows(program, value)) is not None:
            inputs[value.name] = _rows(found, axis, beyond)
        else:
            inputs[value.name] = torch.stack(found if value.modes else [one.reshape(()) for one in found])
    ends = torch.tensor(rows_of(program)).cumsum(0).to(torch.int32)
    return _rows([a for a, _, _ in each], rows_of_a, beyond), _weights(program, groups, each), {**inputs, OFFSETS: ends}


def whole_shape(program: Program, groups: Sequence[Data], output: Output, dtype: str) -> tuple[int, ...]:
    """Return the shape of an output of all groups."""
    over = reductions(program).get(output.name, frozenset())
    shape = list(shape_of(program, groups[0], output, dtype, over))
    if (axis := axis_of_rows(program, output)) is not None:  # no kernel stores other results of groups
        shape[axis] = sum(rows_of(program)) + rows_beyond(program)
    return tuple(shape)


def part(program: Program, value: Input | Output, whole: torch.Tensor, group: int) -> torch.Tensor:
    """Return the elements of one group."""
    axis, rows = axis_of_rows(program, value), rows_of(program)
    return whole[group] if axis is None else whole.narrow(axis, sum(rows[:group]), rows[group])


def _rows(found: Sequence[torch.Tensor], axis: int, beyond: int) -> torch.Tensor:
    """Return tensors one after another along the rows, with rows of NaN behind them, in the layout of the first."""
    turned = found[0].dim() > 1 and found[0].stride(-1) != 1
    shape = [*found[0].shape]
    shape[axis] = beyond
    behind = torch.empty(shape, dtype=found[0].dtype)
    behind.view(torch.uint8).fill_(0 if behind.dtype == torch.bool else 0xFF)
    made = torch.cat([*found, behind], axis)
    return made.mT.contiguous().mT if turned else made


def _weights(
    program: Program, groups: Sequence[Data], each: Sequence[tuple[torch.Tensor, torch.Tensor, object]]
) -> torch.Tensor:
    if program.b in PACKED:
        codes = torch.stack([tensor(program.b, data.given["B"]) for data in groups])
        return evt.prepare(evt.pack_int4(codes, signed=program.b == "i4"))
    made = torch.stack([b for _, b, _ in each])
    return made.mT.contiguous().mT if each[0][1].stride(-1) != 1 else made
