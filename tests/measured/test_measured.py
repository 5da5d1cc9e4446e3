"""Measurements, without a GPU: the store on disk, and the key of a measurement."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

import evt
from evt.diagnostics import Source
from evt.errors import BuildError
from evt.measured import Measurement, Origin, Store, Timing, schema
from evt.program import Program
from tests.support.measurements import CALLS, FORMULA, GPU, half, key_of, key_of_call, last, measurement

pytestmark = pytest.mark.usefixtures("own_cache")

# The store


def test_nothing_is_created_before_it_is_needed(own_cache: Path) -> None:
    store = Store()
    assert (len(store), store.exists(), store.find("key"), store.clear()) == (0, False, (), 0)
    assert (store.forget([("key", GPU)]), store.all(), store.has(""), store.kernels("key", GPU, "")) == (
        0,
        [],
        False,
        {},
    )
    assert not own_cache.exists()


def test_round_trip(own_cache: Path) -> None:
    store, first, other = Store(), measurement(), measurement(("stock-3x", "c", 1.5), gpu="NVIDIA H100")
    store.add("one", first)
    store.add("one", other)
    store.add("two", replace(first, sizes={"m": 1}))
    again = Store()
    assert again.find("one") == (other, first)
    assert len(again) == 3
    newer = measurement(("evt-2x", "c", 0.125))
    again.add("one", newer)
    assert {each.gpu: each for each in store.find("one")} == {GPU: newer, other.gpu: other}
    assert sorted(os.listdir(own_cache)) == ["tuning.db"]
    assert (own_cache / "tuning.db").stat().st_mode & 0o777 == 0o600
    assert store.forget([("one", GPU), ("one", "another"), ("three", GPU)]) == 1
    assert store.find("one") == (other,)
    assert store.clear() == 2
    assert (len(store), os.listdir(own_cache)) == (0, [])


def test_who_measured_what_and_when() -> None:
    origin = Origin("somebody@somewhere", "2026-11-27T01:00:00.000+00:00", "580.1", "0.3.0")
    timing = Timing("evt-3x", "c", 1.5, 1.25, 31, "digest")
    Store().add("key", replace(measurement(), timings=(timing,), origin=origin, call="call"))
    (found,) = Store().find("key")
    assert (found.origin, found.call) == (origin, "call")
    assert repr(found.timings) == repr((timing,))
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))).origin == origin
    Store().add("other", measurement())
    (unknown,) = Store().find("other")
    assert (unknown.origin.who, unknown.origin.evt) == ("", evt.__version__)
    assert datetime.fromisoformat(unknown.origin.when).tzinfo is not None


def test_the_latest_driver_counts() -> None:
    def measured(ms: float, driver: str, when: str) -> Measurement:
        return replace(measurement(("evt-3x", "c", ms)), origin=Origin("", when, driver))

    Store().add("key", measured(1.0, "570", "2026-11-01"), merge=True)
    Store().add("key", measured(2.0, "580", "2026-11-02"), merge=True)
    Store().add("key", measured(3.0, "560", "2026-10-01"), merge=True)
    assert [each.origin.driver for each in Store().find("key")] == ["580"]
    assert [timing.ms for timing in Store().kernels("key", GPU, "570").values()] == [1.0]
    assert Store().kernels("key", GPU, "590") == {}


def test_merged_times_keep_the_others() -> None:
    store = Store()
    store.add("key", measurement(("a", "x", 1.0), ("b", "y", 2.0)))
    store.add("key", measurement(("b", "y", 0.5)), merge=True)
    (found,) = store.find("key")
    assert {timing.route: timing.ms for timing in found.timings} == {"a": 1.0, "b": 0.5}


def test_measurements_are_selected_by_key_and_gpu() -> None:
    store = Store()
    store.add_all([("ab%1", measurement()), ("ab_2", measurement(gpu="NVIDIA H100")), ("b", measurement())])
    assert [key for key, _ in store.all("ab")] == ["ab%1", "ab_2"]
    assert [key for key, _ in store.all("ab%")] == ["ab%1"]
    assert [key for key, _ in store.all(gpu="h100")] == ["ab_2"]
    assert store.has("ab_")
    assert not store.has("a_")


def test_the_longest_unmeasured_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evt.measured.store.MOST", 3)
    store = Store()
    for number, key in enumerate(("a", "b", "c", "a", "d")):
        store.add(key, replace(measurement(), origin=Origin(when=f"2026-11-27T00:0{number}")))
    assert [bool(store.find(key)) for key in "abcd"] == [True, False, True, True]


# Databases that cannot be used


def sound(folder: Path, count: int = 1) -> bytes:
    store = Store(folder)
    store.add_all((f"key {number}", measurement()) for number in range(count))
    return store.path.read_bytes()


def foreign(folder: Path) -> bytes:
    path = folder / "foreign.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE other (key TEXT)")
    return path.read_bytes()


BROKEN: dict[str, Callable[[Path], bytes]] = {
    "text": lambda folder: b'{"version": 1, "measurements": {}}' * 20,
    "bytes": lambda folder: bytes(range(256)) * 64,
    "half": lambda folder: sound(folder, 300)[:9000],
    "damaged": lambda folder: sound(folder, 300)[:4096] + bytes(65536),
    "another program's": foreign,
}


@pytest.mark.parametrize("make", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_warned_about_and_replaced(
    own_cache: Path, tmp_path: Path, make: Callable[[Path], bytes]
) -> None:
    (tmp_path / "made").mkdir(mode=0o700)
    data = make(tmp_path / "made")
    own_cache.mkdir(mode=0o700)
    path = own_cache / "tuning.db"
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.warns(UserWarning, match=r"E0704: the measurements in .*tuning\.db cannot be read, and are ignored: "):
        assert Store().find("key 1") == ()
    assert Store().find("key 1") == ()  # it is warned about once
    with pytest.warns(UserWarning, match=r"cannot be read, and are kept as tuning\.db\.unreadable"):
        Store().add("key", measurement())
    assert Store().find("key") == (measurement(),)
    assert (own_cache / "tuning.db.unreadable").read_bytes() == data
    assert Store().clear() == 1
    assert os.listdir(own_cache) == []


def test_an_empty_file_is_an_empty_database(own_cache: Path) -> None:
    own_cache.mkdir(mode=0o700)
    (own_cache / "tuning.db").touch(0o600)
    assert Store().find("key") == ()
    Store().add("key", measurement())
    assert Store().find("key") == (measurement(),)


def directory(path: Path) -> None:
    path.mkdir(mode=0o700)


def pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


def of_others(path: Path) -> None:
    Store().add("k", measurement())
    path.chmod(0o666)


def among_others(path: Path) -> None:
    Store().add("k", measurement())
    path.parent.chmod(0o777)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (directory, "E0704.*is not a regular file"),
        (pipe, "E0704.*is not a regular file"),
        (link, "E0705.*is a symbolic link"),
        (of_others, r"E0705.*tuning\.db can be written by everybody"),
        (among_others, "E0705.*can be written by everybody"),
    ],
)
def test_what_is_no_file_of_ours_is_neither_waited_for_nor_believed(
    own_cache: Path, make: Callable[[Path], None], said: str
) -> None:
    own_cache.mkdir(mode=0o700)
    make(own_cache / "tuning.db")
    with pytest.warns(UserWarning, match=said):
        assert Store().find("k") == ()
    with pytest.raises(BuildError, match=r"E070[45]"):
        Store().add("k", measurement())


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


# Other versions of evt


def test_a_newer_versions_database_is_not_changed(own_cache: Path) -> None:
    Store().add("key", measurement())
    path = own_cache / "tuning.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
        database.execute("ALTER TABLE times ADD COLUMN joules REAL")
    before = path.read_bytes()
    with pytest.warns(UserWarning, match="a newer version of evt wrote it"):
        assert Store().find("key") == ()
    for refused in (Store().require_replaceable, lambda: Store().add("other", measurement())):
        with pytest.raises(
            BuildError, match=rf"E0704(.|\n)*a newer version of evt wrote it, in form {schema.VERSION + 1}"
        ):
            refused()
    assert path.read_bytes() == before
    assert os.listdir(own_cache) == ["tuning.db"]


def older_file(*measured: Measurement) -> str:
    fields = ("gpu", "target", "program", "sizes")
    entries = {
        f"key {number}": {
            each.gpu: {
                **{name: getattr(each, name) for name in fields},
                "timings": [{"route": t.route, "config": t.config, "ms": t.ms} for t in each.timings],
            }
        }
        for number, each in enumerate(measured)
    }
    return json.dumps({"version": 1, "measurements": entries})


def test_measurements_of_an_older_version_are_taken_over(own_cache: Path) -> None:
    own_cache.mkdir(mode=0o700)
    older = own_cache / "tuning.json"
    older.write_text(older_file(measurement(), measurement(gpu="NVIDIA H100")))
    older.chmod(0o600)
    Store().add("new", measurement())
    assert Store().find("key 0") == (measurement(),)
    assert Store().find("key 1") == (measurement(gpu="NVIDIA H100"),)
    assert older.exists()  # the older version goes on with it
    older.write_text(older_file())
    Store().add("newer", measurement())
    assert len(Store()) == 4


OLDER_BROKEN = {
    "empty": "",
    "list": "[]",
    "half": "{",
    "fields": '{"measurements": {"k": {"g": {}}}}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", OLDER_BROKEN.values(), ids=OLDER_BROKEN)
def test_a_broken_file_of_an_older_version_is_warned_about(own_cache: Path, text: str) -> None:
    own_cache.mkdir(mode=0o700)
    (own_cache / "tuning.json").write_text(text)
    (own_cache / "tuning.json").chmod(0o600)
    with pytest.warns(UserWarning, match=r"tuning\.json are not taken over"):
        Store().add("key", measurement())
    assert Store().find("key") == (measurement(),)


# Nothing is lost

WRITER = """
import os, resource, signal, sys
from evt.errors import BuildError
from evt.measured import Measurement, Store, Timing
name, count, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if most:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
for turn in range(count):
    key = f"{name}-{turn}"
    timings = tuple(Timing("evt-2x", f"c{each}", 1.0 + turn) for each in range(20))
    try:
        Store().add(key, Measurement("G", "sm90", key, {"m": turn}, timings))
    except BuildError as error:
        print("refused", error.diagnostics[0].code, flush=True)
        break
    print(key, flush=True)
