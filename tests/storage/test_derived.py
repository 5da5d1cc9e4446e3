"""Derived data: kept for one key, ignored where it is damaged or another user could have written it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evt.storage import derived


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of a cache that does not exist yet."""
    monkeypatch.setenv("EVT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_data_are_found_by_name_and_key(root: Path) -> None:
    assert derived.find("grammar", "lark 1") is None
    derived.keep("grammar", "lark 1", b"tables")
    assert derived.find("grammar", "lark 1") == b"tables"
    assert derived.find("grammar", "lark 2") is None
    assert derived.find("lexer", "lark 1") is None
    derived.keep("grammar", "lark 2", b"")
    assert (derived.find("grammar", "lark 1"), derived.find("grammar", "lark 2")) == (None, b"")
    assert os.listdir(root / derived.FOLDER) == ["grammar"]


@pytest.mark.parametrize(
    "change", [lambda data: data[:-1], lambda data: data[1:], lambda data: data + b"x", bytes.upper]
)
def test_damaged_data_are_absent(root: Path, change) -> None:
    derived.keep("grammar", "key", b"tables")
    file = root / derived.FOLDER / "grammar"
    file.write_bytes(change(file.read_bytes()))
    assert derived.find("grammar", "key") is None


def test_data_that_others_could_write_are_absent(root: Path) -> None:
    derived.keep("grammar", "key", b"tables")
    for path in (root, root / derived.FOLDER, root / derived.FOLDER / "grammar"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o022)
        assert derived.find("grammar", "key") is None
        path.chmod(mode)
    assert derived.find("grammar", "key") == b"tables"


def test_nothing_is_kept_in_a_folder_of_others(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    root.mkdir(mode=0o700)
    (root / derived.FOLDER).symlink_to(target)
    derived.keep("grammar", "key", b"tables")
    assert os.listdir(target) == []


def test_a_directory_that_cannot_be_used_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for place in (str(file), "/proc/nothing/here", "~nobody-here/x"):
        monkeypatch.setenv("EVT_CACHE_DIR", place)
        derived.keep("grammar", "key", b"tables")
        assert derived.find("grammar", "key") is None


def test_the_second_process_parses_and_prints_alike(root: Path) -> None:
    code = (
        "import evt\n"
        "for text in ('D = relu(acc + bias)', 'D = acc +', 'out D: f16[n, m]; D = max(acc, 0) * s[m]', '$'):\n"
        "    try: print(evt.emit(text))\n"
        "    except evt.ProgramError as error: print(error)"
    )
    first, second = (subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(2))
    kept = os.listdir(root / derived.FOLDER)
    assert {"grammar", "gemm_3x.cu.jinja"} <= set(kept)
    assert first.stdout == second.stdout
    assert first.stdout.count(b"error[E") == 2
