"""Measurements, without a GPU: the store on disk, and the key of a measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evt.diagnostics import Source
from evt.errors import BuildError
from evt.measured import Store, Timing
from evt.program import Program
from tests.support.measurements import CALLS, FORMULA, GPU, half, key_of, key_of_call, last, measurement

pytestmark = pytest.mark.usefixtures("own_cache")

# The store


def test_nothing_is_created_before_it_is_needed(own_cache: Path) -> None:
    store = Store()
    assert (len(store), store.exists(), store.find("key"), store.clear()) == (0, False, (), 0)
    assert not own_cache.exists()


def test_round_trip(own_cache: Path) -> None:
    store, first, other = Store(), measurement(), measurement(("stock-3x", "c", 1.5), gpu="NVIDIA H100")
    store.add("one", first)
    store.add("one", other)
    store.add("two", replace(first, sizes={"m": 1}))
    again = Store()
    assert again.find("one") == (first, other)
    assert len(again) == 3
    newer = measurement(("evt-2x", "c", 0.125))
    again.add("one", newer)
    assert {each.gpu: each for each in store.find("one")} == {GPU: newer, other.gpu: other}
    assert sorted(os.listdir(own_cache)) == ["tuning.json"]
    assert json.loads((own_cache / "tuning.json").read_text())["version"] == 1
    assert store.clear() == 3
    assert (len(store), os.listdir(own_cache)) == (0, [])


def test_the_longest_unmeasured_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.measured.store.MOST", 3)
    store = Store()
    for key in ("a", "b", "c", "a", "d"):
        store.add(key, measurement())
    assert [bool(store.find(key)) for key in "abcd"] == [True, False, True, True]


GOOD = json.dumps(measurement().to_json())
BROKEN = {
    "empty": "",
    "half": GOOD[:50],
    "a list": "[]",
    "no measurements": '{"version": 1}',
    "a list of measurements": '{"version": 1, "measurements": []}',
    "a number": '{"version": 1, "measurements": {"k": 3}}',
    "no fields": '{"version": 1, "measurements": {"k": {"g": {}}}}',
    "a NaN": f'{{"version": 1, "measurements": {{"k": {{"g": {GOOD.replace("0.25", "NaN")}}}}}}}',
    "no time": f'{{"version": 1, "measurements": {{"k": {{"g": {GOOD.replace("0.25", "-1")}}}}}}}',
    "a truth value": f'{{"version": 1, "measurements": {{"k": {{"g": {GOOD.replace("0.25", "true")}}}}}}}',
    "a large number": f'{{"version": 1, "measurements": {{"k": {{"g": {GOOD.replace("0.25", "1" * 400)}}}}}}}',
    "a text as a size": f'{{"version": 1, "measurements": {{"k": {{"g": {GOOD.replace("3", chr(34) * 2)}}}}}}}',
    "deep": "[" * 100_000,
    "bytes": "\udcff\udcfe",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_warned_about_and_replaced(own_cache: Path, text: str) -> None:
    own_cache.mkdir(mode=0o700)
    (own_cache / "tuning.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.warns(
        UserWarning, match=r"E0704: the measurements in .*tuning\.json cannot be read, and are ignored: "
    ):
        assert Store().find("k") == ()
    assert Store().find("k") == ()  # it is warned about once
    with pytest.warns(UserWarning, match=r"cannot be read, and are kept as tuning\.json\.unreadable"):
        Store().add("key", measurement())
    assert Store().find("key") == (measurement(),)
    assert (own_cache / "tuning.json.unreadable").read_bytes() == text.encode("utf-8", "surrogateescape")


def test_what_cannot_be_read_at_all(own_cache: Path) -> None:
    (own_cache / "tuning.json").mkdir(parents=True)
    own_cache.chmod(0o700)
    with pytest.warns(UserWarning, match="cannot be read"):
        assert Store().find("k") == ()
    with pytest.raises(BuildError, match="E0704"):
        Store().add("key", measurement())


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def huge(path: Path) -> None:
    path.touch(0o600)
    os.truncate(path, 10**10)


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


def of_others(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o666)


def among_others(path: Path) -> None:
    path.write_text("{}")
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (pipe, "E0704.*is not a regular file"),
        (huge, "E0704.*more than"),
        (link, "E0705.*is a symbolic link"),
        (of_others, r"E0705.*tuning\.json can be written by everybody"),
        (among_others, "E0705.*can be written by everybody"),
    ],
)
def test_what_is_no_file_of_ours_is_neither_waited_for_nor_believed(
    own_cache: Path, make: Callable[[Path], None], said: str
) -> None:
    own_cache.mkdir(mode=0o700)
    make(own_cache / "tuning.json")
    with pytest.warns(UserWarning, match=said):
        assert Store().find("k") == ()


@pytest.mark.parametrize("name", ["x" * 300, "loop/cache"])
def test_a_directory_that_cannot_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / name))
    with pytest.warns(UserWarning, match="E0704"):
        assert not Store().exists()
    with pytest.warns(UserWarning, match="E0704"):
        assert Store().find("k") == ()
    for change in (lambda: Store().clear(), lambda: Store().add("key", measurement())):
        with pytest.raises(BuildError, match="E0704"):
            change()


def test_a_newer_versions_file_is_not_replaced(own_cache: Path) -> None:
    Store().add("key", measurement())
    path = own_cache / "tuning.json"
    newer = path.read_text().replace('"version": 1', '"version": 2')
    path.write_text(newer)
    with pytest.warns(UserWarning, match="a newer version of evt wrote it"):
        assert Store().find("key") == ()
    for refused in (Store().require_replaceable, lambda: Store().add("other", measurement())):
        with pytest.raises(BuildError, match=r"E0704(.|\n)*a newer version of evt wrote it, in form 2"):
            refused()
    assert path.read_text() == newer
    assert os.listdir(own_cache) == ["tuning.json"]


def test_a_failed_write_leaves_the_old_file(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Store().add("key", measurement())

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(BuildError, match="No space left on device"):
        Store().add("other", measurement())
    monkeypatch.undo()
    monkeypatch.setenv("EVT_CACHE_DIR", str(own_cache))
    assert os.listdir(own_cache) == ["tuning.json"]
    assert Store().find("key") == (measurement(),)
    assert Store().find("other") == ()


def test_several_processes_lose_nothing() -> None:
    code = (
        "import sys\n"
        "from evt.measured import Measurement, Store, Timing\n"
        "for turn in range(12):\n"
        "    key = f'{sys.argv[1]}-{turn}'\n"
        "    Store().add(key, Measurement('G', 'sm90', key, {'m': turn}, (Timing('evt-2x', 'c', 1.0 + turn),)))\n"
        "    assert Store().find(key)[0].sizes == {'m': turn}\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(number)], stderr=subprocess.PIPE)
        for number in range(4)
    ]
    while any(child.poll() is None for child in children):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no half of a file is ever seen
            len(Store())
    assert [child.communicate()[1] for child in children] == [b""] * 4
    assert len(Store()) == 4 * 12


# The key of a measurement


@pytest.mark.parametrize("name", CALLS)
def test_a_call_and_its_sizes_have_one_key(name: str) -> None:
    program, a, b, inputs = CALLS[name]
    assert key_of_call(program, a, b, inputs) == key_of(program, a, b)


def test_what_makes_another_key() -> None:
    program, a, b, inputs = CALLS["gemm"]
    keys = [
        key_of(program, a, b),
        key_of(program, a, b, "sm80"),
        key_of(program, a, b, "sm90", "bf16"),
        key_of(program, half(48, 24), b),
        key_of(Program(Source("D = relu(acc + bias) - C")), a, b),
        key_of(Program(Source(FORMULA), fast_math=True), a, b),
        key_of(Program(Source(FORMULA), numerics="eager"), a, b),
        key_of_call(program, half(40, 25)[:, :24], b, inputs),  # unaligned rows
        key_of_call(program, a, b, {**inputs, "C": half(100, 40).mT}),
        *(
            key_of(Program(Source("D = acc"), "conv2d", padding=pad), last(1, 8, 9, 9), last(8, 8, 3, 3))
            for pad in (0, 1)
        ),
    ]
    assert len(set(keys)) == len(keys)


def test_a_key_is_the_same_in_every_process() -> None:
    code = (
        "import evt\n"
        "from evt.measured import problem_key\n"
        "from evt.request import packed_problem, problem_sizes\n"
        f"program = evt.gemm({CALLS['language'][0].request.source.text!r})\n"
        "shapes = ((40, 24), (24, 16))\n"
        "problem = packed_problem(program.request, 'sm90', 'f16', 'f16', shapes)\n"
        "print(problem_key(problem, problem_sizes(program.request, shapes)))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
        ).stdout
        for seed in range(3)
    }
    assert found == {f"{key_of(CALLS['language'][0], half(40, 24), half(24, 16))}\n"}


def test_noise_changes_no_choice() -> None:
    assert measurement().best() == Timing("evt-2x", "multistage_128x128x32", 0.2)
    assert measurement(("a", "x", 1.0), ("b", "y", 0.995), ("c", "z", 0.991)).best() == Timing("a", "x", 1.0)
    assert measurement(("a", "x", 1.02), ("b", "y", 1.0)).best() == Timing("b", "y", 1.0)
    assert replace(measurement(), timings=()).best() is None
