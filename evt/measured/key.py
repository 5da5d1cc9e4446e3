"""What a measurement is of, as a text that is the same in every process: ``problem_key(problem, sizes)``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, replace

from evt.ir import Input, Output
from evt.ir.dtype import B1
from evt.plan import Problem
from evt.version import __version__


def problem_key(problem: Problem, sizes: Mapping[str, int]) -> str:
    """The digest of a planned problem and its extents; also of evt's version, whose kernels they are.

    A call of packed tensors and ``evt explain`` for its sizes give the same key: of the layouts only those of whole
    matrices count, and without batches it does not matter whether a tensor is the same in all.
    """
    signature, dag = problem.signature, problem.dag
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    tiles = {value.name for value in values if value.modes in (("m", "n"), ("n", "m")) and value.dtype != B1}
    layouts = [("A", signature.a), ("B", signature.b), *((n, layout) for n, layout in signature.tensors if n in tiles)]
    batched = sizes.get("l", 1) > 1
    parts = (
        __version__,
        problem.target.name,
        str(dag),
        repr([(name, layout if batched else replace(layout, batch="strided")) for name, layout in layouts]),
        "grouped" if problem.grouped else repr(signature.convolution),
        repr(sorted(asdict(problem.options).items())),
        repr(sorted((name, size) for name, size in sizes.items() if name not in ("A", "B"))),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
