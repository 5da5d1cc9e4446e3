"""The algebra of layouts: concatenation, composition, complement and inverses, with the results of CuTe's C++.

Concatenation puts layouts side by side, each with coordinates of its own; composition feeds one's indices to another
as coordinates. ``((5,1):(16,4),(2,2):(80,4))`` is the concatenation of two layouts, and no composition.

Where CuTe leaves a condition unchecked and gives a layout that is not what the operation promises, these functions
refuse: LayoutError E0674 says which condition failed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import TypeAlias, overload

from evt.layout import tree
from evt.layout.layout import Layout
from evt.layout.refused import refused
from evt.layout.swizzle import ComposedLayout, Swizzle, carried, merged
from evt.layout.tree import IntTuple

#: What may be composed with a layout from the right: a layout; or by mode: extents, layouts, and tuples of them.
Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...]"
_Pairs: TypeAlias = "list[tuple[int, int]]"


def concatenate(*layouts: Layout) -> Layout:
    """The layout whose modes these are: ``concatenate(a, b)(i, j) == a(i) + b(j)``."""
    return Layout(tuple(each.shape for each in layouts), tuple(each.stride for each in layouts))


def coalesce(layout: Layout, profile: IntTuple = 0) -> Layout:
    """The same function of integers with the fewest modes, depth 1 at most; with a profile, at each of its leaves.

    Raises LayoutError E0674 for a profile with more modes than the layout.
    """
    return _by_profile(layout, profile, lambda mode: _layout(_coalesced(mode.leaves)))


def filtered(layout: Layout, profile: IntTuple = 0) -> Layout:
    """Coalesced, without modes of stride 0 and of extent 1; with a profile, at each of its leaves."""
    return _by_profile(layout, profile, lambda mode: _layout(_filtered(mode)))


@overload
def compose(a: Layout, b: Tiler) -> Layout: ...
@overload
def compose(a: Swizzle, b: Swizzle) -> Swizzle: ...
@overload
def compose(a: Swizzle, b: Layout | ComposedLayout) -> ComposedLayout: ...
@overload
def compose(a: Layout, b: Swizzle) -> ComposedLayout: ...
@overload
def compose(a: ComposedLayout, b: Tiler) -> ComposedLayout: ...
def compose(
    a: Layout | Swizzle | ComposedLayout, b: Tiler | Swizzle | ComposedLayout
) -> Layout | Swizzle | ComposedLayout:
    """``compose(a, b)(i) == a(b(i))``, in the shape of ``b``. A tuple composes mode by mode and drops further modes.

    Raises LayoutError E0674 where ``b`` does not step evenly through the modes of ``a``. Two conditions are CuTe's: a
    stride is a multiple of the extent it steps over, or less; an extent splits evenly where it enters the next mode.
    One is ours: no step may carry from a mode of ``a`` into the next, neither of one mode of ``b`` whose stride does
    not divide ``a``'s extent, nor of several that add up. CuTe gives ``(2,2):(4,12)`` for ``(6,4):(1,12) o 4:4``,
    which maps 2 to 12 instead of 14. An extent of 1 meets every condition, where CuTe looks at its stride.

    Swizzles compose where they make one, and a layout with a swizzle where it carries that through.
    """
    if isinstance(b, ComposedLayout):
        if not isinstance(a, Swizzle):
            raise refused("E0674", "a layout does not compose with a swizzled one", "compose it with a swizzle", left=a)
        return ComposedLayout(merged(a, b.swizzle), b.offset, b.layout)
    if isinstance(a, Swizzle):
        if isinstance(b, Swizzle):
            return merged(a, b)
        if not isinstance(b, Layout):
            raise refused("E0674", f"{a} has no modes to compose with a tuple", "compose it with a layout")
        return ComposedLayout(a, 0, b)
    if isinstance(b, Swizzle):
        if isinstance(a, ComposedLayout):
            raise refused("E0674", f"a swizzled layout does not compose with {b}", "compose its layout", left=a)
        return carried(a, b)
    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.swizzle, a.offset, compose(a.layout, b))
    if isinstance(b, tuple):
        require_modes(a, b)
        return concatenate(*map(compose, a.modes, b))
    return _Composition(a, b if isinstance(b, Layout) else Layout(b)).result()


def complement(layout: Layout, cotarget: IntTuple | None = None) -> Layout:
    """The ordered layout that repeats this one up to ``cotarget`` indices (by default its own cosize).

    Its indices besides 0 are none of the layout's, and ``concatenate(layout, complement)`` is injective when the
    layout is so, leaving modes of stride 0 aside. Raises LayoutError E0674 for negative strides, and for modes that
    begin inside the span of another.
    """
    modes = _filtered(layout)
    target = _layout(modes).cosize if cotarget is None else tree.tree(cotarget)
    if min(tree.leaves(target)) < 1:
        raise refused("E0674", f"a complement up to {tree.text(target)} indices", "ask for 1 or more", layout=layout)
    result: _Pairs = []
    last = 1
    for extent, stride in sorted((pair for pair in modes if pair[1]), key=lambda pair: pair[1]):
        if stride < 0:
            message = f"the complement of the negative stride {stride} is not defined"
            raise refused("E0674", message, "reverse the mode first", layout=layout)
        if stride < last:
            message = f"the mode {extent}:{stride} begins inside the span of the nearer modes, which is {last}"
            raise refused("E0674", message, f"a stride of {last} or more would do", layout=layout)
        result.append((stride // last, last))
        last = stride * extent
    return _layout(_coalesced([*result, (_blocks(target, last), last)]))


def right_inverse(layout: Layout) -> Layout:
    """The longest layout R with ``layout(R(i)) == i`` for all of R's i: over the modes that meet from stride 1 on."""
    result: _Pairs = [(1, 0)]
    reached = 1
    for (extent, stride), place in _by_stride(_coalesced(layout.leaves)):
        if stride == reached:
            result.append((extent, place))
            reached = extent * stride
    return _layout(_coalesced(result))


