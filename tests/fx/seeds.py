"""Code that the generators of random models share: a module of steps, and the command line that checks many seeds."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable

import torch

Value = torch.Tensor
Step = Callable[..., Value]


class Steps(torch.nn.Module):
    """Steps that each take some of the earlier values and add one; ``results`` are the places of the results."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[Step, tuple[int, ...]]] = []
        self.results: list[int] = []

    def forward(self, *inputs: Value) -> tuple[Value, ...]:
        values = list(inputs)
        for step, taken in self.steps:
            values.append(step(*(values[place] for place in taken)))
        return tuple(values[place] for place in self.results)


def check_seeds(
    document: str | None, checks: dict[str, Callable[[int], int | Counter[str]]], counted: str = "regions"
) -> None:
    """Check many seeds, print the wrong ones and a summary, and exit with 1 if there are any.

    ``--by`` selects one of the checks. A check raises an exception for a wrong seed. ``counted`` names the things that
    a check counts.
    """
    parser = argparse.ArgumentParser(description=document, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--by", choices=tuple(checks), default=next(iter(checks)), help="which check")
    given = parser.parse_args()
    check = checks[given.by]
    found: Counter[str] = Counter()
    wrong = 0
    for seed in range(given.first, given.first + given.count):
        try:
            one = check(seed)
            found += one if isinstance(one, Counter) else Counter({counted: one})
        except Exception as error:  # noqa: PERF203
            wrong += 1
            print(f"{seed}: {type(error).__name__}: {str(error)[:400]}", flush=True)
    print(f"{given.count} seeds, {wrong} wrong; {dict(found)}")
    sys.exit(wrong > 0)
