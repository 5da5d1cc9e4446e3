"""Many random programs: ``python -m tests.programs --count 20000 --seed 0 --jobs 2``.

Every failure is printed with its seed and the smallest program that fails in the same way; a summary comes last. The
exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from .checks import TARGETS, Failure, check
from .features import FEATURES, features
from .generator import generate
from .shrink import shrink
from .tree import Program


@dataclass
class Outcome:
    seed: int
    failures: list[Failure]
    counts: Counter[str]


def run(seed: int, targets: tuple[str, ...] = TARGETS) -> Outcome:
    """Return the checks of one seed's program."""
    program = generate(seed)
    report = check(program, targets)
    counts = report.counts + Counter(programs=1) + Counter(f"has {name}" for name in features(program))
    counts["accepted" if report.accepted else "refused"] += 1
    return Outcome(seed, report.failures, counts)


def smallest(seed: int, failure: Failure) -> Program:
    """Return the smallest program that fails as the seed's does."""
    targets = tuple(name for name in TARGETS if failure.detail.startswith(f"{name}:"))

    def fails(program: Program) -> bool:
        try:
            return any(each.kind == failure.kind for each in check(program, targets).failures)
        except Exception:
            return False  # a text that is not a program

    return shrink(generate(seed), fails)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.programs", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="the first program's seed")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes")
    parser.add_argument("--targets", default=",".join(TARGETS), help="on which is emitted; empty for none")
    parser.add_argument("--shrink", type=int, default=3, help="how many failures of a kind are made small")
    parser.add_argument("--ignore", default="", help="a regular expression of failures' kinds and details to leave out")
    parser.add_argument("--show", action="store_true", help="print the programs and check nothing")
    given = parser.parse_args(words)
    seeds = range(given.seed, given.seed + given.count)
    if given.show:
        for seed in seeds:
            print(generate(seed), end="\n\n")
        return 0
    targets = tuple(filter(None, given.targets.split(",")))
    ignored = re.compile(given.ignore) if given.ignore else None
    counts, kinds = Counter[str](), Counter[str]()
    started = time.monotonic()
    with ProcessPoolExecutor(given.jobs, initializer=_initialise) as pool:
        for outcome in pool.map(run, seeds, [targets] * len(seeds), chunksize=16):
            counts.update(outcome.counts)
            for failure in outcome.failures:
                if ignored and ignored.search(f"{failure.kind}: {failure.detail}"):
                    counts["ignored"] += 1
                    continue
                kinds[failure.kind] += 1
                if kinds[failure.kind] <= given.shrink:
                    program = smallest(outcome.seed, failure)
                    found = [each.detail for each in check(program, targets).failures if each.kind == failure.kind]
                    print(f"== {failure.kind}\n{(found or [failure.detail])[0]}\n{program}\n", flush=True)
    for kind, count in kinds.most_common():
        print(f"{count:6} x {kind}")
    for name, count in sorted(counts.items()):
        if not name.startswith("has "):
            print(f"{count:9} {name}")
    missing = [name for name in FEATURES if not counts[f"has {name}"]]
    print(f"not in any program: {', '.join(missing)}" if missing else "every part of the language is in some program")
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if kinds else 0


def _initialise() -> None:
    import torch

    torch.set_num_threads(1)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
