"""The emitted file for those who read it, and its names for those who link it."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.emission import emitted
from evt.functions import function
from evt.functions.testing import temporarily
from evt.plan import Plan
from evt.runtime import library
from tests.support.command_line import EVERYTHING

ROOT = Path(__file__).parents[2]
FORMULA = "D = relu(alpha*acc + beta*C) + residual"


def plan(text: str = FORMULA, arch: str = "sm80", operation: str = "gemm", **settings: Any) -> Plan:
    if operation == "grouped_gemm":
        return evt.grouped_gemm(text, **settings).plan(arch, "f16", "f16")
    return evt.Program(text, operation, **settings).plan(arch, "f16", "f16")


#: Programs for every template, and for every feature with members, jobs or headers.
PLANS = {
    "gemm-2x": lambda: plan(EVERYTHING),
    "gemm-2x-stock": lambda: plan("D = relu(acc + bias)", route="stock"),
    "gemm-2x-mainloop": lambda: plan("A = relu(s[k]*A); D = acc"),
    "gemm-2x-atomic": lambda: plan("s = sum[n](acc); D = acc", deterministic=False),
    "gemm-3x": lambda: plan(EVERYTHING, "sm90"),
    "gemm-3x-stock": lambda: plan("D = relu(acc + bias)", "sm90", route="stock"),
    "gemm-sm100": lambda: plan(EVERYTHING, "sm100"),
    "gemm-sm120": lambda: plan(FORMULA, "sm120"),
    "grouped": lambda: plan("D = relu(alpha*acc + C + bias)", "sm90", "grouped_gemm"),
    "conv-2x": lambda: plan(FORMULA, operation="conv2d"),
    "conv-2x-stock": lambda: plan("D = relu(acc + bias)", operation="conv2d", route="stock"),
    "conv-2x-wgrad": lambda: plan("D = acc", operation="conv2d_wgrad", kernel_size=3),
    "conv-3x": lambda: plan(FORMULA, "sm90", "conv3d"),
}


@pytest.fixture(params=PLANS)
def made(request: pytest.FixtureRequest) -> Plan:
    return PLANS[request.param]()


# For readers


def test_the_first_comment_says_it_all() -> None:
    text = evt.emit(FORMULA, arch="sm80", name="mine")
    screen = text.partition("\n\n")[0].splitlines()
    assert f"//     {FORMULA}" in screen
    assert any("nvcc -std=c++17" in line and "code=sm_80" in line for line in screen)
    assert any("mine_run(&arguments, sizeof(arguments), stream)" in line for line in screen)
    marks = [re.search(rf"^// {mark}\b", text, re.MULTILINE) for mark in ("CALL THIS", "PASTED", "YOUR EPILOGUE")]
    assert all(any(mark in line for line in screen) for mark in ("CALL THIS", "PASTED", "YOUR EPILOGUE"))
    places = [mark.start() for mark in marks if mark]
    assert len(places) == 3
    assert places == sorted(places)


def test_what_is_pasted_is_marked_and_there_once(made: Plan) -> None:
    text = emitted(made, "mine").text
    _, pasted, own = re.split(r"^// (?:PASTED|YOUR EPILOGUE)\b.*\n", text, flags=re.MULTILINE)
    names = re.findall(r"^// evt/(\w+\.hpp)$", text, re.MULTILINE)
    assert names
    assert len(set(names)) == len(names)
    assert names == re.findall(r"^// evt/(\w+\.hpp)$", pasted, re.MULTILINE)
    assert '#include "evt/' not in text
    assert not re.search(r"EVT_\w+_HPP", text)  # include guards would hide one file's headers from another
    assert "\n\n\n" not in text
    assert "evt::" in own


def test_beside_functors_and_visitors_stands_their_part_of_the_formula() -> None:
    text = """\
        out D: f16[m, n], s: f32[m], E: f16[m, n]
        z = relu(alpha*acc + bias) * C  # \\ and a remark
        s = sum[n](z*z)
        E = 2*z
        D = tanh(z) + 1
    """
    for arch in ("sm80", "sm90", "sm100"):
        own = evt.emit(textwrap.dedent(text), arch=arch).partition("\n// YOUR EPILOGUE\n")[2]
        beside = {
            name: part for part, name in re.findall(r"^// (\d+:\d+ .*)\n(?:struct|using) (\w+)", own, re.MULTILINE)
        }
        assert set(re.findall(r"^struct (Region\d+)", own, re.MULTILINE)) <= beside.keys()
        parts = set(beside.values())
        assert {"3:12 z*z", "5:5 tanh(z) + 1", "2:10 alpha", "2:30 C"} <= parts
        assert {"3:5 sum[n](z*z)", "4:1 E = 2*z"} <= parts
        section = own[own.index("// The visitor.\n") : own.index("using Visitor = ")]
        nodes = set(re.findall(r"^using (?!Tree|Graph|descriptor_of_)(\w+) =", section, re.MULTILINE))
        assert nodes <= {name.removeprefix("descriptor_of_") for name in beside}


def test_work_on_an_operand_has_its_part_of_the_formula_too() -> None:
    text = evt.emit("A = relu(s[k]*A)\nD = acc", arch="sm80")
    assert re.search(r"^// 1:1 A = relu\(s\[k\]\*A\)\nusing WorkOnA = ", text, re.MULTILINE)


def test_a_function_called_is_said_with_its_call() -> None:
    own = evt.emit("def f(x) = x*x + 1\nD = f(acc)", arch="sm80").partition("\n// YOUR EPILOGUE\n")[2]
    assert re.search(r"^// 1:12 x\*x \+ 1, called at 2:5\nstruct Region0", own, re.MULTILINE)


# For linkers


def test_every_name_that_a_linker_sees_is_the_kernels(made: Plan) -> None:
    kernel = emitted(made, "mine")
    text = re.sub(r"//.*", "", kernel.text)
    entries = re.findall(
        r'^extern "C" (?!\{|__attribute__\(\(visibility\("hidden")[^;{]*?\b(\w+)\(', text, re.MULTILINE
    )
    entries += re.findall(r"__global__ void __launch_bounds__\([^;{]*?\)\n(\w+)\(", text)
    called = {word for word in entries if word not in ("__attribute__", "__launch_bounds__", "visibility")}
    assert called
    assert {word for word in called if not word.startswith("mine_")} == set()
    assert set(re.findall(r"EVT_ENTRY\((\w+)\)", text)) - {"kernel"} <= {
        f"mine_{each}" for each in ("kernel", "pad", "initialise", "finish", "table")
    }
    # All of evt's names are in the kernel's namespace, except the ones that must be in another.
    spaces = set(re.findall(r"^namespace ([\w:]+) \{", text, re.MULTILINE))
    assert {each for each in spaces if not re.match(r"mine_impl(::|$)", each)} <= {
        *("convolution", "detail", "epilogue", "fusion", "mainloop", "sm100", "sm90", "threadblock"),  # inside that
        "cute",
    }
    assert not re.search(r"\bevt_(arguments|generated|run|kernel)\b", text)
    for specialised in re.findall(r"^namespace cute \{.*?^\}", text, re.MULTILINE | re.DOTALL):
        assert "::mine_impl::evt::" in specialised


def test_two_names_are_the_only_difference(made: Plan) -> None:
    one, other = emitted(made, "zebra"), emitted(made, "giraffe")
    assert one.text.replace("zebra_", "giraffe_") == other.text
    assert one.header.replace("zebra_", "giraffe_") == other.header


def test_without_a_name_the_text_decides() -> None:
    kernels = [emitted(plan(text)) for text in (FORMULA, FORMULA, f"{FORMULA}  # again", "D = acc")]
    names = [kernel.name for kernel in kernels]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(re.fullmatch(r"evt_[0-9a-f]{12}", name) for name in names)
    assert kernels[0] == kernels[1]
    assert evt.emit(FORMULA, arch="sm80") == kernels[0].text
    assert "\0" not in kernels[0].text + kernels[0].header


@pytest.mark.parametrize("name", ["int", "std", "cute", "evt", "main", "printf", "Kernel", "x", "x" * 60])
def test_names_that_others_have_are_as_good(name: str) -> None:
    text = evt.emit(FORMULA, name=name)
    assert f"namespace {name}_impl {{" in text
    assert f"int {name}_run(" in text


def test_names_in_python() -> None:
    op = evt.gemm("D = acc")
    assert "int mine_run(" in op.emit("sm80", name="mine")
    assert "int mine_run(" in evt.grouped_gemm("D = acc").emit("sm90", name="mine")
    for wrong in ("a b", "", 3):
        with pytest.raises(evt.ArgumentError, match="E0607"):
            op.emit("sm80", name=wrong)


def test_the_users_functions_are_the_kernels_own() -> None:
    with temporarily():
        function("wobble(x)", cxx="x + 1", torch=lambda x: x + 1)
        text = evt.emit("D = wobble(acc)", arch="sm80", name="mine")
    assert "namespace mine_impl::evt::user {" in text
    assert text.index("\n// YOUR EPILOGUE\n") < text.index("namespace mine_impl::evt::user {")


# For callers


def test_every_member_is_in_the_header_with_what_it_is(made: Plan) -> None:
    kernel = emitted(made, "mine")
    struct = re.search(r"^typedef struct mine_arguments \{\n(.*?)^\} mine_arguments;", kernel.header, re.M | re.S)
    assert struct is not None
    assert struct[0] in kernel.text
    members = re.findall(r"^  (void const\*|void\*|double|int64_t) (\w+); +// (.+)$", struct[1], re.MULTILINE)
    assert len(members) == len(struct[1].splitlines())
    assert [name for _, name, _ in members] == [field.name for field in made.fields]
    kinds = {"void const*": "pointer", "void*": "pointer", "double": "number", "int64_t": "size"}
    assert [kinds[type_] for type_, _, _ in members] == [field.kind for field in made.fields]
    outputs = {parameter.name for parameter in made.parameters if parameter.kind == "output"}
    written = {field.name for field in made.fields if field.tensor in outputs and field.kind == "pointer"}
    assert {name for type_, name, _ in members if type_ == "void*"} - {"workspace"} == written


def test_what_members_are_called() -> None:
    text = """\
        in t: f32[m?], a: f32[] = 2.5, g: b1[m, n], v: f32[n], C: f16[l, m, n]
        out D: f16[l, m, n], s: f32[l, m]
        D = where(g, a*acc + t + v, C)
        s = sum[n](acc)
    """
    found = dict(re.findall(r"(\w+); +// (.+)$", emitted(plan(text)).header, re.MULTILINE))
    assert found["A"] == "operand A: f16[m, k], k contiguous; aligned to 16 bytes, strides and k multiples of 8"
    assert found["in_v"] == "input v: f32[n]"
    assert found["in_t"] == "input t: f32[m], or null for value_of_in_t"
    assert found["stride_m_of_in_t"] == "1 where t is a vector, 0 where it is a single value"
    assert found["value_of_in_a"] == "the value of a where in_a is null; the program's default is 2.5"
    assert found["in_g"] == "input g: b1[m, n], 8 columns to a byte, the first in its lowest bit"
    assert found["stride_m_of_in_g"] == "bytes of g from one row (m) to the next"
    assert found["stride_l_of_in_C"] == "elements of C from one batch to the next; 0 where all batches share it"
    assert found["stride_l_of_out_D"] == "elements of D from one batch to the next"
    assert found["workspace"].startswith("device memory")


def test_the_failures_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    header = emitted(plan(), "mine").header
    listed = dict(re.findall(r"mine_failure_(\w+) = (\d+)", header))
    (names,) = re.findall(r"enum class Failure : int \{ (.*?) \};", emitted(plan()).text)
    assert [*listed] == names.split(", ")[1:]
    assert [*listed.values()] == [str(number + 1) for number in range(len(listed))]
    monkeypatch.setattr(library, "_cuda_error", str)
    for name, number in listed.items():
        if name != "arguments":  # evt itself gives no wrong ones
            library.launch_failure(int(number) << 16 | 1)


@pytest.mark.cxx
@pytest.mark.parametrize("language", [["-x", "c", "-std=c99"], ["-x", "c++", "-std=c++11"]], ids=["c", "c++"])
def test_the_header_is_c_and_cxx(made: Plan, tmp_path: Path, language: list[str]) -> None:
    kernel = emitted(made, "mine")
    (tmp_path / "mine.h").write_text(kernel.header)
    source = f"""
