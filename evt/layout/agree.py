"""A comparison of two functions, place by place, for cases that no rule decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from evt.layout.refused import refused

#: The largest number of places that are compared, which takes a few milliseconds.
MOST_PLACES = 1024


def difference(
    first: Callable[[int], int], second: Callable[[int], int], size: int, suspects: Iterable[int] = ()
) -> int | None:
    """Return a place below ``size`` where the functions differ, the first one or a suspect; None if they agree.

    Raise LayoutError E0675 for a size above :data:`MOST_PLACES` if they agree at the suspects and the first places.
    """
    places = range(size) if size <= MOST_PLACES else chain(suspects, range(MOST_PLACES))
    for place in places:
        if first(place) != second(place):
            return place
    if size > MOST_PLACES:
        message = f"whether the result is right at each of {size} places was not decided"
        raise refused("E0675", message, f"layouts of up to {MOST_PLACES} elements are decided place by place")
    return None
