"""Large programs of every shape: each stage takes time in proportion to them, and little stack."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch

import evt
from evt.draw import FORMATS, draw
from evt.errors import ArgumentError, EvtError, ProgramError, TargetError
from evt.ir import format_dag, parse_dag
from evt.ir.formula import formula
from evt.language import format_tree, parse, tree
from evt.language.tree import MOST_OPERATIONS
from evt.optimise import optimise, round_as_eager
from evt.request import optimised_graph, typed_graph
from tests.programs.large import SHAPES
from tests.support.depth import in_depth
from tests.support.work import count_calls, little_stack

#: Shapes that are tried always; the others, and larger programs, in depth.
QUICK = ("statements", "derivatives")


def reference(op: evt.Program) -> object:
    """Evaluate a program on small tensors."""
    extents = {"m": 2, "n": 8, "k": 8}
    types = {"f16": torch.float16, "i32": torch.int32}
    tensors = {
        each.name: torch.zeros(
            [extents.get(mode, 2) for mode in each.modes], dtype=types.get(str(each.dtype), torch.float32)
        )
        for each in typed_graph(op.request).inputs
    }
    return op.reference(torch.ones(2, 8, dtype=torch.float16), torch.ones(8, 8, dtype=torch.float16), **tensors)


def stages(text: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the operations on a program, by name."""
    yield "parse", lambda: parse(text)
    yield "tree", lambda: format_tree(parse(text))
    yield "program", lambda: evt.gemm(text)
    try:
        op = evt.gemm(text)
    except EvtError:
        return
    dag, typed, optimised = op.request.dag, typed_graph(op.request), optimised_graph(op.request)
    yield "repr", lambda: (repr(op), str(op), hash(op))
    yield "text", lambda: parse_dag(format_dag(dag, origins=True))
    yield "formula", lambda: formula(dag)
    yield "optimise", lambda: optimise(typed)
    yield "relaxed", lambda: optimise(typed, relaxed=True)
    yield "eager", lambda: round_as_eager(typed)
    yield from ((f"draw {form}", lambda form=form: draw(optimised, form)) for form in FORMATS)
    yield "pickle", lambda: pickle.loads(pickle.dumps(op))
    yield from ((arch, lambda arch=arch: op.emit(arch)) for arch in ("sm80", "sm90", "sm100"))
    yield "own kernel", lambda: evt.gemm(text, route="gemm-own-3x").emit("sm90")
    yield "convolution", lambda: evt.conv2d(text).emit("sm90")
    yield "explain", lambda: op.explain("sm90").details()
    yield "gradient", lambda: str(op.gradient())
    yield "reference", lambda: reference(op)


def done(run: Callable[[], object]) -> None:
    """Run a stage, which may refuse the program."""
    with suppress(ProgramError, TargetError, ArgumentError):
        run()


@pytest.mark.parametrize("name", in_depth(SHAPES, QUICK))
def test_little_stack(name: str) -> None:
    """Functions of the program's own nest up to 64 levels, a few frames each; nothing else nests."""
    for _, run in stages(SHAPES[name](2)):
        done(run)  # imports at first use
    for stage, run in stages(SHAPES[name](400)):
        with little_stack(350):
            try:
                done(run)
            except RecursionError:
                pytest.fail(f"{stage} recurses")


@pytest.mark.parametrize("size", in_depth([40, 100], quick=[40]))
@pytest.mark.parametrize("name", in_depth(SHAPES, QUICK))
def test_work_is_linear(name: str, size: int) -> None:
    """Twice the program is at most 2.3 times the work; a small picture may have all the lanes of a large one."""
    for _, run in stages(SHAPES[name](20)):
        done(run)  # values that are computed once
    works: list[dict[str, int]] = []
    for count in (size, 2 * size):
        works.append({})
        for stage, run in ((stage, run) for stage, run in stages(SHAPES[name](count)) if stage != "draw svg"):
            with count_calls() as calls:
                done(run)
            works[-1][stage] = calls[0]
    assert {stage: work for stage, work in works[1].items() if work > 2.3 * works[0].get(stage, work)} == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_thousands_of_operations(name: str) -> None:
    for _, run in stages(SHAPES[name](3000)):
        done(run)


@pytest.mark.parametrize("name", ["sum", "statements", "outputs", "calls"])
def test_too_many_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_OPERATIONS", 500)
    with pytest.raises(evt.ProgramError, match=r"E0413(.|\n)*more than 500 operations"):
        evt.gemm(SHAPES[name](510 if name == "calls" else 600))


def test_the_limit_of_operations() -> None:
    with pytest.raises(evt.ProgramError, match=f"E0413(.|\n)*more than {MOST_OPERATIONS} operations"):
        evt.gemm(SHAPES["sum of one"](MOST_OPERATIONS + 1))


def test_functions_that_double() -> None:
    with pytest.raises(evt.ProgramError, match="E0413"):
        evt.gemm(SHAPES["doubling"](20))
