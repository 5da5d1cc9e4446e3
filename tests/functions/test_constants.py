"""Constant arguments that PyTorch refuses are refused: E0207."""

from __future__ import annotations

from itertools import product
from operator import attrgetter
from typing import Any

import pytest
import torch

from evt.errors import EvtError
from evt.functions import TABLE
from tests.programs import typed

#: Rows with numbers after x, and PyTorch's function of each.
ROWS = {
    row.name: target.removeprefix("torch.").partition("(")
    for row in TABLE.values()
    for target in [next((each for each in row.targets if each.startswith("torch.nn.functional.")), "")]
    if target and all(parameter.default is not None for parameter in row.parameters[1:]) and row.parameters[1:]
}
NUMBERS = (-2.0, -0.5, 0.0, 0.25, 1.0)


def refused(name: str, numbers: tuple[float, ...]) -> list[str]:
    try:
        typed(f"D = {name}({', '.join(map(str, ('acc', *numbers)))})")
    except EvtError as error:
        return [each.code for each in error.diagnostics]
    return []


@pytest.mark.parametrize("name", ROWS)
def test_what_pytorch_refuses(name: str) -> None:
    path, _, keywords = ROWS[name]
    count = len(TABLE[name].parameters) - 1
    fixed: dict[str, Any] = {"training": False} if "training=False" in keywords else {}
    for numbers in product(NUMBERS, repeat=count):
        try:
            attrgetter(path)(torch)(torch.ones(2), *numbers, **fixed)
            expected = []
        except (RuntimeError, ValueError):
            expected = ["E0207"]
        assert refused(name, numbers) == expected, numbers


@pytest.mark.parametrize(("p", "codes"), [(-0.1, ["E0207"]), (0, []), (0.5, []), (1, []), (1.1, ["E0207"])])
def test_probabilities(p: float, codes: list[str]) -> None:
    assert refused("dropout", (p, 1, 2)) == codes
