"""A layout: the function from coordinates to indices that a shape and its strides define."""

from __future__ import annotations

from dataclasses import dataclass

from evt.layout import tree
from evt.layout.derivation import Derivation
from evt.layout.flat import Pairs, flat_trees
from evt.layout.notation import read_layout
from evt.layout.refused import refused
from evt.layout.tree import IntTuple


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout:
    """``shape:stride``, two congruent trees; a coordinate's index is its inner product with the strides.

    Without a stride the layout is compact, the leftmost extent nearest (CuTe's ``make_layout``). Extents are positive,
    strides any integers. Raise LayoutError E0672 for other shapes and strides.
    """

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: IntTuple, stride: IntTuple | None = None) -> None:
        shape = tree.tree(shape, "an extent")
        stride = tree.tree(tree.compact(shape) if stride is None else stride, "a stride")
        if not tree.congruent(shape, stride):
            message = f"the shape {tree.text(shape)} and the stride {tree.text(stride)} have different forms"
            raise refused("E0672", message, "give one stride for each extent, in the same brackets")
        least = min(tree.leaves(shape))
        if least < 1:
            raise refused("E0672", f"the shape {tree.text(shape)} has the extent {least}", "extents are 1 or more")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "stride", stride)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Return the layout of a text: ``shape:stride``, a shape alone, or a tuple of layouts (a concatenation).

        Raise LayoutError E0671 for other texts. ``evt.layout.parse`` also reads swizzles.
        """
        return cls(*read_layout(text))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return tree.size(self.shape)

    @property
    def rank(self) -> int:
        return len(tree.modes(self.shape))

    @property
    def depth(self) -> int:
        return tree.depth(self.shape)

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The top-level parts, whose concatenation is the layout."""
        return tuple(map(Layout, tree.modes(self.shape), tree.modes(self.stride)))

    @property
    def leaves(self) -> tuple[tuple[int, int], ...]:
        """(extent, stride) of the innermost parts, from left to right."""
        return tuple(zip(tree.leaves(self.shape), tree.leaves(self.stride), strict=True))

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest index."""
        spans = [(extent - 1) * stride for extent, stride in self.leaves]
        return sum(min(span, 0) for span in spans), sum(max(span, 0) for span in spans)

    @property
    def cosize(self) -> int:
        """The number of indices from the lowest to the highest: ``1 + sum (extent - 1) * |stride|``, as in CuTe.

        A tensor whose pointer is at index 0 lies from ``bounds[0]`` to ``bounds[1]``. Without negative strides, it has
        ``cosize`` elements from the pointer on.
        """
        low, high = self.bounds
        return high - low + 1

    @property
    def naive_cosize(self) -> int:
        """``L(size - 1) + 1``, which may differ from the cosize if a stride is negative."""
        return self(self.size - 1) + 1

    def __call__(self, *coordinate: IntTuple) -> int:
        """Return the index of a coordinate: one integer, or an integer or a tuple for each mode.

        An integer instead of a tuple is a place in the colexicographic order. As in CuTe, the last leaf runs on beyond
        its extent, and ``L(-i) = -L(i)``. Raise LayoutError E0673 for a coordinate of another form.
        """
        given = coordinate[0] if len(coordinate) == 1 else coordinate
        if type(given) is int:
            return _index(given, tree.leaves(self.shape), tree.leaves(self.stride))
        return self._index(tree.tree(given, "a coordinate", tree.MAX_COORDINATE), self.shape, self.stride)

    def coordinate(self, place: int) -> IntTuple:
        """Return the coordinate at a place in the colexicographic order, congruent with the shape."""
        return tree.coordinate(tree.integer(place, "a place", largest=tree.MAX_COORDINATE), self.shape)

    def __getitem__(self, mode: int) -> Layout:
        """Return a mode. Raise IndexError for a missing mode, so that iteration over the modes works."""
        return self.modes[mode]

    def __matmul__(self, other: int | Layout) -> Layout:
        """Return the composition, ``(A @ B)(i) == A(B(i))``.

        :func:`evt.layout.compose` also composes with tilers and swizzles. Raise LayoutError as ``compose``.
        """
        return Derivation(self, as_layout(other), Layout).composition()

    def __str__(self) -> str:
        return f"{tree.text(self.shape)}:{tree.text(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout.parse({str(self)!r})"

    def concatenated(self) -> str:
        """Return the layout's other notation, ``(L0,L1,...)``: the concatenation of its modes."""
        return f"({','.join(map(str, self.modes))})" if isinstance(self.shape, tuple) else str(self)

    def _index(self, coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
        if not isinstance(coordinate, tuple):
            return _index(coordinate, tree.leaves(shape), tree.leaves(stride))
        parts, steps = tree.modes(shape), tree.modes(stride)
        if not isinstance(shape, tuple) or len(parts) != len(coordinate):
            message = f"the coordinate {tree.text(coordinate)} does not fit the shape {tree.text(shape)}"
            wanted = "an integer" if not isinstance(shape, tuple) else f"an integer, or {len(parts)} coordinates"
            raise refused("E0673", message, f"pass {wanted}", layout=self)
        return sum(map(self._index, coordinate, parts, steps))


def flat_layout(pairs: Pairs) -> Layout:
    """Return the layout of the pairs; the shape of a single pair is an integer."""
    return Layout(*flat_trees(pairs))


def as_layout(value: object) -> Layout:
    """Return a layout unchanged, and an int n as the layout n:1.

    Raise LayoutError E0674 for a layout with a swizzle, and E0672 for other values.
    """
    if isinstance(value, Layout):
        return value
    if hasattr(value, "__index__") and not isinstance(value, bool):
        return Layout(tree.integer(value, "an extent"))
    inner = getattr(value, "layout", None)
    if isinstance(inner, Layout):
        raise refused("E0674", f"{value} has a swizzle, and a layout without one is expected", f"give {inner} alone")
    name = type(value).__name__
    help = _INSTEAD.get(name, "pass a Layout, or an int n for the layout n:1")
    raise refused("E0672", f"expected a layout, got a value of type {name}", help)


#: Helps for values whose types are easily mistaken for layouts.
_INSTEAD = {
    "str": "evt.layout.parse reads a text",
    "tuple": "Layout(shape) and Layout(shape, stride) make a layout of tuples",
    "list": "Layout(shape) and Layout(shape, stride) make a layout of lists",
    "Swizzle": "compose(swizzle, layout) applies it to a layout",
}


def _index(place: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Return the index of a place among the coordinates of leaves; the index of ``-place`` is the negated index of
    ``place``.
    """
    rest, index = abs(place), 0
    for extent, step in zip(shape[:-1], stride, strict=False):
        rest, inside = divmod(rest, extent)
        index += inside * step
    index += rest * stride[-1]
    return index if place >= 0 else -index
