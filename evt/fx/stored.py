"""The results of the pass beside PyTorch's cached graphs: ``keep(...)``, ``find(...) -> StoredGraph | None``.

PyTorch keeps compiled graphs on disk, for later processes, under a key that contains the pass's :func:`identity`. Such
a graph lacks its kernels, and the rows of its report. The pass stores both in evt's cache under a digest, and counts
the digest among Inductor's counters. Inductor stores a graph's counters with it, and counts them again when it loads
the graph: so the loaded graphs of a compilation are known (:func:`counted`).

A stored graph is valid while its kernels are in the cache and the tools that build kernels are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch._dynamo.utils import counters

from evt import resources
from evt.compilation import Cache, has_tools, tools_digest
from evt.errors import BuildError
from evt.functions import TABLE
from evt.fx.kernels import Provided
from evt.fx.options import Options
from evt.fx.records import ProductReport
from evt.measured import Store
from evt.runtime.folded import Refresh
from evt.storage import derived
from evt.version import __version__

#: The beginning of the names of counters, and of files.
_COUNTER, _FILE = "evt_graph_", "graph-"
#: The largest number of stored graphs; the least recently used are removed first.
MOST = 1024


@dataclass(frozen=True)
class StoredGraph:
    """The rows of a graph's report and its kernels. ``tools`` is the digest of the tools that built the kernels.

    ``refresh`` are the folds before each replay of a CUDA graph, if there are any.
    """

    rows: tuple[ProductReport, ...]
    kernels: tuple[Provided, ...] = ()
    libraries: tuple[Path, ...] = ()
    tools: str = ""
    refresh: Refresh | None = None

    def is_valid(self) -> bool:
        """Return whether the kernels would be the same if they were built now, and are in the cache."""
        if not self.libraries:
            return True
        cache = Cache()
        return self.tools == tools_digest(cache) and all(
            cache.find(each.parent.name)[0] == each for each in self.libraries
        )


def identity(options: Options) -> str:
    """Return a digest of everything that decides about the regions of a graph, besides the parts of PyTorch's key."""
    facts = (
        _sources(),
        replace(options, patches={}),
        [(str(row), row.source) for row in TABLE.values() if row.source],
        Store().identity(),
        [torch.cuda.get_device_properties(each).name for each in range(torch.cuda.device_count())],
        has_tools(),
        (torch._C._get_float32_matmul_precision(), torch._C._get_cudnn_allow_tf32()),
        torch.are_deterministic_algorithms_enabled(),
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@cache
def _sources() -> str:
    """Return a digest of evt's own files: the compiler and its templates."""
    digest = hashlib.sha256(__version__.encode())
    for folder, pattern in ((Path(resources.__file__).parent, "*.py"), (resources.directory("codegen"), "*")):
        for path in sorted(folder.rglob(pattern)):
            if path.is_file():
                digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def count(digest: str) -> None:
    """Count a graph that is being compiled."""
    counters["inductor"][_COUNTER + digest] += 1


def counts() -> Counter[str]:
    """Return how many times graphs were compiled or loaded, by their digests."""
    found: Mapping[str, int] = counters["inductor"]
    return Counter({name.removeprefix(_COUNTER): each for name, each in found.items() if name.startswith(_COUNTER)})


def keep(digest: str, key: str, graph: StoredGraph) -> None:
    """Store a graph; drop the least recently used ones."""
    with contextlib.suppress(BuildError):
        derived.keep(_FILE + digest, key, pickle.dumps(graph))
        derived.trim(_FILE, MOST)


def find(digest: str, key: str) -> StoredGraph | None:
    """Return a stored graph that is valid, or None."""
    with contextlib.suppress(BuildError):
        data = derived.find(_FILE + digest, key)
        graph: StoredGraph | None = None if data is None else pickle.loads(data)
        return graph if graph is not None and graph.is_valid() else None
    return None
