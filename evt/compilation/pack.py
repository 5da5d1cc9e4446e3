"""Packs of kernels for machines that do not compile: ``write_pack(path, entries)``, ``read_pack(path, cache)``.

A pack is a zip file. Each kernel is a folder, named by its :func:`~evt.compilation.source.source_key`. It holds the
library, its source, and a record of their digests and of the versions that built them. Equal kernels make equal bytes.
Parts of kernels, skeletons and launchers, are packed alike: with them, a machine of the same nvcc builds new formulas
without compiling CUTLASS.

A pack holds code, so it is read as if it were hostile. Sizes are bounded before anything is unpacked. A file's name has
to be one of the three known names, and becomes no path. Nothing is stored unless the whole pack is sound.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from evt.compilation.builder import build
from evt.compilation.cache import ARTIFACTS, LIBRARY, RECORD, SOURCE, Cache, Entry
from evt.compilation.contents import Contents, heading
from evt.compilation.environment import host
from evt.compilation.limits import require_files
from evt.compilation.source import SCHEMA, KernelSource, source_key
from evt.diagnostics import Diagnostic
from evt.errors import BuildError
from evt.storage.trust import open_trusted, read_private
from evt.version import __version__

_FILES = (RECORD, SOURCE, *ARTIFACTS)
#: The largest size of each file in bytes, of the content of a pack, and of its content per byte of the pack.
_MOST = {RECORD: 1 << 16, SOURCE: 1 << 24} | dict.fromkeys(ARTIFACTS, 1 << 28)
_MOST_CONTENT, _MOST_RATIO = 1 << 35, 200
_MOST_MEMBERS = 300_000
_MEMBER = re.compile(rf"([0-9a-f]{{64}})/({'|'.join(map(re.escape, _FILES))})")
#: The fields of an entry's record that a pack keeps, all of them text.
_FACTS = ("kernel", "gencode", "evt", "nvcc", "cutlass")
_EPOCH = (1980, 1, 1, 0, 0, 0)
#: The exceptions of zipfile for a damaged file.
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError),
    *(ValueError, LookupError, TypeError, OverflowError, MemoryError),
)


Outcome = Literal["imported", "present", "refused"]


@dataclass(frozen=True, slots=True)
class Packed:
    """A kernel of a pack. ``outcome`` is the result of the import, and ``reason`` says why it was refused."""

    key: str
    contents: Contents
    outcome: Outcome
    reason: str = ""


def write_pack(path: Path, entries: Iterable[Entry]) -> list[Entry]:
    """Write entries of the cache to a pack, in one rename; return the entries in it.

    Entries that are damaged, that are removed meanwhile, or that do not state their machine are left out. Entries with
    equal sources are packed once. Raise BuildError (E0710) if the file cannot be written.
    """
    by_key: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda each: each.key):
        if (found := _read_entry(entry)) is not None:
            by_key.setdefault(found[0], entry)
    packed = []
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=".evt-pack-", dir=path.absolute().parent)
        try:
            with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for key, entry in sorted(by_key.items()):
                    if (found := _read_entry(entry)) is not None:
                        packed.append(entry)
                        for name, data in found[1].items():
                            archive.writestr(_member(f"{key}/{name}"), data)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        require_files(error)
        message = f"the pack {path} cannot be written: {error.strerror or error}"
        raise BuildError(Diagnostic("E0710", message, help="name a file in a directory that you can write")) from error
    return packed


def pack_sources(path: Path, sources: Sequence[KernelSource]) -> list[Entry]:
    """Build sources, and write exactly their kernels to a pack: see :func:`write_pack`. Raise the errors of build."""
    keys = {library.parent.name for library in build(sources)}
    return write_pack(path, [entry for entry in Cache().entries() if entry.key in keys])


def read_pack(path: Path, cache: Cache) -> list[Packed]:
    """Store the kernels of a pack in a cache, each in one rename; return all kernels of the pack, by key.

    Kernels of another version of evt or of its cache, of another kind of machine, and of a newer C library are refused.
    Raise BuildError: E0710 for a file that is not a sound pack, E0705 if another user could have written it; nothing is
    stored then. Raise the errors of :class:`Cache`.
    """
    with _opened(path) as archive:
        kernels = {key: _record(archive, members) for key, members in _members(archive).items()}
        refusals = {key: reason for key, record in kernels.items() if (reason := _refusal(record))}
        for key, record in kernels.items():
            if key not in refusals:
                _check(key, record, _unpacked(archive, key, record))
        cache.prepare()
        outcomes = []
        for key, record in sorted(kernels.items()):
            known = Contents(kernel=record["kernel"])
            if key in refusals:
                outcomes.append(Packed(key, known, "refused", refusals[key]))
                continue
            facts = {name: record[name] for name in (*_FACTS, "host")}
            stored = cache.put(key, partial(_unpacked, archive, key, record), facts, _artifact(record))
            text = _unpacked(archive, key, record)[SOURCE].decode()
            outcomes.append(Packed(key, heading(text, known.kernel), "imported" if stored else "present"))
        return outcomes


def _read_entry(entry: Entry) -> tuple[str, dict[str, bytes]] | None:
    """Return the key in packs and the files of an entry; None if it cannot be packed."""
    folder = entry.library.parent
    try:
        record = json.loads(read_private(folder / RECORD, _MOST[RECORD] << 8))
        artifact = entry.library.name
        text, made = (read_private(folder / name, _MOST[name]) for name in (SOURCE, artifact))
        if hashlib.sha256(made).hexdigest() != record["library"]["sha256"] or record["evt"] != __version__:
            return None
        source = KernelSource(text.decode(), record["gencode"])
        facts = {name: str(record.get(name, "")) for name in _FACTS} | {"host": record["host"], "schema": SCHEMA}
    except (BuildError, OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    facts["files"] = {name: _facts(data) for name, data in ((SOURCE, text), (artifact, made))}
    said = json.dumps(facts, indent=1, sort_keys=True) + "\n"
    return _key(source, artifact, facts), {RECORD: said.encode(), SOURCE: text, artifact: made}


def _key(source: KernelSource, artifact: str, record: Mapping[str, Any]) -> str:
    return source_key(source, None if artifact == LIBRARY else (artifact, record["nvcc"]))


def _facts(data: bytes) -> dict[str, object]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _member(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name, _EPOCH)
    member.compress_type, member.create_system = zipfile.ZIP_DEFLATED, 3
    member.external_attr = (stat.S_IFREG | 0o600) << 16
    return member


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class _UnsoundError(Exception):
    """An error for a file that is not a sound pack, with the reason."""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a pack.

    Raise BuildError: E0710 if it cannot be read or is not sound, E0705 if others could have written it.
    """
    try:
        with open_trusted(path) as file:
            try:
                archive = zipfile.ZipFile(file)
            except _DAMAGE as error:
                raise _UnsoundError("it is not a zip file") from error
            with archive:
                yield archive
    except _UnsoundError as error:
        message = f"{path} is not a sound pack: {error}"
        mend = "write it again with `evt cache export`, and compare its digest after copying"
        raise BuildError(Diagnostic("E0710", message, help=mend, notes=("nothing was imported",))) from error
    except OSError as error:
        require_files(error)
        message = f"the pack {path} cannot be read: {error.strerror or error}"
        raise BuildError(Diagnostic("E0710", message, help="name a file of `evt cache export`")) from error


