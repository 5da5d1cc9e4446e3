"""The identity of a measured problem, as a text that does not depend on the process: ``problem_key(problem, sizes)``.

The sizes of groups hardly repeat, so groups are measured by class of sizes: see :func:`size_class`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from evt.ir import Input, Output
from evt.ir.dtype import B1
from evt.plan import Problem

#: The first version whose keys have this form. Measurements of all later versions are found.
_FORM = "0.2.0"


def problem_key(problem: Problem, sizes: Mapping[str, int]) -> str:
    """Return the digest of a planned problem and its extents.

    A call of packed tensors and ``evt explain`` for its sizes have one key: only the layouts of whole matrices count,
    and without batches it does not matter whether a tensor is shared by all batches. A grouped problem, whose ``sizes``
    are a :func:`size_class`, has a key that begins with :func:`groups_key`.
    """
    if problem.grouped:
        return groups_key(problem) + ",".join(f"{name}={size}" for name, size in sizes.items())
    return _digest(problem, sizes)


def groups_key(problem: Problem) -> str:
    """Return the beginning of a grouped problem's keys, which does not depend on the sizes."""
    return f"{_digest(problem, {})}:"


def size_class(groups: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the class of the sizes of groups; groups without work do not count.

    ``groups`` is their number and ``mean_m`` the mean of their rows, both rounded up to a power of two; ``n`` and ``k``
    are exact if all groups share them, otherwise there are ``mean_n`` and ``mean_k``, rounded like ``mean_m``.
    """
    busy = [sizes for sizes in groups if sizes["m"] and sizes["n"] and sizes["k"]]
    count = max(1, len(busy))
    found = {"groups": _power(count), "mean_m": _power(-(-sum(sizes["m"] for sizes in busy) // count))}
    for mode in ("n", "k"):
        extents = [sizes[mode] for sizes in busy] or [0]
        if min(extents) == max(extents):
            found[mode] = extents[0]
        else:
            found[f"mean_{mode}"] = _power(-(-sum(extents) // count))
    return found


def _power(number: int) -> int:
    """Return the smallest power of two that is at least the number."""
    return 1 << max(0, number - 1).bit_length()


def _digest(problem: Problem, sizes: Mapping[str, int]) -> str:
    signature, dag = problem.signature, problem.program
    values: tuple[Input | Output, ...] = (*dag.inputs, *dag.outputs)
    tiles = {value.name for value in values if value.modes in (("m", "n"), ("n", "m")) and value.dtype != B1}
    layouts = [("A", signature.a), ("B", signature.b), *((n, layout) for n, layout in signature.tensors if n in tiles)]
    batched = sizes.get("l", 1) > 1
    parts = (
        _FORM,
        problem.target.name,
        str(dag),
        repr([(name, layout if batched else replace(layout, batch="strided")) for name, layout in layouts]),
        "grouped" if problem.grouped else repr(signature.convolution),
        repr(sorted(asdict(problem.options).items())),
        repr(sorted((name, size) for name, size in sizes.items() if name not in ("A", "B"))),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