def left_inverse(layout: Layout) -> Layout:
    """A layout R with ``R(layout(i)) == i`` for all i, when the layout is injective.

    Else it is a quasi-inverse, as in CuTe 4: ``layout(R(layout(i))) == layout(i)`` where modes of stride 0 alone make
    the layout repeat. Raises LayoutError E0674 for negative strides, and for strides that do not divide each other.
    """
    shape, strides = [], [0]
    reached, last = 1, 1
    for (extent, stride), place in _by_stride(_coalesced(layout.leaves)):
        if stride < 0:
            message = f"the left inverse of the negative stride {stride} is not defined"
            raise refused("E0674", message, "reverse the mode first", layout=layout)
        last = extent
        if stride:
            if stride % reached:
                message = f"the stride {stride} is no multiple of {reached}, the next smaller stride"
                raise refused("E0674", message, "a left inverse needs strides that divide each other", layout=layout)
            shape.append(stride // reached)
            strides.append(place)
            reached = stride
    return _layout(_coalesced(list(zip([*shape, last], strides, strict=True))))


def require_modes(layout: Layout, profile: tuple[object, ...]) -> None:
    """Raises LayoutError E0674 for a tuple that has more parts than the layout has modes."""
    if len(profile) > layout.rank:
        message = f"{len(profile)} modes were given for a layout of {layout.rank}"
        raise refused("E0674", message, f"give {layout.rank} or fewer", layout=layout)


class _Composition:
    """One composition A o B of layouts.

    A is a number of mixed radix: its extents are the digits, the last without bound. Each mode of B is split where
    it steps from one digit to the next. That is exact when no digit overflows, which ``_sums`` keeps account of.
    """

    def __init__(self, a: Layout, b: Layout) -> None:
        self._a, self._b = a, b
        self._digits = _unbounded(a)
        self._sums = [0] * len(self._digits)

    def result(self) -> Layout:
        signs = {stride > 0 for extent, stride in self._b.leaves if extent > 1 and stride}
        if len(signs) == 2 and len(self._digits) > 1:
            message = "the right layout has strides of both signs, and the left layout several modes"
            raise self._refused(message, "make the strides of the right layout all positive or all negative")
        result = self._tree(self._b.shape, self._b.stride)
        for place, (most, (extent, _)) in enumerate(zip(self._sums, self._digits[:-1], strict=False)):
            if most >= extent:
                message = f"the right layout's modes add up to {most} in mode {place} of the left, of extent {extent}"
                raise self._refused(message, f"they may add up to {extent - 1} there: more would carry")
        return result

    def _tree(self, shape: IntTuple, stride: IntTuple) -> Layout:
        if isinstance(shape, tuple):
            return concatenate(*map(self._tree, shape, tree.modes(stride)))
        assert not isinstance(stride, tuple)
        return Layout(shape, 0) if stride == 0 else self._mode(shape, stride)

    def _mode(self, extent: int, stride: int) -> Layout:
        """The composition of A with ``extent:stride``."""
        if len(self._digits) == 1:
            return Layout(extent, stride * self._digits[0][1])
        sign, step = (-1, -stride) if stride < 0 else (1, stride)
        single, rest = extent == 1, extent
        result: _Pairs = []
        for place, (size, distance) in enumerate(self._digits[:-1]):
            if step % size and step >= size and not single:
                message = f"the stride {step} is no multiple of the extent {size} of mode {place} of the left layout"
                raise self._refused(message, f"a multiple of {size}, or less than {size}, would do")
            taken, following = -(-size // step), -(-step // size)
            if taken > 1 and rest > 1:
                part = min(taken, rest)
                if rest % part:
                    message = f"the extent {rest} is no multiple of {part}, what mode {place} of the left layout takes"
                    raise self._refused(message, f"an extent that divides {part}, or a multiple of it, would do")
                if rest > part and taken * step != size:
                    message = f"the stride {step} does not divide the extent {size} of mode {place} of the left layout"
                    raise self._refused(
                        message, f"an extent of {part} or less, or a stride that divides {size}, would do"
                    )
                result.append((part, sign * step * distance))
                self._sums[place] += (part - 1) * step
                rest //= part
            step = following
        if rest > 1 or not result:
            result.append((rest, sign * step * self._digits[-1][1]))
        return _layout(result)

    def _refused(self, message: str, help: str) -> Exception:
        return refused("E0674", message, help, left=self._a, right=self._b)


def _by_profile(layout: Layout, profile: IntTuple, operation: Callable[[Layout], Layout]) -> Layout:
    if not isinstance(profile, tuple):
        return operation(layout)
    require_modes(layout, profile)
    modes = layout.modes
    parts = (_by_profile(mode, part, operation) for mode, part in zip(modes, profile, strict=False))
    return concatenate(*parts, *modes[len(profile) :])


def _coalesced(leaves: tuple[tuple[int, int], ...] | _Pairs) -> _Pairs:
    """Without extents of 1, neighbours joined that one stride walks over."""
    result: _Pairs = []
    for extent, stride in leaves:
        if extent == 1:
            continue
        if result and result[-1][0] * result[-1][1] == stride:
            result[-1] = (result[-1][0] * extent, result[-1][1])
        else:
            result.append((extent, stride))
    return result or [(1, 0)]


def _unbounded(layout: Layout) -> _Pairs:
    """Coalesced, but the same function beyond the extents too: the last mode keeps its stride."""
    *others, (extent, stride) = layout.leaves
    return _coalesced([*others, (max(extent, 2), stride)])


def _filtered(layout: Layout) -> _Pairs:
    return _coalesced([(extent if stride else 1, stride) for extent, stride in layout.leaves])


def _layout(pairs: _Pairs) -> Layout:
    """A flat layout; one mode alone is no tuple."""
    if len(pairs) == 1:
        return Layout(*pairs[0])
    return Layout(tuple(extent for extent, _ in pairs), tuple(stride for _, stride in pairs))


def _by_stride(modes: _Pairs) -> list[tuple[tuple[int, int], int]]:
    """The modes by ascending stride, each with the place of its second coordinate among the layout's coordinates."""
    places = accumulate((extent for extent, _ in modes), lambda place, extent: place * extent, initial=1)
    return sorted(zip(modes, places, strict=False), key=lambda each: each[0][1])


def _blocks(target: IntTuple, length: int) -> int:
    """How many blocks cover the target; as in CuTe a tuple is covered part by part."""
    blocks = 1
    for part in tree.leaves(target):
        blocks *= -(-part // length)
        length = -(-length // part)
    return blocks
