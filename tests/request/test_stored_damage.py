"""Stored programs that are damaged: each is refused (E0613), or is a program, for any change."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evt
from evt.errors import EvtError, ProgramError, TargetError
from evt.request import Request, optimised_graph
from evt.request.traced import read_request, traced
from tests.programs.generator import generate
from tests.support.depth import in_depth

SAMPLES = Path(__file__).parents[2] / "samples"
#: Programs with features that random ones lack: geometries, operand types, indices, blocks, defaults of all kinds,
#: groups.
OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: evt.conv2d("D = relu(acc + bias[n])", stride=2, groups=2),
    lambda: evt.conv2d("D = acc + residual", padding=((0, 1), (1, 2)), dilation=(1, 2)),
    lambda: evt.conv1d("D = acc", padding="same"),
    lambda: evt.Program("D = acc", "conv3d_dgrad", stride=2, output_padding=1),
    lambda: evt.Program("D = acc", "conv1d_wgrad", kernel_size=3),
    lambda: evt.grouped_gemm("D = relu(acc + bias)"),
    lambda: evt.linear("gemm(A: e4m3[m, k], B: e4m3[n, k])\nin s: f32[m?] = 1\nout D: bf16\nD = s * acc", relaxed=True),
    lambda: evt.gemm("in index: i32[m]\nin x[index[m], n]\nD = x + acc", numerics="eager"),
    lambda: evt.gemm("out D, s: f32\ndef g(x) = x * 2\nD = g(g(acc)); s = max[m, n](abs(D))", deterministic=False),
    lambda: evt.gemm("D = interleave(even(acc), odd(acc)); top = max[n%32](acc)"),
    lambda: evt.gemm("in seed: i64 = 3\nin offset: i64\nD = dropout(acc, 0.5, seed, offset)"),
)


def states() -> list[dict[str, Any]]:
    """Return the stored forms of 50 programs, as in pickles and as in operators of PyTorch."""
    programs = [make() for make in OTHERS]
    programs += [evt.load(path) for path in sorted(SAMPLES.glob("*.evt"))]
    seed = 0
    while len(programs) < 50:
        with contextlib.suppress(EvtError):
            programs.append(evt.Program(generate(seed).text, "gemm"))
        seed += 1
    found = [program.__getstate__() for program in programs]
    return [each if place % 2 else json.loads(json.dumps(each)) for place, each in enumerate(found)]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths to all parts of a state."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list | tuple) else ()
    return [path, *(inner for key in keys for inner in places(value[key], (*path, key)))]


def shaken(draw: random.Random, text: str) -> str:
    """Return a text with a line, a word, a number or a character dropped, repeated or exchanged."""
    separator = draw.choice(["\n", " ", "%", ""])
    parts = text.split(separator) if separator else list(text)
    at, other = draw.randrange(len(parts)), draw.randrange(len(parts))
    junk = [
        "",
        "%99",
        "%-1",
        "D",
        "nan",
        "[m, n]",
        "k",
        "\x1b[31m",
        "9" * 30,
        "0x1p+99999",
        "store",
        "?",
        "in x: f16[]",
    ]
    parts[at : at + 1] = draw.choice([[], [parts[at]] * 2, [parts[other]], [draw.choice(junk)]])
    return separator.join(parts)


def changed(draw: random.Random, value: Any) -> Any:
    """Return another value in the place of one."""
    options: list[Any] = [None, True, -1, 0, 2**70, 1.5, "", "D", b"x", [], {}, (), [value], {"a": value}, [[1, 2, 3]]]
    if isinstance(value, str) and value:
        return draw.choice([shaken(draw, value)] * 20 + options)
    if isinstance(value, list | tuple) and value:
        at = draw.randrange(len(value))
        less, more = [*value[:at], *value[at + 1 :]], [*value, value[at]]
        return draw.choice([less, more, list(reversed(value)), *options])
    if isinstance(value, int):
        return draw.choice([value + 1, value - 1, -value, *options])
    return draw.choice(options)


def damaged(draw: random.Random, state: dict[str, Any]) -> Any:
    """Return a state with a few random changes, most of them in the graph's text."""
    root: Any = copy.deepcopy(state)
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        paths = places(root)
        path = ("graph",) if draw.random() < 0.5 and ("graph",) in paths else draw.choice(paths)
        if not path:
            return changed(draw, root)
        owner = root
        for key in path[:-1]:
            owner[key] = list(owner[key]) if isinstance(owner[key], tuple) else owner[key]
            owner = owner[key]
        if isinstance(owner, dict) and draw.random() < 0.1:
            del owner[path[-1]]
        else:
            owner[path[-1]] = changed(draw, owner[path[-1]])
    return root


def outcome(load: Callable[[], Request]) -> str:
    """Return the outcome of a load; a loaded program can be used."""
    try:
        request = load()
    except EvtError as error:
        return error.diagnostics[0].code
    program: Any = (evt.GroupedProgram if request.grouped else evt.Program)._of(request)
    assert hash(pickle.loads(pickle.dumps(program))) == hash(program)
    assert repr(program)
    assert str(program) is not None
    with contextlib.suppress(ProgramError, TargetError):
        assert str(optimised_graph(request))
        program.emit("sm80")
    return "loaded"


def load(state: Any) -> Request:
    request = Request.__new__(Request)
    request.__setstate__(state)
    return request


@pytest.mark.parametrize("seed", in_depth(range(8), quick=[0]))
def test_damaged_states(seed: int) -> None:
    draw, found = random.Random(seed), dict[str, int]()
    known = states()
    for _ in range(250):
        state = damaged(draw, draw.choice(known))
        code = outcome(lambda: load(state))  # noqa: B023
        found[code] = found.get(code, 0) + 1
    assert set(found) == {"loaded", "E0613"}
    assert found["E0613"] > found["loaded"] > 5


def test_whole_states() -> None:
    """A state that nothing has changed is the program."""
    for state in states():
        assert outcome(lambda: load(state)) == "loaded"  # noqa: B023


def test_the_state_of_a_program_of_another_kind() -> None:
    one, groups = evt.gemm("D = acc"), evt.grouped_gemm("D = acc")
    for kind, other in ((type(one), groups), (type(groups), one)):
        with pytest.raises(evt.ArgumentError, match="E0613"):
            kind.__new__(kind).__setstate__(other.__getstate__())


def test_damaged_texts_of_operators() -> None:
    draw, text = random.Random(0), traced(evt.gemm("D = relu(alpha*acc + bias)").request).text
    for _ in range(100):
        broken = shaken(draw, text)
        assert outcome(lambda: read_request(broken)) in ("loaded", "E0613")  # noqa: B023
    for broken in ("", "{", "[]", "null", "7b", "zz", "{}", '{"form": []}', "[" * 10**5):
        assert outcome(lambda: read_request(broken)) == "E0613"  # noqa: B023
