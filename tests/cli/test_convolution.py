"""The command line of convolutions: their options, refusals, and ``evt run`` and ``evt explain`` of them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

import evt
from evt.bench.calls import call_sizes, random_call, shapes_of
from evt.cli.answers import product_alone, shifted
from evt.diagnostics import Source
from evt.errors import ArgumentError
from evt.ir.convolution import CONVOLUTIONS
from evt.ir.lower import OPERATIONS
from evt.program import Program
from evt.reference import reference
from evt.request import typed_graph
from tests.support.command_line import ok, run
from tests.support.depth import in_depth

FORMULA = "D = relu(acc + bias) + residual"
SMALL = ("--a-shape", "2,16,9,7", "--b-shape", "24,16,3,3")


def document(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# Options


@pytest.mark.parametrize(
    ("options", "keywords"),
    [
        ((), {}),
        (("--stride", "2"), {"stride": 2}),
        (("--stride", "1,2"), {"stride": (1, 2)}),
        (("--stride", " 1 , 2 "), {"stride": (1, 2)}),
        (("--padding", "1"), {"padding": 1}),
        (("--padding", "1,0"), {"padding": (1, 0)}),
        (("--padding", "same"), {"padding": "same"}),
        (("--padding", "valid"), {"padding": "valid"}),
        (("--padding", "0:1,2:1"), {"padding": ((0, 1), (2, 1))}),
        (("--padding", "0:1,2"), {"padding": ((0, 1), (2, 2))}),
        (("--dilation", "2,3"), {"dilation": (2, 3)}),
        (("--groups", "2"), {"groups": 2}),
        (("--groups", "2", "--stride", "3", "--padding", "1"), {"groups": 2, "stride": 3, "padding": 1}),
    ],
)
def test_the_geometry_is_that_of_the_keywords(options: tuple[str, ...], keywords: dict[str, Any]) -> None:
    program = evt.conv2d(FORMULA, **keywords)
    assert ok("emit", FORMULA, "--op", "conv2d", *options) == program.emit()
    assert (
        ok("explain", "--verbose", FORMULA, "--op", "conv2d", *options, "--arch", "sm80")
        == f"{program.explain('sm80').details()}\n"
    )


@pytest.mark.parametrize("command", ["emit", "show", "explain", "graph", "check", "build"])
def test_every_command_takes_every_operation(command: str) -> None:
    for operation in OPERATIONS:
        geometry = ["--kernel-size", "3"] if operation.endswith("wgrad") else []
        rest = {"build": ["--print-command"], "show": ["--stage", "plan"]}.get(command, [])
        result = run(command, "D = 2*acc", "--op", operation, *geometry, *rest)
        assert result.exit_code == 0 or (command == "build" and "E07" in result.stderr), result.output


def test_gradients_have_options_of_their_own() -> None:
    dgrad = Program(Source("D = acc"), "conv2d_dgrad", stride=2, output_padding=(1, 0))
    options = ("--stride", "2", "--output-padding", "1,0")
    assert ok("emit", "D = acc", "--op", "conv2d_dgrad", *options) == dgrad.emit()
    wgrad = Program(Source("D = acc"), "conv2d_wgrad", kernel_size=(3, 5))
    assert ok("emit", "D = acc", "--op", "conv2d_wgrad", "--kernel-size", "3,5") == wgrad.emit()


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
def test_sizes_align_the_kernel(arch: str) -> None:
    shapes = ((2, 12, 9, 7), (20, 12, 3, 3))
    given = ("--a-shape", "2,12,9,7", "--b-shape", "20,12,3,3", "--op", "conv2d", "--arch", arch)
    text = ok("emit", FORMULA, *given)
    assert text == evt.conv2d(FORMULA).emit(arch, shapes=shapes)
    assert text != evt.conv2d(FORMULA).emit(arch)
    assert ok("show", FORMULA, "--stage", "plan", *given)
    assert "E0502" in run("check", FORMULA, *given[:6], "--arch", "sm90", "--route", "conv-evt-3x").stderr


def test_sizes_of_matrices() -> None:
    shapes = ((40, 23), (23, 16))
    sizes = ("--m", "40", "--n", "16", "--k", "23")
    assert ok("emit", "D = acc", *sizes) == evt.gemm("D = acc").emit(shapes=shapes) != evt.gemm("D = acc").emit()
    assert ok("explain", "--verbose", "D = acc", *sizes) == f"{evt.gemm('D = acc').explain(shapes=shapes).details()}\n"
    linear = evt.linear("D = acc").emit(shapes=((40, 23), (16, 23)))
    assert ok("emit", "D = acc", "--op", "linear", *sizes) == linear
    assert ok("check", "D = acc", *sizes, "--arch", "sm90").startswith("<formula>: ok\n")
    assert "E0502" in run("check", "D = acc", *sizes, "--arch", "sm90", "--route", "evt-3x").stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("emit", "--stride", "-1"), "'-1' is not valid; write for example 1 or 1,2."),
        (("emit", "--stride", "1:2"), "is not valid"),
        (("emit", "--stride", "two"), "is not valid"),
        (("emit", "--padding", "sane"), "1, 1,2, same, valid or 0:1,2:1."),
        (("emit", "--padding", "1,,2"), "is not valid"),
        (("emit", "--padding", "9" * 5000), "is not valid"),
        (("emit", "--dilation", "1.5"), "is not valid"),
        (("emit", "--groups", ""), "is not valid"),
        (("emit", "--a-shape", "1,2,3,0", "--b-shape", "1,2,3,3"), "is not a shape"),
        (("emit", "--a-shape", "1x2x3x4", "--b-shape", "1,2,3,3"), "is not a shape"),
        (("emit", "--a-shape", "1,2,3,99999999999", "--b-shape", "1,2,3,3"), "is not a shape"),
        (("emit", "--a-shape", "1,2,3,4"), "Give --a-shape and --b-shape together."),
        (("run", "--b-shape", "1,2,3,4"), "Give --a-shape and --b-shape together."),
        (("run", "--m", "4"), "--m is for matrix products; give --a-shape and --b-shape."),
        (("run", "--l", "4"), "--l is for matrix products"),
        (("run", "--a-shape", f"{2**31 - 1},8,{2**31 - 1},9", "--b-shape", "8,8,3,3"), "GB are free"),
        (("run", "--padding", "1000000"), "GB are free"),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], said: str) -> None:
    result = run(arguments[0], "D = acc", "--op", "conv2d", *arguments[1:])
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())
    assert not result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("explain", "--m", "4"), "Give --m, --n and --k together; --n and --k are missing."),
        (("run", "--a-shape", "4,5", "--b-shape", "5,6"), "are for convolutions; give --m, --n and --k."),
        (("explain", "--op", "linear", "--m", "4", "--n", "4", "--k", "4", "--l", "2"), "--l is for gemm"),
    ],
)
def test_wrong_usage_of_matrices(arguments: tuple[str, ...], said: str) -> None:
    result = run(arguments[0], "D = acc", *arguments[1:])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--stride", "0"), "E0607"),
        (("--stride", "1,2,3"), "E0607"),
        (("--groups", "1,2"), "E0607"),
        (("--padding", "1:2"), "E0607"),
        (("--padding", "same", "--stride", "2"), "E0607"),
        (("--padding", "999999999999"), "E0607"),
        (("--output-padding", "1"), "E0602"),
        (("--kernel-size", "3"), "E0602"),
        (("--a-shape", "1,2,3", "--b-shape", "1,2,3"), "E0604"),
        (("--a-shape", "1,8,5,5", "--b-shape", "8,8,7,7"), "E0604"),
        (("--a-shape", "1,8,9,9", "--b-shape", "8,6,3,3"), "E0604"),
        (("--a-shape", "1,9,9,9", "--b-shape", "8,4,3,3", "--groups", "2"), "E0604"),
        (("--op", "conv2d_wgrad"), "E0601"),
        (("--op", "gemm", "--stride", "2"), "E0602"),
        (("--op", "conv9d"), "E0501"),
    ],
)
@pytest.mark.parametrize("command", ["emit", "explain", "check", "run"])
def test_diagnostics(command: str, arguments: tuple[str, ...], code: str) -> None:
    result = run(command, "D = acc", "--op", "conv2d", *arguments)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error[{code}]")
    assert not result.stdout


def test_the_header_may_say_that_it_is_a_convolution() -> None:
    program = "conv2d(A: bf16, B: bf16); D = relu(acc)"
    result = run("emit", program, "--padding", "1", *SMALL)
    if result.exit_code:
        pytest.skip("headers of convolutions are not supported")
    assert "header says" in run("emit", program, "--op", "gemm").stderr


# run


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("operation", CONVOLUTIONS)
def test_run_every_convolution(operation: str) -> None:
    run_convolution(operation)


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("operation", in_depth(CONVOLUTIONS, ("conv2d", "conv2d_dgrad", "conv2d_wgrad")))
@pytest.mark.parametrize("options", [("--stride", "2", "--padding", "1", "--groups", "2"), ("--dilation", "2")])
def test_run_every_geometry(operation: str, options: tuple[str, ...]) -> None:
    run_convolution(operation, *options)


def run_convolution(operation: str, *options: str) -> None:
    geometry = (*options, *(("--kernel-size", "3") if operation.endswith("wgrad") else ()))
    found = document("run", "D = relu(alpha*acc)", "--op", operation, *geometry)
    assert found["ok"] is True
    (output,) = found["outputs"]
    assert 0 < output["relative_error"] <= output["bound"] < 1e-3
    assert len(output["shape"]) == len(found["a_shape"]) == len(found["b_shape"])


@pytest.mark.usefixtures("_no_gpu")
def test_run_prints_the_shapes() -> None:
    text = ok("run", FORMULA, "--op", "conv2d", *SMALL, "--padding", "0:1,2:1")
    assert text.startswith("conv2d by the reference, on the CPU: no kernel was run\n")
    assert "m=128 n=24 k=144, A f16[2, 16, 9, 7], B f16[24, 16, 3, 3]\n" in text
    assert re.search(r"D: f16\[2, 24, 8, 8\]  relative error \S+, bound \S+  ok", text)


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64", "e4m3", "i8"])
def test_run_types(dtype: str) -> None:
    assert document("run", FORMULA, "--op", "conv2d", *SMALL, "--dtype", dtype)["ok"] is True


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    "program",
    [
        "out D, mask: b1[m, n], t: f32[n], s: f32[m], top: f32\nz = acc + bias\nD = relu(z)\nmask = z > 0\n"
        "t = sum[m](z)\ns = sum[n](z)\ntop = max[m, n](abs(z))",
        "in w: f32[m?], keep: b1[m, n]\nD = where(keep, w*acc, 0)",
        "A = relu(scale[k]*A + shift[k])\nD = acc + bias",
        "out D: i8[m, n]\nD = 30*acc",
    ],
)
def test_run_the_language(program: str) -> None:
    found = document("run", program, "--op", "conv2d", *SMALL, "--padding", "1")
    assert found["ok"] is True, found


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize("wrong", ["nothing", "an element"])
def test_run_finds_a_wrong_convolution(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right = Program.__call__

    def call(self: Program, *operands: Any, out: dict[str, torch.Tensor], **inputs: Any) -> None:
        if wrong != "nothing":
            right(self, *operands, out=out, **inputs)
            out["D"][1, 3, 5, 2] += 4

    monkeypatch.setattr(Program, "__call__", call)
    result = run("run", FORMULA, "--op", "conv2d", *SMALL)
    assert result.exit_code == 1
    assert "WRONG" in result.stdout


@pytest.mark.usefixtures("_no_gpu")
def test_run_never_falls_back_in_silence() -> None:
    result = run("run", FORMULA, "--op", "conv2d", "--device", "cuda")
    assert result.exit_code == 1
    assert result.stderr.startswith("error[E0801]")


def test_tensors_are_channels_last() -> None:
    program = evt.conv2d("D = relu(acc + bias) + residual", padding=1)
    shapes = shapes_of(program.request, None)
    (a, b), inputs = random_call(
        program.request, typed_graph(program.request), shapes, torch.Generator().manual_seed(0)
    )
    for tensor in (a, b, inputs["residual"]):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert (tuple(a.shape), tuple(b.shape)) == shapes == ((2, 64, 28, 28), (64, 64, 3, 3))
    acc = evt.conv2d("out D: f32[m, n]; D = acc", padding=1).reference(a, b)
    assert 0.8 < float(acc.var()) < 1.1  # a little less, at the border


def test_sizes_of_a_call() -> None:
    assert call_sizes(evt.gemm("D = acc").request, ((3, 4, 5), (3, 5, 6))) == {"m": 4, "n": 6, "k": 5, "l": 3}
    assert call_sizes(evt.gemm("D = acc").request, ((4, 5), (5, 6))) == {"m": 4, "n": 6, "k": 5}
    wgrad = Program(Source("D = acc"), "conv2d_wgrad", kernel_size=3)
    assert call_sizes(wgrad.request, ((2, 24, 7, 5), (2, 16, 9, 7))) == {"m": 24, "n": 144, "k": 70}
    with pytest.raises(ArgumentError, match="E0604"):
        shapes_of(evt.conv2d("D = acc", dilation=500).request, None)


def test_programs_of_another_accumulator() -> None:
    program = Program(Source("A = 2*A\nD = relu(acc)"), "conv2d", padding=1)
    shapes = ((1, 8, 5, 5), (8, 8, 3, 3))
    (a, b), _ = random_call(program.request, typed_graph(program.request), shapes, torch.Generator().manual_seed(0))
    expected = torch.nn.functional.conv2d(2 * a.double(), b.double(), padding=1)
    alone = reference(
        product_alone(typed_graph(program.request)), a, b, {}, float64=True, convolution=program.request.convolution
    )["D"]
    torch.testing.assert_close(alone, expected)
    off = reference(
        shifted(typed_graph(program.request), 0.25), a, b, {}, float64=True, convolution=program.request.convolution
    )["D"]
    torch.testing.assert_close(off, torch.relu(expected + 0.25))


# explain


def test_explain_costs() -> None:
    found = document("explain", FORMULA, "--op", "conv2d", *SMALL, "--padding", "1")
    costs = found["costs"]
    pixels = 2 * 9 * 7
    assert costs["sizes"] == {"m": pixels, "n": 24, "k": 16 * 9, "l": 1}
    assert costs["flops"] == 2 * pixels * 24 * 16 * 9
    tile = 2 * pixels * 24
    assert costs["bytes"] == {
        "operands": 2 * (2 * 16 * 9 * 7 + 24 * 16 * 9),
        "read": tile + 2 * 24,
        "written": tile,
    }
    assert costs["flops_per_byte"] == round(costs["flops"] / sum(costs["bytes"].values()), 3)
    text = ok("explain", "--verbose", FORMULA, "--op", "conv2d", *SMALL, "--padding", "1")
    assert "costs of m=126 n=24 k=144: 871 kFLOP, at least 23.1 kB (" in text
    shapes = ("--a-shape", "2,32,9,7", "--b-shape", "128,16,3,3")
    grouped = document("explain", "D = relu(acc)", "--op", "conv2d", *shapes, "--groups", "2")
    assert grouped["costs"]["flops"] == 2 * 2 * 7 * 5 * 128 * 16 * 9
    options = ("--a-shape", "2,64,5,5", "--b-shape", "64,16,3,3", "--stride", "2", "--route", "stock")
    strided = document("explain", "D = 2*acc", "--op", "conv2d_dgrad", *options)
    assert strided["costs"]["flops"] == 2 * 2 * 5 * 5 * 64 * 16 * 9


def test_explain_costs_of_matrices() -> None:
    text = "out D: f16[m, n/2], seen: b1[m, n], t: f32[n]\nD = even(acc)*odd(acc)\nseen = acc > 0\nt = sum[m](acc)"
    found = document("explain", text, "--m", "40", "--n", "64", "--k", "24", "--l", "3")
    assert found["costs"]["flops"] == 2 * 3 * 40 * 64 * 24
    assert found["costs"]["bytes"]["operands"] == 2 * 3 * (40 * 24 + 24 * 64)
    assert found["costs"]["bytes"]["written"] == 3 * (40 * 32 * 2 + 40 * 8) + 3 * 4 * 64
    assert document("explain", text)["costs"] is None


def test_explain_says_of_each_route_whether_it_applies() -> None:
    found = document("explain", FORMULA, "--op", "conv2d", *SMALL, "--arch", "sm80")
    routes = {route["name"]: route for route in found["routes"]}
    assert found["chosen_by"] == "rules"
    chosen = [name for name, route in routes.items() if route["chosen"]]
    assert chosen == [next(name for name, route in routes.items() if route["applies"])]
    for route in routes.values():
        assert route["applies"] == all(rule["holds"] for rule in route["rules"])
        assert (route["shared_memory_bytes"] is None) == (not route["applies"])
        assert route["measured"] == []
    assert routes["conv-evt-2x"]["shared_memory_bytes"] > 1024
    assert routes["conv-evt-2x"]["registers"] > 40
    text = ok("explain", "--verbose", FORMULA, "--op", "conv2d", *SMALL, "--arch", "sm80")
    for name, route in routes.items():
        (section,) = re.findall(rf"^(?:->|  ) {name}: .*\n((?:      .*\n)*)", text, re.MULTILINE)
        assert section.count("\n") >= 1
        assert ("fails  " in section) == (not route["applies"])
        assert ("KiB of shared memory" in section) == route["applies"]


@pytest.mark.usefixtures("_no_gpu")
def test_run_says_that_no_kernel_could() -> None:
    arguments = (
        "D = silu(acc)",
        "--op",
        "conv3d_dgrad",
        "--stride",
        "2",
        "--a-shape",
        "1,8,4,4,4",
        "--b-shape",
        "8,8,3,3,3",
    )
    result = run("run", *arguments)
    assert "D: f16[1, 8, 9, 9, 9]" in result.stdout
    assert "warning: no kernel of evt computes this call on any GPU" in result.stderr
    assert "E0503: CUTLASS permutes the rows of a dgrad with a stride" in result.stderr
    assert "warning" not in run("run", "D = acc", *arguments[1:]).stderr
    assert "E0503" in document("run", *arguments)["warning"]
    assert document("run", "D = acc", *arguments[1:])["warning"] == ""
