"""Calls of a program of groups of rows: :mod:`evt.request.ragged`.

The rows of all groups are consecutive in A and in all tensors with rows. B and the other inputs have a matrix, vector
or number for each group, stacked along a first dimension. An input may also be the same for all groups: it broadcasts
along batches. The host does not read the ends of the groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from evt.ir import Input, Output
from evt.ir.node import OFFSETS, base
from evt.plan.gemm import MAX_GROUPS
from evt.reference import reference
from evt.runtime.bound import Bound
from evt.runtime.fresh import fresh_output
from evt.runtime.report import CallDiagnostics
from evt.runtime.tensor_checks import write


def check_operands(a: torch.Tensor, b: torch.Tensor, report: CallDiagnostics) -> None:
    """Report A and B of other dimensions, and too many groups."""
    for name, value, count in (("A", a, 2), ("B", b, 3)):
        if value.dim() != count:
            wanted = "one tensor with the rows of all groups" if name == "A" else "a stacked tensor [groups, ...]"
            report("E0604", f"`{name}` has {value.dim()} dimensions; with `offsets` on the GPU it is {wanted}")
    groups = b.shape[0] if b.dim() else 0
    if isinstance(groups, int) and groups > MAX_GROUPS:
        report("E0604", f"there are {groups} groups; at most {MAX_GROUPS}")


def check_groups(bound: Bound, tensors: Mapping[str, torch.Tensor], report: CallDiagnostics) -> None:
    """Report offsets that are no packed tensor, an expanded B, and products without terms: kernels compute none."""
    ends = tensors.get(OFFSETS)
    if ends is None:
        report("E0607", f"`{OFFSETS}` is a number; expected a tensor with the end of each group")
    elif not ends.is_contiguous():
        report("E0606", f"`{OFFSETS}` is not packed", f"pass {OFFSETS}.contiguous()")
    if bound.sizes["l"] > 1 and not bound.values["B"].stride(0):
        report("E0606", "`B` is expanded: all groups share a matrix", "pass B.contiguous(), or one product of all rows")
    if bound.device.type == "cuda" and bound.sizes["k"] == 0 and 0 not in (bound.sizes["m"], bound.sizes["n"]):
        report("E0604", "with `offsets` on the GPU, k must be at least 1")


def of_all_groups(bound: Bound, b: torch.Tensor) -> Bound:
    """Return a call whose B has a legal step from group to group, also if there is one group."""
    argument = bound.tensors["B"]
    if b.shape[0] != 1:
        return bound
    step = b.shape[-1] * b.shape[-2]  # nothing steps by it, and TMA needs a multiple of 16 bytes
    given = replace(argument, strides={**argument.strides, "l": step})
    return replace(bound, tensors={**bound.tensors, "B": given})


def evaluate_groups(bound: Bound, buffers: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the reference's outputs. Rows of no group are not written."""
    dag, values = bound.dag, bound.values
    results = {
        each.name: buffers[each.name] if each.name in buffers else fresh_output(bound, each) for each in dag.outputs
    }
    if 0 not in (bound.sizes["m"], bound.sizes["n"], bound.sizes["l"]):
        first = 0
        for group, end in enumerate(values[OFFSETS].tolist()):
            end = min(max(end, 0), bound.sizes["m"])
            if end > first:
                _evaluate(bound, results, group, first, end)
            first = end
    return [results[each.name] for each in dag.outputs]


def _evaluate(bound: Bound, results: Mapping[str, torch.Tensor], group: int, first: int, end: int) -> None:
    """Write the results of one group."""
    dag, values = bound.dag, bound.values

    def part(value: Input | Output, tensor: Any) -> Any:
        modes = [base(mode) for mode in value.modes]
        if not isinstance(tensor, torch.Tensor) or value.is_indexed:
            return tensor
        if "l" in modes and tensor.dim() == len(modes):
            tensor = tensor.select(modes.index("l"), group)
            modes.remove("l")
        return tensor.narrow(modes.index("m"), first, end - first) if "m" in modes else tensor

    inputs = {each.name: part(each, values[each.name]) for each in dag.inputs if each.name in values}
    outputs = {each.name: part(each, results[each.name]) for each in dag.outputs}
    held = {each.name: outputs[each.name] for each in dag.outputs if each.is_indexed}
    rows = values["A"].narrow(dag.operands[0].modes.index("m"), first, end - first)
    found = reference(dag, rows, values["B"][group], {**inputs, **held})
    for name, output in outputs.items():
        write(output, found[name])
