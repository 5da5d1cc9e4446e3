"""Tree to graph: names of inputs and outputs, and misspelled names."""

from __future__ import annotations

import pytest

from evt.ir import Input, Output
from evt.ir.dtype import BY_NAME
from evt.ir.lower.words import GREEK
from tests.support.lowering import dag, inputs, marked, mistakes

F32 = BY_NAME["f32"]


# Inputs


def test_what_undeclared_names_are() -> None:
    found = inputs("D = alpha * acc + bias + C + a[] + v[n] + r[m] + T[n, m] + X[l, m, n]")
    assert found == {
        "alpha": (),
        "bias": ("n",),
        "C": ("m", "n"),
        "a": (),
        "v": ("n",),
        "r": ("m",),
        "T": ("n", "m"),
        "X": ("l", "m", "n"),
    }


@pytest.mark.parametrize("name", sorted(GREEK - {"iota"}))
def test_greek_letters_are_scalars(name: str) -> None:
    assert inputs(f"D = acc * {name}") == {name: ()}


def test_only_what_leaves_the_batch_open_is_batchable() -> None:
    lowered = dag("in E[m, n]; D = C + acc + E + F[m, n] + alpha + bias")
    assert {each.name: each.batchable for each in lowered.inputs} == {
        "C": True,
        "E": False,
        "F": False,
        "alpha": False,
        "bias": False,
    }


def test_declarations() -> None:
    lowered = dag("in bias: bf16[m], s: f32 = 0.5, c: f32, t = 2; out D: f16[n, m]; D = (acc + bias) * s + c * t")
    assert lowered.inputs == (
        Input("bias", BY_NAME["bf16"], ("m",)),
        Input("s", F32, (), 0.5),
        Input("c", F32, ()),
        Input("t", None, (), 2.0),
    )
    assert lowered.outputs == (Output("D", BY_NAME["f16"], ("n", "m")),)


def test_a_default_is_what_is_written() -> None:
    assert dag("in s = 0.1; D = acc * s").input["s"].default == 0.1


@pytest.mark.parametrize("modes", ["", "[]", "[n]", "[m]", "[m, n]", "[m?]", "[l, n?]"])
def test_every_input_may_have_a_default(modes: str) -> None:
    (x,) = dag(f"in x: i8{modes} = -3; D = acc + x").inputs
    assert x.default == -3.0
    assert x.flexible == ("?" in modes)


def test_a_vector_or_a_single_value() -> None:
    for text in ("in x: f32[m?]; D = acc * x", "D = acc * x[m?]", "in x[m?]; D = acc * x"):
        (x,) = dag(text).inputs
        assert (x.modes, x.flexible) == (("m",), True)


@pytest.mark.parametrize(
    "text",
    [
        "D = acc + x[m?, n]",
        "D = acc + x[l?, m]",
        "D = acc + x[m?, n?]",
        "D[m?, n] = acc",
        "out D: f16[m, n?]; D = acc",
        "D = acc; s = sum[n?](acc)",
    ],
)
def test_a_mark_out_of_place(text: str) -> None:
    assert {code for code, _ in marked(text)} == {"E0301"}


def test_a_subscript_stands_at_the_declaration_or_at_a_use() -> None:
    for text in (
        "in x: f32[m]; D = acc + x",
        "in x: f32[m]; D = acc + x[m]",
        "D = acc + x[m] + x",
        "D = acc + x + x[m]",
    ):
        assert inputs(text) == {"x": ("m",)}
    for name in ("bias", "alpha"):  # the meaning of their names gives way
        assert inputs(f"in {name}: f32[m]; D = acc + {name}") == {name: ("m",)}
        assert inputs(f"D = acc + {name}[m]") == {name: ("m",)}


@pytest.mark.parametrize("name", ["scale", "C", "bias", "alpha"])
@pytest.mark.parametrize("declared", ["", ": f16", " = 1", ": f32 = 0.5"])
def test_a_declared_input_without_a_subscript_is_a_scalar(name: str, declared: str) -> None:
    assert inputs(f"in {name}{declared}; D = acc * {name}") == {name: ()}
    assert inputs(f"in {name}{declared}; D = acc * {name}[]") == {name: ()}


@pytest.mark.parametrize(
    ("text", "help_text"),
    [
        ("in C: f16; D = acc + C[m, n]", "declare its modes: `in C: f16[m, n]`"),
        ("in s; D = acc * s[m?]", "declare its modes: `in s[m?]`"),
        ("in bias: f32 = 0; D = acc + bias[n] + bias", "declare its modes: `in bias: f32[n]`"),
    ],
)
def test_a_use_gives_no_shape_to_what_is_declared(text: str, help_text: str) -> None:
    (each,) = mistakes(text)
    assert each.code == "E0302"
    assert each.message.endswith("is a scalar, because its declaration has no subscript")
    assert each.help == help_text
    ((label,),) = (each.secondary,)
    assert text[label.span.start : label.span.end] == each.message.split("`")[1]


