"""Drawings: whole, well formed, the same in every run, and no slower than their size."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import combinations
from xml.etree import ElementTree

import pytest

from evt.draw import FORMATS, draw
from evt.draw.box import PALETTE, boxes, edges
from evt.draw.layout import layout
from evt.functions import TABLE
from evt.ir import Acc, Apply, Builder, Dag, Input, Load, Output, Store, lower
from evt.language import parse
from tests.support.drawings import EVERY_KIND, HEADLINE, OPERANDS, READERS, SVG, THREE_OUTPUTS, typed, wanted_edges


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
    assert "url(" not in text
    fills = {
        group.attrib["data-kind"]: group.find(f"{SVG}rect").attrib["fill"]
        for group in root.iter(f"{SVG}g")
        if "data-kind" in group.attrib
    }
    assert set(fills) == set(PALETTE)
    assert len(set(fills.values())) == len(fills)


@pytest.mark.parametrize("program", [THREE_OUTPUTS, EVERY_KIND])
def test_layout_keeps_boxes_apart_and_operands_above(program: str) -> None:
    dag = typed(program)
    plan = layout(dag, [(60 + 10 * (node % 3), 30 + 14 * (node % 2)) for node in range(len(dag))])
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
    plan = layout(dag, [(60, 30)] * len(dag))
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


@pytest.mark.parametrize("nodes", [1500, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [chain, ladder, fan])
@pytest.mark.parametrize("format", FORMATS)
def test_thousands_of_nodes(format: str, make: Callable[[int], Dag], nodes: int) -> None:
    dag = make(nodes)
    assert len(dag) >= nodes
    begin = time.process_time()
    text = draw(dag, format)
    assert time.process_time() - begin < 20 * nodes / 5000  # 5000 take about 1 s; quadratic would be minutes
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
