"""Sums of multiples of strides: exact answers to the questions behind overlap, fast for the modes of tensors.

A term ``(step, count)`` contributes ``step * x`` with ``0 <= x <= count``. All functions raise LayoutError E0675 if the
search gives up without an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd, prod

from evt.layout.refused import refused

#: The number of steps after which the search gives up, a few milliseconds; the strides of real tensors need a handful.
_MOST_TRIES = 2000


def reaches(terms: Iterable[tuple[int, int]], target: int) -> bool:
    """Return whether some choice of the terms adds up to the target."""
    return _Question().reaches(terms, target)


def repeats(modes: Iterable[tuple[int, int]]) -> bool:
    """Return whether two coordinates of the modes (extent, stride) have equal indices.

    They do if there are more coordinates than indices. Otherwise they do if the modes of smaller strides, in both
    directions, can compensate one or more steps of some mode.
    """
    terms = sorted((abs(stride), extent - 1) for extent, stride in modes if extent > 1)
    if prod(count + 1 for _, count in terms) > 1 + sum(step * count for step, count in terms):
        return True
    question = _Question()
    smaller: list[tuple[int, int]] = []
    span = 0
    for step, count in terms:
        if step <= span and question.reaches([(step, count - 1), *((s, 2 * c) for s, c in smaller)], span - step):
            return True
        smaller.append((step, count))
        span += step * count
    return False


def differ_and_meet(modes: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]) -> bool:
    """Return whether two coordinates of all modes (extent, stride) have equal indices and differ in ``modes``.

    They do if all the other modes, in both directions, can compensate one or more steps of one of these.
    """
    question = _Question()
    for place, (extent, stride) in enumerate(modes):
        rest = [*modes[:place], *modes[place + 1 :], *others]
        both_ways = [(step, 2 * (size - 1)) for size, step in rest]
        middle = sum(step * (size - 1) for size, step in rest)
        if extent > 1 and question.reaches([(stride, extent - 2), *both_ways], middle - stride):
            return True
    return False


class _Question:
    """A search, which counts its steps."""

    def __init__(self) -> None:
        self._tries = 0

    def reaches(self, terms: Iterable[tuple[int, int]], target: int) -> bool:
        positive = []
        for step, count in terms:
            if step < 0:
                target -= step * count  # count x down instead
                step = -step
            if step and count:
                positive.append((step, count))
        search = _Search(_joined(positive), _MOST_TRIES - self._tries)
        try:
            return search.reaches(0, target)
        finally:
            self._tries += search.tries


def _joined(terms: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return fewer terms with equal sums, steps descending: a term joins one whose steps it continues without gaps."""
    result: list[tuple[int, int]] = []
    for step, count in sorted(terms):
        for place, (small, many) in enumerate(result):
            if step % small == 0 and step // small <= many + 1:
                result[place] = small, many + step // small * count
                break
        else:
            result.append((step, count))
    return result[::-1]


class _Search:
    """A search over choices by descending step. It tries only choices that the remaining terms can complete, by size
    and divisor.
    """

    def __init__(self, terms: Sequence[tuple[int, int]], most_tries: int) -> None:
        self._terms, self._most_tries = terms, most_tries
        self.tries = 0
        self._rest = [(0, 0)]  # (sum, greatest common divisor) of this term and all later terms
        for step, count in reversed(terms):
            span, divisor = self._rest[-1]
            self._rest.append((span + step * count, gcd(divisor, step)))
        self._rest.reverse()

    def reaches(self, place: int, target: int) -> bool:
        span, divisor = self._rest[place]
        if not 0 <= target <= span or (divisor and target % divisor):
            return False
        if len(self._terms) - place < 2:
            return True  # one term: a multiple of it within its span; none: 0
        step, count = self._terms[place]
        span, divisor = self._rest[place + 1]
        common = gcd(step, divisor)
        stride = divisor // common  # the step of x that the remaining terms' divisor allows
        most = min(count, target // step)
        least = max(0, -((span - target) // step))
        first = target // common * pow(step // common, -1, stride) % stride
        first += -(-(least - first) // stride) * stride
        following = self._terms[place + 1][0]
        if (
            self._rest[place + 2][0] < following
        ):  # the search depends only on the remainder of the rest: try each remainder once
            most = min(most, first + stride * (following // gcd(step * stride, following) - 1))
        for x in range(first, most + 1, stride):
            self.tries += 1
            if self.tries > self._most_tries:
                message = "whether these strides meet was not decided"
                raise refused("E0675", message, "merge modes, or use smaller extents", steps=self._terms)
            if self.reaches(place + 1, target - step * x):
                return True
        return False
