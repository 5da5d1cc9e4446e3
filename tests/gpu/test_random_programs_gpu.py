"""Random programs on a GPU, against an evaluator that is not evt: ``--compiled 40`` runs more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import count
from typing import Any

import pytest
import torch

from evt.errors import ArgumentError, EvtError, ProgramError, TargetError
from tests.programs.call import Data, arguments, buffers, problems
from tests.programs.checks import CheckResult, make
from tests.programs.compare import compare
from tests.programs.evaluator import Mode, evaluate
from tests.programs.generator import generate
from tests.programs.interface import reductions
from tests.programs.tree import Program

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
#: The part of a product by which tensor cores may be off: operands rounded to tf32, sums of fewer bits.
PRODUCT = {"f32": 2.0**-9, "tf32": 2.0**-12, "e4m3": 2.0**-10, "e5m2": 2.0**-10}
#: The tolerance of CUDA's functions and of contracted formulas, in units in the last place.
FUNCTION = 16.0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("index", range(metafunc.config.getoption("compiled") or 8))


@cache
def seeds(first: int) -> Iterator[int]:
    """Return the seeds that no test has taken."""
    return count(first)


def called(program: Program, data: Sequence[Data]) -> list[Mapping[str, Any]]:
    """Return the outputs of each problem, on the CPU."""
    op = make(program)
    groups = [moved(*arguments(program, each)) for each in data]
    if program.operation == "grouped_gemm":
        names = groups[0][2]
        inputs = {name: [rest[name] for _, _, rest in groups] for name in names}
        lists = op([a for a, _, _ in groups], [b for _, b, _ in groups], **inputs)
        lists = [lists] if len(op.outputs) == 1 else lists
        results = list(zip(*lists, strict=True))
    else:
        (a, b, inputs), *_ = groups
        held = {name: on_device(each) for name, each in buffers(program, data[0]).items()}
        result = op(a, b, **inputs, **held)
        results = [(result,) if len(op.outputs) == 1 else result]
    return [dict(zip(op.outputs, (each.cpu() for each in result), strict=True)) for result in results]


def moved(a: Any, b: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return a call's tensors on the GPU."""
    tensors = {name: on_device(value) for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    return on_device(a), on_device(b), {**inputs, **tensors}


def on_device(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the GPU, with its strides."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE).copy_(tensor)


def is_refusal(error: EvtError) -> bool:
    """Return whether it is no program, or no kernel computes it, or none takes a tensor's layout."""
    layout = isinstance(error, ArgumentError) and {each.code for each in error.diagnostics} == {"E0606"}
    return layout or isinstance(error, ProgramError | TargetError)


def test_a_random_program_runs(index: int, pytestconfig: pytest.Config) -> None:
    for seed in seeds(pytestconfig.getoption("first")):
        program = generate(seed)
        if dict(program.settings).get("fast_math"):
            continue
        data = problems(program)
        try:
            found = called(program, data)
        except EvtError as error:
            if not is_refusal(error):
                raise
            continue
        break
    report, relaxed = CheckResult(), bool(dict(program.settings).get("relaxed"))
    mode = Mode(single=True, loose=True, finite=relaxed, function=FUNCTION, product=PRODUCT.get(program.a, 0.0))
    for problem, outputs in zip(data, found, strict=True):
        compare(program, problem, "kernel", evaluate(program, problem, mode), outputs, reductions(program), report)
    assert not report.failures, f"{program}\n{report.failures}"
