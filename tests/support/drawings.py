"""Graphs to draw, and readers of the drawings."""

from __future__ import annotations

import html
import re
from collections import Counter
from xml.etree import ElementTree

from evt.ir import Dag, Operand, TypedDag, infer, lower
from evt.ir.dtype import F16
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


def typed(text: str) -> TypedDag:
    return infer(lower(parse(text)), OPERANDS)


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