def test_numbered_greek_letters_are_scalars() -> None:
    assert inputs("D = acc * alpha1 + beta2 + gamma10") == {"alpha1": (), "beta2": (), "gamma10": ()}


def test_inputs_are_in_order_of_first_use() -> None:
    assert list(inputs("in b, a; D = c * acc + a + b")) == ["c", "a", "b"]


# Outputs


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        ("D = acc", ["D"]),
        ("z = acc; D = z; E = z * 2", ["D", "E"]),
        ("D = acc; E = D * 2", ["D", "E"]),
        ("E = acc; D = E * 2", ["D"]),
        ("out E, D; E = acc; D = E * 2", ["E", "D"]),
        ("out E; out D; D = acc; E = D * 2", ["E", "D"]),
    ],
)
def test_outputs(text: str, outputs: list[str]) -> None:
    lowered = dag(text)
    assert [each.name for each in lowered.outputs] == outputs == list(lowered.stores)


def test_a_subscript_at_the_assignment_is_the_outputs() -> None:
    assert dag("D[n, m] = acc").outputs == (Output("D", None, ("n", "m")),)
    assert dag("out D: f16[n, m]; D[n, m] = acc").outputs == (Output("D", BY_NAME["f16"], ("n", "m")),)
    for text in ("out D: f16; D[n, m] = acc", "D[n, m] = acc; out D: f16"):
        assert dag(text).outputs == (Output("D", BY_NAME["f16"], ("n", "m")),)
    assert dag("D[l, n, m] = acc").outputs == (Output("D", None, ("l", "n", "m"), False),)


def test_a_subscript_of_an_intermediate_value_is_checked() -> None:
    assert inputs("z[m, n] = acc * 2; v[n] = bias * 2; D = z + v") == {"bias": ("n",)}
    (each,) = mistakes(text := "z[n] = acc + bias; D = z")
    assert marked(text) == [("E0304", "acc + bias")]
    assert [(text[label.span.start : label.span.end], label.text) for label in each.secondary] == [
        ("z", "has no mode `m`")
    ]


# Suggestions


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        ("D = relu(acc + bais)", "bias"),
        ("D = acc * aplha", "alpha"),
        ("D = acc * lamda", "lambda"),
        ("in residual[m, n]; D = acc + residaul + residual", "residual"),
        ("hidden = acc * 2; D = hiden + hidden", "hidden"),
        ("D = Acc * 2", "acc"),
        ("D = accumulator * 2", "acc"),
    ],
)
def test_a_slip_is_not_an_input(text: str, guess: str) -> None:
    (each,) = mistakes(text)
    assert each.code == "E0202"
    assert f"did you mean `{guess}`?" in each.help


@pytest.mark.parametrize(
    "text",
    [
        "scaled = scale * acc; D = scaled + bias",
        "biased = acc + bias; D = relu(biased)",
        "gated = gate * acc; D = gated",
        "shifted = acc + shift; D = shifted",
        "in row_scale: f32[m]; D = acc * row_scale * col_scale",
        "in scale_a: f32[m]; D = acc * scale_a * scale_b[n]",
        "D = acc + C1 + C2 + C3 + residual1 + residual2",
        "in left[m, n]; D = acc + left + lift[n]",  # a subscript says that it is an input
        "c = acc * 2; D = c + C",
        "base = 2; D = acc * base + bias",
        "in x1_scale, in_a_bias; D = acc * x1_scale * x2_scale + in_a_bias + in_b_bias",
    ],
)
def test_what_only_looks_like_a_slip(text: str) -> None:
    dag(text)


def test_a_declared_name_may_look_like_a_slip() -> None:
    assert list(inputs("in bais: f32[n]; D = acc + bias + bais")) == ["bias", "bais"]
    assert list(inputs("in alpha_, aplha; D = acc * alpha + alpha_ + aplha")) == ["alpha", "alpha_", "aplha"]


def test_mistakes_of_all_kinds_come_together_in_order() -> None:
    text = "in unused: f31\nD = geluu(acc) + bais\nD = clamp(acc)\nE = acc ** acc\n"
    assert [at for _, at in marked(text)] == ["f31", "geluu", "bais", "D", "acc"]
    assert [each.code for each in mistakes(text)] == ["E0303", "E0201", "E0202", "E0401", "E0205"]


def test_mistakes_are_bounded() -> None:
    text = "; ".join(f"z{i} = frobnicate{i}(acc)" for i in range(60)) + "; D = acc"
    found = mistakes(text)
    assert len(found) == 20
    assert "first 20" in found[-1].notes[0]
    assert sum(len(str(each)) for each in found) < 100_000


def test_a_long_cycle_is_told_briefly() -> None:
    text = "; ".join(f"t{i} = t{i + 1}" for i in range(2000)) + "; t2000 = t0 + acc; D = t0"
    (each,) = mistakes(text)
    assert each.code == "E0402"
    assert len(each.message) < 500
