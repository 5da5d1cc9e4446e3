"""``evt explain --gpu``: the measurements of a named GPU, and the reason why it has none."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import evt
from evt.cli import main
from evt.measured import Store
from tests.support.measurements import FORMULA, GPU, half, key_of, measurement

pytestmark = pytest.mark.usefixtures("own_cache")

SIZES = ("--m", "40", "--n", "16", "--k", "24")


def cli(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["explain", *arguments, FORMULA], prog_name="evt")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("gpu", [GPU, GPU.lower(), GPU.split()[-1], "H100", "", "nonsense"])
@pytest.mark.parametrize("sizes", [SIZES, (*SIZES[:-1], "25"), ()])
@pytest.mark.parametrize("verbose", [("--verbose",), ()])
def test_explain_says_that_a_named_gpu_has_no_times(gpu: str, sizes: tuple[str, ...], verbose: tuple[str, ...]) -> None:
    Store().add(key_of(evt.gemm(FORMULA), half(40, 24), half(24, 16)), measurement())
    told = cli(*verbose, *sizes, "--gpu", gpu)
    known = sizes == SIZES and gpu.lower() in GPU.lower()
    missing = f"no times of these sizes on {gpu}, so the rules choose" in told
    assert missing == (bool(sizes and gpu) and not known)
    assert (f"times on {gpu} need sizes" in told) == (bool(gpu) and not sizes)
    assert ("measured on" in told) == known
    found = json.loads(cli(*sizes, "--gpu", gpu, "--json"))
    assert found["measured_on"] == ([GPU] if known else [])
    assert found["not_measured_on"] == (None if known else gpu or None)