#include "mine.h"
#include "mine.h"
typedef char members[sizeof(mine_arguments) == {8 * len(made.fields)} ? 1 : -1];
int run(void) {{
  mine_arguments arguments = {{{"" if "c++" in language else "0"}}};
  int code = mine_run(&arguments, sizeof(members) + mine_workspace(&arguments) > 0 ? sizeof(arguments) : 0, NULL);
  return code == mine_failure_device << 16 && mine_error_string(code) != mine_schema();
}}
"""
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{tmp_path}", *language, "-"]
    done = subprocess.run(["g++", *flags], input=source, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr


def device_pass(text: str) -> str:
    """Return the lines of a text outside of the blocks that the device pass skips."""
    kept, skipped = [], list[bool]()
    for line in text.splitlines():
        word = line.strip()
        if word.startswith("#if"):
            skipped.append(word == "#if !defined(EVT_DEVICE_PASS)")
        elif word.startswith("#endif"):
            skipped.pop()
        elif not any(skipped):
            kept.append(line.partition("//")[0])
    assert not skipped
    return "\n".join(kept)


@pytest.mark.parametrize(
    ("operation", "arch", "settings"),
    [
        ("gemm", "sm80", {}),
        ("gemm", "sm90", {}),
        ("gemm", "sm90", {"route": "gemm-own-3x"}),
        ("gemm", "sm100", {}),
        ("grouped_gemm", "sm90", {}),
        ("conv2d", "sm80", {}),
        ("conv2d", "sm90", {}),
        ("conv2d", "sm90", {"route": "own"}),
    ],
    ids=str,
)
def test_the_device_pass_calls_no_host_function(operation: str, arch: str, settings: dict[str, Any]) -> None:
    """Headers of the launcher are absent in the device pass, so a host function that stays would not compile."""
    program = "D = relu(acc + bias[n])" if operation == "grouped_gemm" else "D = relu(acc + bias[n]); s = sum[m](acc)"
    text = emitted(plan(program, arch, operation, **settings)).text
    hidden = re.findall(r"^inline \S+(?: const&)? (\w+)\(", text, re.MULTILINE)
    rest = device_pass(text)
    defined = set(re.findall(r"^(?:inline|CUTLASS_\w+|EVT_\w+) .*?(\w+)\(|auto const (\w+) = \[", rest, re.MULTILINE))
    defined = {name for names in defined for name in names}
    assert "launch" in hidden
    assert not [name for name in {*hidden} - defined if re.search(rf"(?<![\w.:]){name}\(", rest)]