"""


def writer(name: str, count: int, most: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", WRITER, name, str(count), str(most)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_sound(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


def test_several_processes_lose_nothing(own_cache: Path) -> None:
    children = [writer(str(number), 6) for number in range(3)]
    while any(child.poll() is None for child in children):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no half of a file is ever seen
            len(Store())
    assert [child.communicate()[1] for child in children] == [""] * 3
    assert len(Store()) == 3 * 6
    check_sound(own_cache / "tuning.db")


@pytest.mark.parametrize("lines", [1, 7, 30])
def test_a_killed_process_loses_nothing(own_cache: Path, lines: int) -> None:
    child = writer("killed", 10_000)
    assert child.stdout is not None
    kept = [child.stdout.readline().strip() for _ in range(lines)]
    child.kill()
    kept += child.communicate()[0].split()
    for key in kept:
        assert len(Store().find(key)[0].timings) == 20
    Store().add("next", measurement())
    assert len(Store()) - len(kept) in (1, 2)  # the last one may be unannounced
    check_sound(own_cache / "tuning.db")


def test_a_full_disk_loses_nothing(own_cache: Path) -> None:
    child = writer("full", 10_000, most=60_000)
    output, errors = child.communicate()
    *kept, refused, code = output.split()
    assert (refused, code, errors) == ("refused", "E0704", "")
    assert len(kept) > 3
    assert len(Store()) == len(kept)
    for key in kept:
        assert len(Store().find(key)[0].timings) == 20
    Store().add("next", measurement())
    check_sound(own_cache / "tuning.db")


def test_processes_time_one_after_the_other_on_a_gpu() -> None:
    with Store().alone(GPU) as waited:
        assert not waited
        code = (
            "from evt.measured import Store\nprint('go', flush=True)\n"
            f"with Store().alone({GPU!r}) as waited: print(waited)"
        )
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "go\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1.5)
        with Store().alone("another GPU") as waited:
            assert not waited
    assert child.communicate()[0] == "True\n"


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


@pytest.mark.slow
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
