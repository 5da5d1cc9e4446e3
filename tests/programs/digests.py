"""Digests of emitted text, for changes that are to change none: ``python -m tests.programs.digests > before``.

A line for each of the samples and of ``--count`` random programs, each target and each route: a digest of the C++, or
the code and a digest of the refusal; and one of the explanation. Two lists are compared by ``diff``.
"""

from __future__ import annotations

import argparse
import hashlib
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import evt
from evt.errors import EvtError
from evt.plan import ROUTES

from .checks import TARGETS, make, operand_types
from .generator import generate

SAMPLES = Path(__file__).parents[2] / "samples"


def digest(run: Callable[[], object]) -> str:
    """Return a digest of a text, or of a refusal."""
    kind = "text"
    try:
        found = str(run())
    except EvtError as error:
        kind, found = error.diagnostics[0].code, str(error)
    return f"{kind} {hashlib.sha256(found.encode()).hexdigest()[:16]}"


def lines(name: str, program: Callable[..., Any], types: tuple[str | None, str | None]) -> Iterator[str]:
    """Yield the digests of a program, which ``program`` makes from settings."""
    routes = ["", *(route.name for route in ROUTES)]
    for route in routes:
        try:
            op = program(**({"route": route} if route else {}))
        except EvtError:
            yield f"{name} - {route or '-'} {digest(partial(program, route=route or None))}"
            continue
        for arch in TARGETS:
            found = digest(lambda: op.emit(arch, *types))  # noqa: B023
            if route and not found.startswith(("text", "E0502")):
                continue  # there is no such route for this program
            yield f"{name} {arch} {route or '-'} {found}"
            if not route and hasattr(op, "explain"):
                yield f"{name} {arch} explain {digest(lambda: op.explain(arch, *types))}"  # noqa: B023


def of_sample(path: Path) -> list[str]:
    return list(lines(path.stem, lambda **settings: evt.load(path, **settings), (None, None)))


def of_seed(seed: int) -> list[str]:
    program = generate(seed)

    def made(**settings: Any) -> Any:
        return make(replace(program, settings=tuple({**dict(program.settings), **settings}.items())))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(lines(f"{seed}", made, operand_types(program)))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.programs.digests", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--count", type=int, default=300, help="how many random programs")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes")
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs) as pool:
        for made in pool.map(of_sample, sorted(SAMPLES.glob("*.evt"))):
            print(*made, sep="\n")
        for made in pool.map(of_seed, range(given.count), chunksize=8):
            print(*made, sep="\n")


if __name__ == "__main__":
    main()
