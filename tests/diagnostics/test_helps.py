"""Helps that can be typed: each is applied where it is given, and the program or the call then works."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import evt
from evt.diagnostics import Diagnostic
from evt.errors import EvtError
from tests.programs import typed

#: Programs whose mistake is about indices, coordinates, types and modes: a careless help would change their meaning.
HOSTILE = (
    *(f"{name} = where(iota({x}) <= iota({y}), {name}, 0); D = acc" for name, x, y in ("Akm", "Amk", "Bkn", "Bnk")),
    "A = A*iota(k); D = acc",
    "in idx: i32[n]; D[m, idx] = acc",
    "in idx: i32[m]; D[idx, n] = acc",
    "in idx: i32[n]; out D[m, idx]; D = acc",
    "in idx: i32[n]; D = acc + x[m, idx]",
    "in idx: i32[m]; D = acc + x[l, idx, n]",
    "in idx: i32[m]; D = acc + x[idx]",
    "in idx: i32[m], x: f16[m, n]; D = acc + x[idx[m], n]",
    "in idx: i32[n], x: f16[m, n]; D = acc + x[m, idx[n]]",
    "in idx: i32[m], s: f32[m]; D = acc*s[idx[m]]",
    "in idx: i32[m], x; D = acc + x[idx[m], n]",
    "in idx: i32[n], s: f32; D = acc*s[idx[n]]",
    "in s: f32[m/p, n]; D = acc*s",
    *(f"D = acc*s[{modes}]" for modes in ("m/p, n", "m/p", "n, m/p", "m/16", "m%16, n")),
    "D = acc[n, m]",
    "z = relu(acc); D = z[n, m]",
    "D = acc.T",
    "in s: ue4m3[m]; D = acc*s",
    "in s: ue8m0[m]; D = acc*s",
    "D = ue4m3(acc)",
    "gemm(A: ue4m3[m, k], B: ue4m3[k, n]); D = acc",
    "in x: u16[m]; D = acc*x",
    "in s: f32[m?, n]; D = acc*s[m]",
    "D = argmax(acc)",
    "D = mean(acc)",
    "D = acc*size[n](acc)",
    "D = acc + iota(2)",
    "D = acc*size(q)",
    "out D[m]; D = acc",
)


def found(text: str) -> list[Diagnostic]:
    try:
        typed(text)
    except EvtError as error:
        return list(error.diagnostics)
    return []


def applied(text: str, each: Diagnostic) -> Iterator[str]:
    """Yield the program with a help's code typed in the places that the help may be about."""
    assert each.span is not None
    codes = re.findall(r"`([^`]+)`", each.help)
    start, end = each.span.start, each.span.end
    if declared := [code for code in codes if re.match("in |out ", code)]:
        written = next((code for code in codes if code not in declared), None)
        bare = text[:start] + text[end:]
        yield from (f"{code}; {bare}" for code in declared)
        if written is not None:
            yield f"{declared[0]}; {text[:start]}{written}{text[end:]}"
        yield f"{declared[0]}; {text}"
        yield f"{declared[0]}; {re.sub(r'in [^;]*; ', '', text, count=1)}"
        yield f"{declared[0]}; {text.replace('.T', '')}"
        return
    for code in codes:
        yield text[:start] + code + text[end:]
        if code.startswith("["):
            first, last = text.rindex("[", 0, start + 1), text.index("]", end - 1) + 1
            yield text[:first] + code + text[last:]
        name = code.partition("[")[0]
        yield re.sub(rf"\b{name}\[[^]]*\]", code, text, count=1)
        yield re.sub(rf"\b{name}(?![\w[])", code, text[:start], count=1) + text[start:]
        yield re.sub(rf"\b{name}(?![\w[])", code, text)
        if "=" in code:
            yield "; ".join(code if part.startswith("D ") else part for part in text.split("; "))


def counted(diagnostics: list[Diagnostic]) -> Counter[tuple[str, str]]:
    return Counter((each.code, each.message) for each in diagnostics)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_help_leads_to_a_program_without_the_mistake(text: str) -> None:
    mistakes = found(text)
    assert mistakes
    for each in mistakes:
        assert re.search(r"\b(write|declare|declare its modes:|store the transpose:) `", each.help), each.help
        others = counted(mistakes) - counted([each])
        left = [counted(found(changed)) - others for changed in applied(text, each)]
        assert any(not more for more in left), f"{each.code}: {each.help}"


HALF = torch.float16
#: The shape of a buffer, its memory's shape and the permutation of its dimensions; and the program.
BUFFERS = [
    ("D = acc", (2, 2, 4, 8), (0, 2, 1, 3)),
    ("D = acc", (4, 2, 16), (1, 0, 2)),
    ("D = acc", (2, 4, 16), (0, 1, 2)),
    ("D = acc", (8, 2, 8), (0, 1, 2)),
    ("D = acc", (1, 16, 8), (0, 2, 1)),
    ("D = even(acc)", (8, 8), (1, 0)),
    ("D = even(acc)", (8, 2, 4), (1, 0, 2)),
    ("D = max[n%8](acc)", (2, 8), (1, 0)),
    ("D = sum[n](acc)", (2, 4), (1, 0)),
    ("out D: f32[m, n]; D = acc", (8, 16), (0, 1)),
]


@pytest.mark.parametrize(("text", "shape", "order"), BUFFERS)
def test_no_help_loses_the_result_that_a_buffer_is_for(
    text: str, shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """The help's own statements, run as they are written, leave the result in the caller's memory."""
    op, a, b = evt.gemm(text), torch.randn(8, 8, dtype=HALF), torch.randn(8, 16, dtype=HALF)
    expected = op(a, b)
    wanted = HALF if text.startswith("out") or expected.dtype == HALF else expected.dtype
    memory = torch.full(shape, 7, dtype=wanted)
    names: dict[str, Any] = {"D": memory.permute(order), "op": lambda *_, **out: op(a, b, **out), "torch": torch}
    with pytest.raises(evt.ArgumentError) as caught:
        op(a, b, out=names["D"])
    (each,) = caught.value.diagnostics
    if passed := re.search(r"pass (D\.[^;]+)$", each.help):
        op(a, b, out=eval(passed[1], names))
    else:
        exec(re.search(r"made = .*", each.help)[0].partition(", or ")[0], names)  # type: ignore[index]
    assert torch.equal(memory.permute(order).reshape(expected.shape), expected.to(wanted))
