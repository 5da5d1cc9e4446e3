"""The one walk over a graph: a dialect that writes text shows the arguments of each node."""

from __future__ import annotations

from collections.abc import Sequence

from evt.ir import Const, Input, Interleave, Operand, Output, Pick, Reduce, ReduceBlocks
from evt.ir.dtype import DType
from evt.ir.operand import formula_of
from evt.reference.translate import Argument, Dialect, translate
from tests.programs import typed


class Words(Dialect[str]):
    def accumulator(self, name: str) -> str:
        return "acc"

    def element(self, name: str) -> str:
        return name

    def load(self, source: Input) -> str:
        return source.name

    def constant(self, op: Const) -> str:
        return f"{op.value:g}"

    def apply(self, function: str, operands: Sequence[str], domain: DType) -> str:
        return f"{function}:{domain}({', '.join(operands)})"

    def repeat(self, value: str, width: int) -> str:
        return f"{value}x{width}"

    def cast(self, dtype: DType, x: Argument[str]) -> str:
        return f"{dtype}({x.value})"

    def reduce(self, op: Reduce, x: Argument[str]) -> str:
        return f"{op.kind}[{' '.join(op.modes)}]({x.value}, {'whole' if x.whole else 'not whole'})"

    def fold(self, op: ReduceBlocks, x: Argument[str]) -> str:
        return f"{op.kind}%{op.width}({x.value}, {x.width})"

    def pick(self, op: Pick, x: Argument[str]) -> str:
        return f"pick {op.member}/{op.block}({x.value})"

    def interleave(self, op: Interleave, x: Argument[str], y: Argument[str], domain: DType) -> str:
        return f"interleave:{domain}/{op.block}({x.value}, {y.value})"

    def index(self, mode: str) -> str:
        return f"iota {mode}"

    def extent(self, mode: str) -> str:
        return f"size {mode}"

    def random(self, seed: Argument[str], offset: Argument[str]) -> str:
        return f"rand({seed.value}, {offset.value})"

    def store(self, output: Output, x: Argument[str]) -> str:
        return f"{output.dtype} of {type(x.op).__name__}: {x.value}"

    def feed(self, operand: Operand, x: Argument[str]) -> str:
        return f"{operand.dtype} fed: {x.value}"


def words(text: str, dtype: str = "f16") -> dict[str, str]:
    return translate(typed(text, dtype), Words())


def test_functions_say_what_they_compute_in() -> None:
    assert words("D = relu(acc + bias)") == {"D": "f16 of Apply: relu:f32(add:f32(acc, bias))"}
    assert words("out D: i32[m, n]\nD = acc + 1", "i8") == {"D": "i32 of Apply: add:i32(acc, 1)"}
    assert words("D = bf16(acc)") == {"D": "f16 of Cast: bf16(acc)"}


def test_blocks_are_repeated_where_they_meet_columns() -> None:
    assert words("D = acc / max[n%16](acc)")["D"].endswith("div:f32(acc, max%16(acc, 1)x16)")
    found = words("out D, s: f32[m, n/16]\nD = acc\ns = max[n%16](acc) * max[n%16](bias)")
    assert found["s"].endswith("mul:f32(max%16(acc, 1), max%16(bias, 1))")
    assert words("D = even(acc) * max[n%16](acc)")["D"].endswith("mul:f32(pick 0/1(acc), max%16(acc, 1)x8)")
    assert words("D = acc * max[n%16](scale[m])")["D"].endswith("mul:f32(acc, max%16(scale, 0)x16)")


def test_reductions_know_whether_all_elements_are_there() -> None:
    found = words("out D, s: f32[m], t: f32[m]\nD = acc\ns = sum[n](relu(acc))\nt = sum[n](bias)")
    assert found["s"] == "f32 of Reduce: sum[n](relu:f32(acc), whole)"
    assert found["t"] == "f32 of Reduce: sum[n](bias, not whole)"


def test_every_other_kind() -> None:
    assert words("D = even(acc, 8)")["D"].endswith("pick 0/8(acc)")
    assert "rand(seed, 3)" in words("in seed: i32\nD = acc * rand(seed, 3)")["D"]
    assert "size k" in words("D = acc / size(k)")["D"]
    assert "iota n" in words("D = acc + iota(n)")["D"]


def test_what_is_fed_comes_by_the_name_of_the_operand() -> None:
    found = words("A = relu(A)\nD = acc")
    assert found == {"A": "f16 fed: relu:f32(A)", "D": "f16 of Acc: acc"}


def test_some_of_the_nodes() -> None:
    dag = typed("A = relu(A)\nD = acc", "f16")
    assert list(translate(dag, Words(), [*formula_of(dag, "A"), dag.feeds["A"]])) == ["A"]
