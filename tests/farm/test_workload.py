"""Workload files: programs, shapes and weights, and the mistakes in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from evt.errors import ArgumentError, EvtError, ProgramError
from evt.workload import is_workload, read_workload

SAMPLES = Path(__file__).parents[2] / "samples" / "bench"
GOOD = """
title = "two"
dtype = "bf16"
[[program]]
name = "up"
formula = "D = gelu(acc + bias)"
operation = "linear"
weight = 2
shapes = [{m = [1, 16], n = 512, k = [64, 128]}, {m = 8, n = 8, k = 8, weight = 0.5}]
[[program]]
formula = "D = relu(acc + bias)"
operation = "conv2d"
dtype = "f16"
padding = 1
shapes = [{a = [2, 16, 9, 9], b = [8, 16, 3, 3]}]
"""


def test_samples_are_workloads() -> None:
    found = {path.stem: read_workload(path) for path in SAMPLES.glob("*.toml")}
    assert {"llama8b", "resnet50", "serving"} <= set(found)
    assert all(len({entry.title for entry in each.entries}) == len(each.entries) for each in found.values())


def test_extents_are_combined_and_weights_multiplied(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text(GOOD)
    found = read_workload(path)
    assert found.title == "two"
    assert [(each.shapes, each.weight) for each in found.entries[:5]] == [
        (((1, 64), (512, 64)), 2.0),
        (((1, 128), (512, 128)), 2.0),
        (((16, 64), (512, 64)), 2.0),
        (((16, 128), (512, 128)), 2.0),
        (((8, 8), (8, 8)), 1.0),
    ]
    convolution = found.entries[5]
    assert (convolution.dtype, convolution.title) == ("f16", "D = relu(acc + bias) 2x16x9x9 8x16x3x3")
    assert convolution.sizes["m"] == 2 * 81


def test_programs_of_files_and_batches(tmp_path: Path) -> None:
    (tmp_path / "up.evt").write_text("D = acc + C")
    (tmp_path / "w.toml").write_text('[[program]]\nfile = "up.evt"\nshapes = [{m = 2, n = 3, k = 4, l = [5, 6]}]\n')
    found = read_workload(tmp_path / "w.toml")
    assert (found.title, [each.shapes for each in found.entries]) == (
        "w",
        [((5, 2, 4), (5, 4, 3)), ((6, 2, 4), (6, 4, 3))],
    )


MISTAKES = {
    'title = "x': "is not TOML",
    "": "`program` is missing",
    "program = 3": "`program` is 3",
    "program = []": "it has 0 problems",
    "[[program]]\nshapes = [{m=1,n=1,k=1}]": "needs either `formula` or `file`",
    '[[program]]\nformula = "D = acc"': "`shapes` of program 1 is missing",
    '[[program]]\nformula = "D = acc"\nshapes = [{m=1,n=1}]': "lacks `k`",
    '[[program]]\nformula = "D = acc"\nshapes = [{m=0,n=1,k=1}]': "0 in a shape of program 1 is not a positive",
    '[[program]]\nformula = "D = acc"\nshapes = [{m=true,n=1,k=1}]': "True in a shape",
    '[[program]]\nformula = "D = acc"\nshapes = [{m=[],n=1,k=1}]': r"\[\] in a shape",
    '[[program]]\nformula = "D = acc"\nshapes = [3]': "a shape of program 1 is 3",
    '[[program]]\nformula = "D = acc"\nweight = -1\nshapes = [{m=1,n=1,k=1}]': "the weight -1",
    "[[program]]\nformula = 3\nshapes = []": "`formula` of program 1 is not a text",
    '[[program]]\nformulae = "D = acc"': r"unknown name `formulae`(.|\n)*did you mean `formula`",
    '[[program]]\nformula = "D = acc"\noperation = "conv2d"\nshapes = [{m=1,n=1,k=1}]': "lacks `a`",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=rf"E0109\]: .*wrong.toml: (.|\n)*{MISTAKES[text]}"):
        read_workload(path)


@pytest.mark.parametrize(
    "text",
    [
        '[[program]]\nformula = "D = foo(acc)"\nshapes = [{m=1,n=1,k=1}]',
        '[[program]]\nformula = "D = acc"\noperation = "gem"\nshapes = [{m=1,n=1,k=1}]',
        '[[program]]\nformula = "D = acc"\ndtype = "f17"\nshapes = [{m=1,n=1,k=1}]',
        '[[program]]\nfile = "missing.evt"\nshapes = [{m=1,n=1,k=1}]',
        '[[program]]\nformula = "D = acc"\noperation = "conv2d"\nshapes = [{a=[1,2],b=[1]}]',
        '[[program]]\nformula = "D = acc"\nroute = 3\nshapes = [{m=1,n=1,k=1}]',
    ],
)
def test_mistakes_of_programs_keep_their_codes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(EvtError) as caught:
        read_workload(path)
    assert caught.value.diagnostics[0].code != "E0109"


def test_a_missing_file() -> None:
    with pytest.raises(ProgramError, match="E0105"):
        read_workload("missing.toml")
    assert is_workload("a/b.toml")
    assert not is_workload("D = acc\n.toml")