def _members(archive: zipfile.ZipFile) -> dict[str, dict[str, zipfile.ZipInfo]]:
    """Return the members of each kernel, by file. Raise _UnsoundError unless there are exactly the known files."""
    found: dict[str, dict[str, zipfile.ZipInfo]] = {}
    members = archive.infolist()
    if len(members) > _MOST_MEMBERS:
        raise _UnsoundError(f"it has {len(members)} files")
    for member in members:
        match = _MEMBER.fullmatch(member.orig_filename)
        if match is None:
            raise _UnsoundError(f"it has a file {member.orig_filename[:80]!r}")
        files = found.setdefault(match[1], {})
        if match[2] in files:
            raise _UnsoundError(f"it has {match[0]} twice")
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
            raise _UnsoundError(f"{match[0]} is not a regular file")
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise _UnsoundError(f"{match[0]} is encrypted, or compressed in another way")
        if member.file_size > _MOST[match[2]]:
            raise _UnsoundError(f"{match[0]} has {member.file_size} bytes")
        files[match[2]] = member
    content, size = sum(member.file_size for member in members), sum(member.compress_size for member in members)
    if content > min(_MOST_CONTENT, _MOST_RATIO * size):
        raise _UnsoundError(f"it has {content} bytes in {size} compressed ones")
    for key, files in found.items():
        if not {RECORD, SOURCE} < files.keys() or len(files) != 3:
            raise _UnsoundError(f"{key} has not a record, a source and one artifact")
    return found


