"""Drawings: whole, well formed, the same in every run, safe with any name, linear."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from xml.etree import ElementTree

import pytest

from evt.draw import FORMATS, draw
from evt.draw.box import PALETTE, boxes, decimal, edges
from evt.draw.layout import layout
from evt.functions import TABLE
from evt.ir import (
    Acc,
    Apply,
    Builder,
    Cast,
    Const,
    Dag,
    Input,
    Load,
    Operand,
    Output,
    Store,
    TypedDag,
    infer,
    lower,
)
from evt.ir.dtype import BF16, F16
from evt.language import parse

OPERANDS = (Operand("A", F16, ("m", "k")), Operand("B", F16, ("k", "n")))
HEADLINE = "D = relu(alpha*acc + beta*C) + residual"
THREE_OUTPUTS = """
in alpha: f32 = 1.0, s[m], bias: f16[n]
out D, aux: f32[m, n], mask: f16[n, m]
z = s*(alpha*acc) + bias
t = tanh(z)
aux = z
mask = clamp(t - z, 0.1, 6)
D = f16(z*z) * t / (C + gamma) + residual
"""
#: Every kind of node.
EVERY_KIND = """
in s: f32[m?], bias: f16[n] = 0, gate: b1[m, n]
out D: f16[m, n/2], full: f32[m, n], scale: f32[m, n/32], seen: b1[m, n], total: f32[m], amax: f32
z = where(gate && iota(n) <= iota(m), s * acc + bias, -0.5)
D = silu(even(z)) * bf16(odd(z))
scale = max[n%32](abs(z))
full = dropout(z, 0.1, seed, offset) / scale
seen = z > 0
total = sum[n](z)
amax = max[m, n](abs(z))
"""
SVG = "{http://www.w3.org/2000/svg}"
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


def typed(text: str) -> TypedDag:
    return infer(lower(parse(text)), OPERANDS)


def named(name: str) -> TypedDag:
    """``name = acc + name``, whatever the name."""
    builder = Builder()
    total = builder.add(Apply("add"), builder.add(Acc()), builder.add(Load(name)))
    builder.add(Store(name), total)
    dag = builder.finish("gemm", OPERANDS, (Input(name, None, ("m", "n")),), (Output(name, None, ("m", "n")),))
    return infer(dag)


def wanted_edges(dag: Dag) -> Counter[tuple[int, int]]:
    return Counter((source, target) for source, target, _ in dag.graph.edges(keys=True))


# Readers of the four formats: each returns the labels by node and how often each edge is drawn, and fails on
# anything it does not know.


def read_svg(text: str) -> tuple[dict[int, str], Counter[tuple[int, int]]]:
    root = ElementTree.fromstring(text)
    labels: dict[int, str] = {}
    for group in root.iter(f"{SVG}g"):
        if "data-node" in group.attrib:
            node = int(group.attrib["data-node"])
            assert node not in labels
            labels[node] = group.findall(f"{SVG}text")[-1].text or ""
    found: Counter[tuple[int, int]] = Counter()
    for path in root.iter(f"{SVG}path"):
        if "data-edge" in path.attrib:
            assert path.attrib["marker-end"] == "url(#evt-arrow)"
            source, target, _ = map(int, path.attrib["data-edge"].split())
            found[source, target] += 1
    return labels, found


def read_mermaid(text: str) -> tuple[dict[int, str], Counter[tuple[int, int]]]:
    first, *lines = text.splitlines()
    assert first == "flowchart TD"
    labels: dict[int, str] = {}
    found: Counter[tuple[int, int]] = Counter()
    classes: set[str] = set()
    for line in lines:
        if node := re.fullmatch(r'    n(\d+)[\[({>\\/]{1,2}"([^"]*)"[\])}/]{1,2}:::(\w+)', line):
            assert int(node[1]) not in labels
            labels[int(node[1])] = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), node[2])
            classes.add(node[3])
        elif edge := re.fullmatch(r'    n(\d+) -->(?:\|"\w+"\|)? n(\d+)', line):
            found[int(edge[1]), int(edge[2])] += 1
        else:
            style = re.fullmatch(r"    classDef (\w+) fill:#\w{6},stroke:#\w{6},color:#\w{6}", line)
            assert style is not None, line
            classes.discard(style[1])
    assert not classes, "a class without a style"
    return labels, found


QUOTED = r'"((?:[^"\\\n]|\\.)*)"'


def read_dot(text: str) -> tuple[dict[int, str], Counter[tuple[int, int]]]:
    attributes = r'\[(?:\w+=(?:"(?:[^"\\\n]|\\.)*"|[\w.]+)(?:, )?)+\]'
    first, *lines, last = text.splitlines()
    assert (first, last) == ("digraph evt {", "}")
    labels: dict[int, str] = {}
    found: Counter[tuple[int, int]] = Counter()
    for line in lines:
        if edge := re.fullmatch(rf"  n(\d+) -> n(\d+)(?: {attributes})?;", line):
            found[int(edge[1]), int(edge[2])] += 1
        elif node := re.fullmatch(rf"  n(\d+) {attributes};", line):
            assert int(node[1]) not in labels
            label = re.search(rf"label={QUOTED}", line)
            assert label is not None
            labels[int(node[1])] = html.unescape(re.sub(r"\\(.)", r"\1", label[1]))
        else:
            assert re.fullmatch(rf"  (?:(?:graph|node|edge) {attributes};|{{ rank=\w+; (?:n\d+; ?)+}})", line), line
    return labels, found


READERS = {"svg": read_svg, "mermaid": read_mermaid, "dot": read_dot}


def test_formats() -> None:
    assert FORMATS == ("text", "mermaid", "dot", "svg")
    with pytest.raises(ValueError, match="no drawing format 'png'; there are text, mermaid, dot, svg"):
        draw(typed(HEADLINE), "png")


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("program", [HEADLINE, THREE_OUTPUTS, EVERY_KIND, "D = acc * acc", "D = acc"])
def test_every_node_and_edge_is_drawn_once(format: str, program: str) -> None:
    for dag in (lower(parse(program)), typed(program)):
        labels, found = READERS[format](draw(dag, format))
        assert labels == {node: box.label for node, box in enumerate(boxes(dag))}
        assert found == wanted_edges(dag)


@pytest.mark.parametrize("format", READERS)
def test_a_square_has_two_edges(format: str) -> None:
    _, found = READERS[format](draw(typed("z = acc + C; D = z * z"), format))
    assert sorted(found.values()) == [1, 1, 1, 2]


def test_the_two_edges_of_a_square_are_drawn_apart() -> None:
    text = draw(typed("D = acc * acc"), "svg")
    ways = [path.attrib["d"] for path in ElementTree.fromstring(text).iter(f"{SVG}path") if "data-edge" in path.attrib]
    assert len(set(ways)) == len(ways) == 3


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


def test_svg_stands_alone_on_paper_of_its_own() -> None:
    text = draw(typed(EVERY_KIND), "svg")
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"].split() == ["0", "0", root.attrib["width"], root.attrib["height"]]
    paper = root.find(f"{SVG}rect")
    assert paper is not None
    assert paper.attrib["fill"] == "#ffffff"
    assert float(paper.attrib["width"]) == pytest.approx(width - 1)
    assert float(paper.attrib["height"]) == pytest.approx(height - 1)
    assert "href" not in text
    assert "url(" not in text.replace("url(#evt-arrow)", "")
    fills = {
        group.attrib["data-kind"]: group.find(f"{SVG}rect").attrib["fill"]  # type: ignore[union-attr]
        for group in root.iter(f"{SVG}g")
        if "data-kind" in group.attrib
    }
    assert set(fills) == set(PALETTE)
    assert len(set(fills.values())) == len(fills)


@pytest.mark.parametrize("program", [THREE_OUTPUTS, EVERY_KIND])
def test_layout_keeps_boxes_apart_and_operands_above(program: str) -> None:
    dag = typed(program)
    plan = layout(dag, [(60.0 + 10 * (node % 3), 30.0 + 14 * (node % 2)) for node in range(len(dag))])
    for a, b in combinations([*plan.nodes, *(lane for lanes in plan.lanes.values() for lane in lanes)], 2):
        apart = abs(a.x - b.x) >= (a.width + b.width) / 2 + 10
        assert apart or a.bottom < b.top or b.bottom < a.top
    for operand, user, _ in edges(dag):
        assert plan.nodes[operand].bottom < plan.nodes[user].top
    for place in plan.nodes:
        assert -0.01 <= place.x - place.width / 2 <= place.x + place.width / 2 <= plan.width + 0.01
        assert 0 <= place.top < place.bottom <= plan.height


def test_a_tree_has_no_crossings() -> None:
    dag = typed("D = (acc + a) * (b - c) + (e / f) * relu(g + h)")
    plan = layout(dag, [(60.0, 30.0)] * len(dag))
    for (a, b, _), (c, d, _) in combinations(edges(dag), 2):
        if plan.nodes[a].top == plan.nodes[c].top and plan.nodes[b].top == plan.nodes[d].top:
            assert (plan.nodes[a].x - plan.nodes[c].x) * (plan.nodes[b].x - plan.nodes[d].x) >= 0


SCRIPT = f"""
import sys
from evt.draw import FORMATS, draw
from evt.ir import Operand, infer, lower
from evt.ir.dtype import F16
from evt.language import parse
dag = infer(lower(parse({EVERY_KIND!r})), (Operand("A", F16, ("m", "k")), Operand("B", F16, ("k", "n"))))
sys.stdout.buffer.write("".join(draw(dag, format) for format in FORMATS).encode())
assert "torch" not in sys.modules
"""


def test_the_same_bytes_in_every_run_and_no_torch() -> None:
    expected = "".join(draw(typed(EVERY_KIND), format) for format in FORMATS).encode()
    for seed in ("0", "1", "2024"):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True,
            capture_output=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        assert run.stdout == expected


def chain(length: int) -> Dag:
    """Deep, and the accumulator is read everywhere."""
    builder = Builder()
    value = acc = builder.add(Acc())
    for step in range(length):
        value = builder.add(Apply("mul" if step % 2 else "sub"), value, acc)
    builder.add(Store("D"), value)
    return builder.finish("gemm", OPERANDS, (), (Output("D", None, ("m", "n")),))


def ladder(length: int) -> Dag:
    """All values of the first half live until the second half takes them, last first."""
    builder = Builder()
    values = [builder.add(Acc())]
    for step in range(length // 2):
        values.append(builder.add(Apply("relu" if step % 2 else "exp"), values[-1]))
    value = values.pop()
    while values:
        value = builder.add(Apply("sub"), value, values.pop())
    builder.add(Store("D"), value)
    return builder.finish("gemm", OPERANDS, (), (Output("D", None, ("m", "n")),))


def fan(length: int) -> Dag:
    """Wide: a balanced sum of inputs."""
    builder = Builder()
    inputs = tuple(Input(f"x{i}", None, ("m", "n")) for i in range(length // 2))
    values = [builder.add(Acc()), *(builder.add(Load(value.name)) for value in inputs)]
    while len(values) > 1:
        pairs = [values[i : i + 2] for i in range(0, len(values), 2)]
        values = [builder.add(Apply("add"), *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    builder.add(Store("D"), values[0])
    return builder.finish("gemm", OPERANDS, inputs, (Output("D", None, ("m", "n")),))


@pytest.mark.parametrize("make", [chain, ladder, fan])
@pytest.mark.parametrize("format", FORMATS)
def test_five_thousand_nodes(format: str, make: Callable[[int], Dag]) -> None:
    dag = make(5000)
    assert len(dag) >= 5000
    begin = time.process_time()
    text = draw(dag, format)
    assert time.process_time() - begin < 20  # about 1 s; quadratic would be minutes
    assert len(text) < 1000 * len(dag)
    if format in READERS:
        labels, found = READERS[format](text)
        assert len(labels) == len(dag)
        assert found == wanted_edges(dag)


def test_every_function_can_be_drawn() -> None:
    for function, row in TABLE.items():
        builder = Builder()
        acc = builder.add(Acc())
        builder.add(Store("D"), builder.add(Apply(function), *[acc] * len(row.parameters)))
        dag = builder.finish("gemm", OPERANDS, (), (Output("D", None, ("m", "n")),))
        for format, read in READERS.items():
            assert read(draw(dag, format))[1] == wanted_edges(dag)
