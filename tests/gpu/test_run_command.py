"""``evt run`` on a GPU: the kernel runs, is compared and timed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from evt.cli import main

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_run(dtype: str) -> None:
    formula = "D = relu(alpha*acc + beta*C) + residual"
    sizes = ["--m", "264", "--n", "136", "--k", "200", "--l", "2"]
    result = CliRunner().invoke(main, ["run", formula, *sizes, "--dtype", dtype, "--device", "cuda", "--json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["ok"], found["device"]) == (0, True, "cuda"), result.output
    (output,) = found["outputs"]
    assert 0 < output["relative_error"] <= output["bound"] < 0.02
    assert found["gpu"]
    assert 0 < found["seconds"] < 1