def _data(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    try:
        with archive.open(member) as file:
            data = file.read(member.file_size + 1)
    except _DAMAGE as error:
        raise _UnsoundError(f"{member.filename} cannot be unpacked") from error
    if len(data) != member.file_size:
        raise _UnsoundError(f"{member.filename} has another size than it states")
    return data


def _record(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> dict[str, Any]:
    """Return a kernel's record. Raise _UnsoundError unless its fields have their types."""
    name = members[RECORD].filename
    try:
        record = json.loads(_data(archive, members[RECORD]))
        sound = (
            all(isinstance(record[fact], str) and len(record[fact]) < 200 for fact in _FACTS)
            and isinstance(record["schema"], int)
            and all(isinstance(each, str) and len(each) < 200 for each in record["host"])
            and isinstance(record["host"], list)
            and len(record["host"]) == 2
            and set(record["files"]) == {*members} - {RECORD}
            and all(isinstance(facts["sha256"], str) for facts in record["files"].values())
            and all(record["files"][file]["size"] == members[file].file_size for file in record["files"])
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise _UnsoundError(f"{name} is not a record") from error
    if not sound:
        raise _UnsoundError(f"{name} is not a record of this kernel")
    return dict(record)


def _refusal(record: Mapping[str, Any]) -> str:
    """Return why this version of evt, on this machine, cannot use a kernel; "" if it can."""
    if record["evt"] != __version__:
        return f"built by evt {record['evt']}, and this is evt {__version__}"
    if record["schema"] != SCHEMA:
        return f"built for version {record['schema']} of the cache, and this is version {SCHEMA}"
    (machine, libc), (mine, my_libc) = record["host"], host()
    if machine != mine:
        return f"built for {machine}, and this machine is {mine}"
    if _numbers(libc) > _numbers(my_libc):
        return f"built with {libc}, and this machine has {my_libc}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", version))


def _check(key: str, record: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Raise _UnsoundError unless the key is the key of the source."""
    try:
        source = KernelSource(files[SOURCE].decode(), record["gencode"])
        sound = _key(source, _artifact(record), record) == key
    except ValueError:
        sound = False
    if not sound:
        raise _UnsoundError(f"{key} is not the key of its source")


def _artifact(record: Mapping[str, Any]) -> str:
    """Return the file of an entry that is neither its record nor its source."""
    (artifact,) = {*record["files"]} - {SOURCE}
    return str(artifact)


def _unpacked(archive: zipfile.ZipFile, key: str, record: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of an entry but its record. Raise _UnsoundError if their digests differ from the record's."""
    found = {}
    for name in record["files"]:
        found[name] = _data(archive, archive.getinfo(f"{key}/{name}"))
        if _facts(found[name])["sha256"] != record["files"][name]["sha256"]:
            raise _UnsoundError(f"{key}/{name} has changed")
    return found
