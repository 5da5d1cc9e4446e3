"""Drawings: the labels of nodes and edges, in text, for any names."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from evt.draw import FORMATS, draw
from evt.draw.box import PALETTE, boxes, decimal
from evt.ir import Acc, Apply, Builder, Cast, Const, Input, Load, Output, Store, TypedDag, infer, lower
from evt.ir.dtype import BF16
from evt.language import parse
from tests.support.drawings import EVERY_KIND, HEADLINE, OPERANDS, READERS, SVG, typed, wanted_edges

HOSTILE = (
    "</text><script>alert(1)</script>",
    "a\"b'c`d",
    "]]> &lt; &amp; #quot; #35;",
    'back\\slash\\"',
    "line\nbreak\r\ttab\0nul\x1b[31m",
    "rtl\u202eedir\ud800 \uffff",
    "**bold** __init__ _x_",
    "end; subgraph %% --> |x| {{y}} ((z))",
    "名前 α",
    "x" * 10_000,
)


def named(name: str) -> TypedDag:
    """``name = acc + name``, for any name."""
    builder = Builder()
    total = builder.add(Apply("add"), builder.add(Acc()), builder.add(Load(name)))
    builder.add(Store(name), total)
    dag = builder.finish("gemm", OPERANDS, (Input(name, None, ("m", "n")),), (Output(name, None, ("m", "n")),))
    return infer(dag)


def test_labels() -> None:
    assert [box.label for box in boxes(typed("in alpha: f32 = 1; D = bf16(alpha*acc - 0.1*C)"))] == [
        "alpha: f32 = 1",
        "acc: f32[m, n]",
        "mul",
        "0.1",
        "C: f16[m, n]",
        "mul",
        "sub",
        "cast bf16",
        "D: f16[m, n]",
    ]
    untyped = [box.label for box in boxes(lower(parse("in s: f32[m]; D = s*acc + bias + gamma")))]
    assert untyped == ["s: f32[m]", "acc", "mul", "bias[n]", "add", "gamma", "add", "D[m, n]"]


def test_labels_of_every_kind() -> None:
    dag = typed(EVERY_KIND)
    drawn = boxes(dag)
    labels = {box.label: box for box in drawn}
    assert {box.kind for box in drawn} == set(PALETTE)
    for label, type in {
        "iota(n)": "i32[n]",
        "even": "f32[m, n/2]",
        "odd": "f32[m, n/2]",
        "max[n%32]": "f32[m, n/32]",
        "rand": "f32[l, m, n]",
        "sum[n]": "f32[m]",
        "max[m, n]": "f32",
        "logical_and": "b1[m, n]",
    }.items():
        assert labels[label].type == type
    assert labels["rand"].ports == ("seed", "offset")
    assert labels["where"].ports == ("condition", "x", "y")
    declared = {"s: f32[m?]", "bias: f16[n] = 0", "gate: b1[m, n]", "seed: i32", "D: f16[m, n/2]"}
    assert declared | {"scale: f32[m, n/32]", "seen: b1[m, n]", "total: f32[m]", "amax: f32"} <= set(labels)


def test_pairs_far_apart_say_so() -> None:
    labels = [box.label for box in boxes(typed("D = even(acc, 32) * odd(acc, 32)"))]
    assert labels == ["acc: f32[m, n]", "even, 32 apart", "odd, 32 apart", "mul", "D: f16[m, n/2]"]
    text = draw(typed("D = even(acc, 32) * odd(acc, 32)"), "text")
    assert "@" not in text
    assert re.search("├─ even, 32 apart +f32\\[m, n/2\\]", text)


def test_a_transposed_output_keeps_its_own_order() -> None:
    assert boxes(typed("out D: f16[n, m]; D = acc"))[-1].label == "D: f16[n, m]"


def test_operands_are_named_where_their_order_matters() -> None:
    ports = {box.name: box.ports for box in boxes(typed("D = clamp(acc - C, 0, 6) * relu(acc + C)"))}
    assert ports["sub"] == ("x", "y")
    assert ports["clamp"] == ("x", "min", "max")
    assert ports["mul"] == ports["add"] == ports["relu"] == ()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1, "0.1"),
        (2.0, "2"),
        (-0.0, "-0"),
        (1 / 3, "0.3333333333333333"),
        (0.3333333432674408, "0.33333334"),
        (0.10000000149011612, "0.1"),
        (0.7978845608, "0.7978845608"),
        (3.4028234663852886e38, "3.4028235e+38"),
        (1e300, "1e+300"),
        (1e-45, "1e-45"),
        (16777216.0, "16777216"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
    ],
)
def test_constants_are_shortest_decimals(value: float, text: str) -> None:
    assert decimal(Const.of(value)) == text


def test_text() -> None:
    assert draw(typed(HEADLINE), "text") == (
        "gemm(A: f16[m, k], B: f16[k, n])\n"
        "\n"
        "D                     f16[m, n]\n"
        "└─ add                f32[m, n]\n"
        "   ├─ relu            f32[m, n]\n"
        "   │  └─ add          f32[m, n]\n"
        "   │     ├─ mul       f32[m, n]\n"
        "   │     │  ├─ alpha  f32\n"
        "   │     │  └─ acc    f32[m, n]\n"
        "   │     └─ mul       f32[m, n]\n"
        "   │        ├─ beta   f32\n"
        "   │        └─ C      f16[m, n]\n"
        "   └─ residual        f16[m, n]\n"
    )


def test_text_draws_a_shared_value_once_under_its_id() -> None:
    assert draw(lower(parse("z = acc + C; D = z * z; aux = exp(z)")), "text") == (
        "gemm\n"
        "\n"
        "%2 = add\n"
        "├─ acc\n"
        "└─ C      [m, n]\n"
        "\n"
        "D         [m, n]\n"
        "└─ mul\n"
        "   ├─ %2\n"
        "   └─ %2\n"
        "\n"
        "aux       [m, n]\n"
        "└─ exp\n"
        "   └─ %2\n"
    )


def test_text_names_what_is_nested_too_deep() -> None:
    builder = Builder()
    value = builder.add(Acc())
    for _ in range(1000):
        value = builder.add(Apply("relu"), value)
        value = builder.add(Cast(BF16), value)
    builder.add(Store("D"), value)
    text = draw(builder.finish("gemm", (), (), (Output("D", None, ("m", "n")),)), "text")
    assert text.count("relu") == text.count("cast") == 1000
    assert max(map(len, text.splitlines())) < 80
    defined = re.findall(r"^(%\d+) =", text, re.MULTILINE)
    assert all(len(re.findall(rf"{name}\b", text)) == 2 for name in defined)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("format", FORMATS)
def test_any_name_is_safe(format: str, name: str) -> None:
    dag = named(name)
    text = draw(dag, format)
    assert "<script" not in text or format in ("text", "dot")
    assert all(c.isprintable() or c == "\n" for c in text)
    text.encode()
    if format == "text":
        assert len(text.splitlines()) == 6
        return
    labels, found = READERS[format](text)
    assert found == wanted_edges(dag)
    for node, box in enumerate(boxes(dag)):
        if format == "svg" and len(box.label) > 48:
            assert labels[node] == box.label[:47] + "…"
        else:
            assert labels[node] == box.label


def test_mermaid_writes_what_it_or_markdown_would_read_as_codes() -> None:
    text = draw(named('__a_b_ #"`*'), "mermaid")
    assert '"#95;#95;a_b#95; #35;#34;#96;#42;: f16[m, n]"' in text


def test_tooltips_of_an_svg_say_where_values_come_from() -> None:
    root = ElementTree.fromstring(draw(typed("D = relu(acc + bias)"), "svg"))
    tooltips = [group.findtext(f"{SVG}title") for group in root.iter(f"{SVG}g") if "data-node" in group.attrib]
    assert tooltips[2] == "%2 = add %0 %1 : f32[m, n]\n1:10 acc + bias"
    root = ElementTree.fromstring(draw(named("C"), "svg"))
    tooltips = [group.findtext(f"{SVG}title") for group in root.iter(f"{SVG}g") if "data-node" in group.attrib]
    assert tooltips[0] == "%0 = acc : f32[m, n]"
