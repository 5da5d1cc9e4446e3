"""`evt run`: the reference where there is no GPU, and wrong answers found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import evt
from evt.cli.answers import Answers, cut_to_tf32, is_exact, magnitudes
from evt.cli.judge import judge
from evt.ir import Output
from evt.ir.dtype import BY_NAME
from evt.program import Program
from evt.reference import evaluate
from evt.request import typed_graph
from tests.support.command_line import EVERYTHING, FORMULA, THREE_OUTPUTS, document, ok, run

SMALL = ("--m", "24", "--n", "40", "--k", "16")


@pytest.mark.usefixtures("_no_gpu")
def test_run_says_that_it_used_the_reference() -> None:
    text = ok("run", FORMULA, *SMALL)
    assert "no kernel was run" in text
    assert "m=24 n=40 k=16" in text
    assert "D: f16[24, 40]  relative error " in text
    assert "time" in text


@pytest.mark.usefixtures("_no_gpu")
def test_run_as_json() -> None:
    found = document(run("run", THREE_OUTPUTS, *SMALL, "--l", "3", "--dtype", "bf16", "--json"))
    assert found["ok"] is True
    assert (found["device"], found["gpu"]) == ("cpu", "")
    assert found["sizes"] == {"m": 24, "n": 40, "k": 16, "l": 3}
    assert [(each["name"], each["dtype"], each["shape"]) for each in found["outputs"]] == [
        ("D", "bf16", [3, 24, 40]),
        ("E", "f32", [3, 24, 40]),
        ("F", "bf16", [3, 24, 40]),
    ]
    for output in found["outputs"]:
        assert 0 < output["relative_error"] <= output["bound"] < 0.02
        assert output["ok"] is True
    assert found["seconds"] > 0
    assert found["repetitions"] >= 3


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "program",
    [
        "D = acc",
        "D = acc * 0",
        "D = log(acc)",
        "D = exp(acc * 1000)",
        "D = acc / s[m] + b[n] * x",
        "in alpha: f32 = 2; D = alpha * acc",
        "out D: f32[n, m], E; E = acc + bias; D = E * E",
        "D = acc * x[l, m, n] + y[l, n] + z[l]",
        "D = round(acc * 3)",
    ],
)
@pytest.mark.parametrize("batch", [(), ("--l", "2")])
def test_run_programs(program: str, batch: tuple[str, ...]) -> None:
    found = document(run("run", program, *SMALL, *batch, "--dtype", "f16", "--json"))
    assert found["ok"] is True, found


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("dtype", ["f16", "bf16", "tf32", "f32"])
def test_run_types_and_operations(dtype: str) -> None:
    assert document(run("run", FORMULA, *SMALL, "--op", "linear", "--dtype", dtype, "--json"))["a"] == dtype


@pytest.mark.usefixtures("_no_gpu")
def test_run_draws_the_same_numbers_again() -> None:
    def errors(seed: str) -> list[float]:
        found = document(run("run", FORMULA, *SMALL, "--seed", seed, "--json"))
        return [*found["scalars"].values(), *(each["relative_error"] for each in found["outputs"])]

    assert errors("7") == errors("7") != errors("8")
    assert document(run("run", "in alpha: f32 = 2; D = alpha*acc", *SMALL, "--json"))["scalars"] == {}


@pytest.mark.usefixtures("_no_gpu")
def test_run_never_falls_back_in_silence() -> None:
    result = run("run", FORMULA, "--device", "cuda")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[E0801]")
    assert document(run("run", FORMULA, "--device", "cuda", "--json"))["diagnostics"][0]["code"] == "E0801"


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("wrong", ["nothing", "an element", "a nan"])
def test_run_finds_a_wrong_answer(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = Program.__call__

    def call(self: Program, *operands: Any, out: dict[str, torch.Tensor], **inputs: Any) -> None:
        if wrong != "nothing":
            right(self, *operands, out=out, **inputs)
            out["D"][3, 5] = out["D"][3, 5] + 1 if wrong == "an element" else torch.nan

    monkeypatch.setattr(Program, "__call__", call)
    result = run("run", FORMULA, *SMALL)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout
    found = document(run("run", FORMULA, *SMALL, "--json"))
    assert found["ok"] is False
    (output,) = found["outputs"]
    assert output["unexpected"] == {"nothing": 24 * 40, "an element": 0, "a nan": 1}[wrong]
    assert (output["relative_error"] is None) == (wrong != "an element")


QUANTISED = """
gemm(A: i8[m, k], B: i8[k, n])
in  x_scale: f32[m?], azp: i32[m], azp_adj: i32[n], bias: bf16[n] = 0
out D: bf16[m, n], mask: b1[m, n], rowsum: f32[m], amax: f32
z = x_scale * (acc - azp * azp_adj) + bias
D = relu(z)
mask = z > 0
rowsum = sum[n](z)
amax = max[m, n](abs(z))
"""


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("batch", [(), ("--l", "2")])
def test_run_the_whole_language(batch: tuple[str, ...]) -> None:
    found = document(run("run", EVERYTHING, "--m", "24", "--n", "64", "--k", "16", *batch, "--json"))
    assert found["ok"] is True, found
    outputs = {each["name"]: each for each in found["outputs"]}
    lead = [2] if batch else []
    assert outputs["D"]["shape"] == [*lead, 24, 32]
    assert outputs["seen"]["shape"] == [*lead, 24, 8]
    assert outputs["scale"]["shape"] == [*lead, 24, 2]
    assert outputs["amax"]["shape"] == lead
    counted = {name for name, each in outputs.items() if each["unequal"] is not None}
    assert counted == {"seen", "q", "h", "i", "u"}
    assert all(outputs[name]["unequal"] == 0 for name in counted)
    assert all(outputs[name]["bound"] is None for name in counted)
    assert outputs["i"]["allowed"] == 0
    assert set(found["scalars"]) == {"seed", "offset"}


@pytest.mark.usefixtures("_no_gpu")
def test_run_quantised() -> None:
    result = run("run", QUANTISED, "--m", "24", "--n", "64", "--k", "16")
    assert result.exit_code == 0, result.output
    assert "A i8, B i8" in result.stdout
    assert "mask: b1[24, 8]  0 of 1536 elements differ, 0 allowed  ok" in result.stdout


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "options",
    [
        *(("--dtype", dtype) for dtype in ("f64", "e4m3", "e5m2", "i8", "u8", "double", "fp8")),
        *(("--a", a, "--b", b) for a, b in (("e4m3", "e5m2"), ("u8", "i8"), ("f32", "tf32"))),
        ("--numerics", "eager", "--dtype", "bf16"),
        ("--relaxed", "--fast-math", "--no-deterministic"),
    ],
)
@pytest.mark.parametrize("operation", ["gemm", "linear"])
def test_run_operands_and_numerics(options: tuple[str, ...], operation: str) -> None:
    found = document(run("run", "D = relu(acc * s[m]) + 1", *SMALL, *options, "--op", operation, "--json"))
    assert found["ok"] is True, found


def disturbed(off: float, wrong: bool) -> Callable[..., None]:
    """Return a kernel whose sums have this relative error, and possibly one wrong element in each output."""

    def call(self: Program, a: torch.Tensor, b: torch.Tensor, *, out: dict[str, torch.Tensor], **inputs: Any) -> None:
        acc = a.double() @ b.double()
        noise = torch.randn(acc.shape, generator=torch.Generator().manual_seed(1))
        results = evaluate(typed_graph(self.request), (acc + off * noise * acc.square().mean().sqrt()).float(), inputs)
        for name, buffer in out.items():
            buffer.copy_(results[name])
            if wrong:
                one = buffer.view(-1)[100:101]
                one.copy_(one ^ 16 if buffer.dtype == torch.uint8 else (one.float() + 16).to(buffer.dtype))

    return call


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "program",
    [
        "out D: f32[m, n]; D = gelu(acc)",
        "out D: f32[m, n]; D = where(acc > 0, acc, -0.5)",
        "out D: f32[m, n]; D = round(acc * 3)",
        "out D: f32[m, n]; D = bf16(acc) * C",
        "out D: f32[m, n]; D = i8(30 * acc) + C",
        "out D: i8[m, n]; D = 30 * acc",
        "out D: u8[m, n]; D = abs(acc) * 30",
        "out D: i32[m, n]; D = 1e5 * acc",
        "out D: e4m3[m, n]; D = acc",
        "out D: b1[m, n]; D = acc > 0.1",
        "out D: f32[m]; D = sum[n](abs(acc))",
        "out D: f32[n]; D = max[m](acc)",
    ],
)
def test_run_tells_rounding_from_mistakes(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """On sums that are off as another order makes them, thresholds are crossed and elements round elsewhere."""
    sizes = ("--m", "200", "--n", "256", "--k", "384")
    monkeypatch.setattr(Program, "__call__", disturbed(2e-6, False))
    assert document(run("run", program, *sizes, "--json"))["ok"] is True
    monkeypatch.setattr(Program, "__call__", disturbed(1e-6, True))
    result = run("run", program, *sizes)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("program", [EVERYTHING, "out D: i8[m, n]; D = 30 * acc", "out D: b1[m, n]; D = acc > 0"])
def test_run_finds_what_is_left_unwritten(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(Program, "__call__", lambda self, *operands, out, **inputs: None)
    found = document(run("run", program, "--m", "24", "--n", "64", "--k", "16", "--json"))
    assert [each["name"] for each in found["outputs"] if each["ok"]] == []


def test_compare_counts_integers() -> None:
    output = Output("D", BY_NAME["i32"], ("m", "n"))
    right = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    answers = Answers(right, right)
    assert judge(output, right, answers, 4, 0.0).ok
    off = right.clone()
    off[1, 1] += 1
    result = judge(output, off, answers, 4, 0.0)
    assert (result.ok, result.unequal, result.allowed, result.unexpected) == (False, 1, 0, 1)


def test_what_is_exact() -> None:
    outputs = "out D: f32[m, n], i: i32[m, n], b: b1[m, n], s: i32[m]"
    text = f"{outputs}\nD = acc * 0.5; i = 3 * acc; b = acc > 2; s = sum[n](acc)"
    typed = typed_graph(evt.gemm(text).request, "i8")
    assert [name for name in ("D", "i", "b", "s") if is_exact(typed, name)] == ["i", "b", "s"]
    assert magnitudes(typed) is None
    typed = typed_graph(evt.gemm("out D, s: f32[m], t: f32; D = acc; s = sum[n](acc * C); t = max[m, n](acc)").request)
    sums = magnitudes(typed)
    assert sums is not None
    assert [(each.name, str(each.dtype)) for each in sums.outputs] == [("s", "f64")]
    assert "abs" in str(sums)


def test_operands_are_cut_to_tf32() -> None:
    cut = cut_to_tf32(torch.tensor([1 + 2.0**-10, 1 + 2.0**-11, -1 - 2.0**-11]))
    assert cut.tolist() == [1 + 2.0**-10, 1.0, -1.0]
    half = torch.ones(2, dtype=torch.float16)
    assert cut_to_tf32(half) is half


def test_default_sizes_that_do_not_fit_are_refused_with_a_help() -> None:
    result = run("run", "D = acc", "--op", "conv2d", "--dilation", "500")
    assert result.exit_code == 1
    assert "error[E0604]: the default sizes do not fit: the dilated filters span 1001 pixels" in result.stderr
    assert "give --a-shape and --b-shape" in result.stderr
