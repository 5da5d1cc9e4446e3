"""The layout that CuTe's C++ derives for a composition, and a check that it is the composition.

CuTe splits each mode of the right layout where it steps from one mode of the left layout into the next, and checks two
conditions. They do not suffice: steps may add up to more than a mode of the left layout holds, a split may skip
elements, and negative strides are not checked. Therefore the derived layout is compared with the definition: by a rule
if one applies, and otherwise place by place.

The module reads layouts through a protocol, so that :mod:`layout` can import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Generic, Protocol, TypeVar

from evt.errors import LayoutError
from evt.layout import tree
from evt.layout.agree import difference
from evt.layout.flat import Pairs, flat_trees, unbounded
from evt.layout.refused import refused
from evt.layout.tree import IntTuple

#: The largest number of parts of the right layout that are combined in pairs to suspected places.
_MOST_PAIRED = 24


@dataclass(frozen=True, slots=True)
class _Part:
    """A mode of the result: the place of its second coordinate, its stride in the right layout, and its stride."""

    extent: int
    place: int
    step: int
    stride: int


@dataclass(frozen=True, slots=True)
class _Fault:
    """A failed condition, a remedy, and a place that may reveal it."""

    message: str
    help: str
    place: int = 0


class Function(Protocol):
    """A layout, as far as its composition reads it."""

    @property
    def shape(self) -> IntTuple: ...
    @property
    def stride(self) -> IntTuple: ...
    @property
    def size(self) -> int: ...
    @property
    def leaves(self) -> tuple[tuple[int, int], ...]: ...
    def __call__(self, place: int, /) -> int: ...


_Layout = TypeVar("_Layout", bound=Function)


class Derivation(Generic[_Layout]):
    """CuTe's composition of two layouts, ``result``. Raise LayoutError E0674 if the C++ does not compile.

    The left layout reads a place as a mixed-radix number: its extents are the radices of the digits, and the last digit
    is unbounded. Each mode of the right layout is split into parts, and each part steps through one digit. ``make``
    constructs a layout.
    """

    def __init__(self, left: _Layout, right: _Layout, make: Callable[[IntTuple, IntTuple], _Layout]) -> None:
        self._left, self._right, self._make = left, right, make
        self._digits = unbounded(left.leaves)
        self._parts: list[_Part] = []
        self._uneven: _Fault | None = None
        self._place = 1
        self.result = self._tree(right.shape, right.stride)

    def difference(self) -> int | None:
        """Return a place where the result is not ``left(right(place))``, or None.

        Raise LayoutError E0675 if that could not be decided.
        """
        fault = self._fault()
        exact = all(part.stride == self._left(part.step) for part in self._parts)
        if exact and fault is None:
            return None
        return difference(self.result, self._definition, self._right.size, self._suspects(fault))

    def composition(self) -> _Layout:
        """Return the result. Raise LayoutError E0674, with a place, if it is not the composition."""
        place = self.difference()
        if place is not None:
            fault = self._uneven or self._fault() or _Fault("CuTe derives a layout that is not the composition", "")
            wrong = f"{self.result}, which is {self.result(place)} at {place}, not {self._definition(place)}"
            raise self._refused(fault, CuTe=wrong)
        return self.result

    def _definition(self, place: int) -> int:
        return self._left(self._right(place))

    def _tree(self, shape: IntTuple, stride: IntTuple) -> _Layout:
        if isinstance(shape, tuple):
            parts = list(map(self._tree, shape, tree.modes(stride)))
            return self._make(tuple(each.shape for each in parts), tuple(each.stride for each in parts))
        assert not isinstance(stride, tuple)
        pairs = self._mode(shape, stride)
        for extent, distance in pairs:
            if extent > 1:
                self._parts.append(_Part(extent, self._place, stride, distance))
            self._place *= extent
            stride *= extent
        return self._make(*flat_trees(pairs))

    def _mode(self, extent: int, stride: int) -> Pairs:
        """Return the composition with ``extent:stride``, as C++ computes it in its static arithmetic."""
        if stride == 0:
            return [(extent, 0)]
        rest, step = extent, stride
        result: Pairs = []
        for place, (size, distance) in enumerate(self._digits[:-1]):
            if abs(step) > size and step % size:
                self._break(
                    f"the stride {step} is not a multiple of the extent {size} of mode {place} of the left layout",
                    f"a multiple of {size}, or less than {size}, would do",
                    stops=step > 0,
                )
            taken = -(-size // abs(step))
            if taken > 1 and rest > 1:
                part = min(taken, rest)
                if rest % part:
                    self._break(
                        f"the extent {rest} is not a multiple of {part}, the part in mode {place} of the left layout",
                        f"an extent that divides {part}, or a multiple of it, would do",
                        stops=True,
                    )
                if rest > part and taken * abs(step) != size:
                    self._break(
                        f"the stride {step} does not divide the extent {size} of mode {place} of the left layout",
                        f"an extent of {part} or less, or a stride that divides {size}, would do",
                    )
                result.append((part, step * distance))
                rest //= part
            step = _signed(-(-abs(step) // size), step)
        if rest > 1 or not result:
            result.append((rest, step * self._digits[-1][1]))
        return result

    def _break(self, message: str, help: str, stops: bool = False) -> None:
        """Record a failed condition; raise LayoutError E0674 if the C++ ``stops``."""
        fault = _Fault(message, help)
        if stops:
            raise self._refused(fault)
        self._uneven = self._uneven or fault

    def _fault(self) -> _Fault | None:
        """Return the fault where the parts' steps may carry from one digit into the next; None if they never do.

        If they never do, each digit is the sum of the parts' contributions, and the composition is linear.
        """
        steps = [part.step for part in self._parts]
        for digit, (size, _) in enumerate(self._digits[:-1]):
            whole = [_signed(abs(step) // size, step) for step in steps]
            inside = [step - size * quotient for step, quotient in zip(steps, whole, strict=True)]
            for sign in (1, -1):
                up = [max(sign * step, 0) for step in inside]
                most = sum((part.extent - 1) * step for part, step in zip(self._parts, up, strict=True))
                if most >= size:
                    message = f"the right layout's modes add up to {most} in mode {digit} of the left layout"
                    help = f"they may add up to {size - 1} there: more would carry"
                    return _Fault(f"{message}, of extent {size}", help, self._overflow(up, whole, size))
            signs = [{step > 0 for step in part if step} for part in (inside, whole)]
            if all(signs) and len(signs[0] | signs[1]) == 2:
                message = f"the right layout's strides of both signs meet in mode {digit} of the left layout"
                return _Fault(message, f"strides of one sign, or multiples of {size}, would do")
            steps = whole
        return None

    def _overflow(self, steps: list[int], whole: list[int], size: int) -> int:
        """Return a place where the steps add up to the size or more, using parts that step little in later digits."""
        place, missing = 0, size
        for _, step, part in sorted(zip(map(abs, whole), steps, self._parts, strict=True), key=lambda each: each[0]):
            if step and missing > 0:
                count = min(part.extent - 1, -(-missing // step))
                place += count * part.place
                missing -= count * step
        return place

    def _suspects(self, fault: _Fault | None) -> Iterator[int]:
        """Yield places that may reveal a wrong result: at a carry, for each part, for all parts, for pairs."""
        if fault:
            yield fault.place
        for part in self._parts:
            yield part.place
            yield part.place * (part.extent - 1)
        for sign in (1, -1):
            yield sum(part.place * (part.extent - 1) for part in self._parts if sign * part.step > 0)
        few = self._parts[:_MOST_PAIRED]
        for one, other in combinations(few, 2):
            yield one.place + other.place
        for one, other in permutations(few, 2):
            yield one.place * (one.extent - 1) + other.place

    def _refused(self, fault: _Fault, **operands: object) -> LayoutError:
        digits = self._make(*flat_trees(self._digits))  # the message counts the modes of this layout
        named = {} if digits == self._left else {"left, coalesced": digits}
        return refused("E0674", fault.message, fault.help, left=self._left, **named, right=self._right, **operands)


def _signed(number: int, sign: int) -> int:
    return number if sign > 0 else -number
