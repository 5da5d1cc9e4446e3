"""A layout: the function from coordinates to indices that a shape and its strides define."""

from __future__ import annotations

from dataclasses import dataclass

from evt.layout import tree
from evt.layout.refused import refused
from evt.layout.tree import IntTuple


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout:
    """``shape:stride``, two congruent trees; a coordinate's index is its inner product with the strides.

    Without a stride the layout is compact, the leftmost extent nearest (as CuTe's ``make_layout``). Extents are
    positive, strides any integers. Raises LayoutError E0672 for other shapes and strides.
    """

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: IntTuple, stride: IntTuple | None = None) -> None:
        shape = tree.tree(shape)
        stride = tree.compact(shape) if stride is None else tree.tree(stride)
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
        """The layout of a text: ``shape:stride``, a shape alone, or a tuple of layouts, their concatenation.

        Raises LayoutError E0671 for other texts, among them those of swizzles, which ``evt.layout.parse`` reads.
        """
        from evt.layout.parse import parse_layout

        return parse_layout(text)

    @property
    def size(self) -> int:
        """How many coordinates there are."""
        return tree.size(self.shape)

    @property
    def rank(self) -> int:
        return len(tree.modes(self.shape))

    @property
    def depth(self) -> int:
        return tree.depth(self.shape)

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The top-level parts, whose concatenation this is."""
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
        """How many indices there are from the lowest to the highest: ``1 + sum (extent - 1) * |stride|``.

        It is CuTe's. The memory that a pointer to index 0 needs is that from ``bounds[0]`` to ``bounds[1]``: without
        negative strides, this many elements from the pointer on.
        """
        low, high = self.bounds
        return high - low + 1

    @property
    def naive_cosize(self) -> int:
        """``L(size - 1) + 1``, which is the cosize of a layout without negative strides only."""
        return self(self.size - 1) + 1

    def __call__(self, *coordinate: IntTuple) -> int:
        """The index of a coordinate: of one integer, or of one integer or tuple for each mode.

        An integer in the place of a tuple is that place in its colexicographic order. As in CuTe, beyond the extents
        the last leaf runs on, and ``L(-i) = -L(i)``. Raises LayoutError E0673 for a coordinate of another form.
        """
        given = tree.tree(coordinate[0] if len(coordinate) == 1 else coordinate)
        return self._index(given, self.shape, self.stride)

    def coordinate(self, place: int) -> IntTuple:
        """The coordinate at a place in the colexicographic order, congruent with the shape."""
        return tree.coordinate(place, self.shape)

    def __getitem__(self, mode: int) -> Layout:
        """A mode. Raises IndexError."""
        return self.modes[mode]

    def __matmul__(self, other: Layout) -> Layout:
        """``(A @ B)(i) == A(B(i))``: see :func:`evt.layout.compose`."""
        from evt.layout.algebra import compose

        return compose(self, other)

    def __str__(self) -> str:
        return f"{tree.text(self.shape)}:{tree.text(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout.parse({str(self)!r})"

    def concatenated(self) -> str:
        """The other text of this layout, ``(L0,L1,...)``: its modes, of which it is the concatenation."""
        return f"({','.join(map(str, self.modes))})" if isinstance(self.shape, tuple) else str(self)

    def _index(self, coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
        if not isinstance(coordinate, tuple):
            pairs = zip(tree.leaves(tree.coordinate(coordinate, shape)), tree.leaves(stride), strict=True)
            return sum(place * step for place, step in pairs)
        parts, steps = tree.modes(shape), tree.modes(stride)
        if not isinstance(shape, tuple) or len(parts) != len(coordinate):
            message = f"the coordinate {tree.text(coordinate)} does not fit the shape {tree.text(shape)}"
            wanted = "an integer" if not isinstance(shape, tuple) else f"an integer, or {len(parts)} coordinates"
            raise refused("E0673", message, f"pass {wanted}", layout=self)
        return sum(map(self._index, coordinate, parts, steps))
