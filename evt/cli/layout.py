"""``evt layout``: a layout's properties, its grid, and the results of layout algebra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from evt.cli.output import json_option, json_text, output_option, write
from evt.cli.sections import Command

if TYPE_CHECKING:
    from evt.layout import ComposedLayout, Layout

#: The widest grid, in characters, that a terminal shows without wrapping; ``--svg`` draws wider ones.
_MOST_COLUMNS = 32
#: The function of each operation's option.
_OPERATIONS = {
    "coalesce": "coalesce",
    "compose": "compose",
    "divide": "zipped_divide",
    "product": "logical_product",
    "concatenate": "concatenate",
    "complement": "complement",
    "right_inverse": "right_inverse",
    "left_inverse": "left_inverse",
}


@click.command("layout", cls=Command, epilog="Example: evt layout '(8,8):(8,1)' --divide '<2,4>'")
@click.argument("layout", metavar="LAYOUT")
@click.option("--coalesce", is_flag=True, help="The same function with the fewest modes.")
@click.option("--compose", metavar="B", help="The composition: i -> LAYOUT(B(i)).")
@click.option("--concatenate", metavar="B", help="The concatenation: (i, j) -> LAYOUT(i) + B(j).")
@click.option("--divide", metavar="B", help="LAYOUT cut into tiles: ((tile),(rest)).")
@click.option("--product", metavar="B", help="LAYOUT repeated as a tile: (tile,copies).")
@click.option(
    "--complement", type=click.IntRange(1), metavar="N", help="The layout that repeats LAYOUT up to N indices."
)
@click.option("--right-inverse", is_flag=True, help="R with LAYOUT(R(i)) = i.")
@click.option("--left-inverse", is_flag=True, help="R with R(LAYOUT(i)) = i.")
@click.option("--svg", is_flag=True, help="Print only the drawing, as SVG.")
@click.option(
    "--banks", type=click.IntRange(1, 16), metavar="BYTES", help="Colour by bank, for elements of this size in bytes."
)
@json_option
@output_option("Write the result to this file instead of printing it.")
def command(layout: str, svg: bool, banks: int | None, json: bool, output: str | None, **operations: Any) -> None:
    """Print a layout's properties, and draw it.

    LAYOUT is SHAPE:STRIDE, as in (4,(2,2)):(8,(1,4)). It may also be a shape alone (compact, the first extent nearest),
    or a tuple of layouts, their concatenation. A swizzle and an offset may precede it: Sw<3,3,3> o 0 o (8,64). B is a
    layout, or an extent or a layout for each mode: <4:2,8>. Give at most one operation.
    """
    asked = {name: value for name, value in operations.items() if value not in (None, False)}
    if len(asked) > 1:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
        raise click.UsageError(f"Give one operation at a time, not {names}.")
    if svg and json:
        raise click.UsageError("Give --svg or --json, not both.")
    if banks is not None and not svg:
        raise click.UsageError("--banks colours a drawing: give --svg too.")
    from evt.layout import draw_svg

    result = _read(layout)
    for name, value in asked.items():
        result = _apply(name, value, result)
    if svg:
        write(output, draw_svg(result, banks))
        return
    facts = _facts(result)
    write(output, (json_text(facts) if json else _text(result, facts)) + "\n")


def _read(text: str) -> Layout | ComposedLayout:
    """Return the layout of a text.

    For a swizzle without a layout, return the swizzled layout of the indices whose bits the swizzle reads and changes.
    """
    from evt.layout import ComposedLayout, Layout, Swizzle, parse

    given = parse(text)
    if not isinstance(given, Swizzle):
        return given
    return ComposedLayout(given, 0, Layout(1 << (given.bits + given.base + abs(given.shift))))


def _apply(name: str, value: str | int, layout: Layout | ComposedLayout) -> Layout | ComposedLayout:
    """Return the result of an operation."""
    import evt.layout as room

    arguments: tuple[Any, ...] = (value,)
    if isinstance(value, bool):
        arguments = ()
    elif isinstance(value, str):
        arguments = (room.Layout.parse(value) if name == "concatenate" else room.parse_tiler(value),)
    result: Layout | ComposedLayout = getattr(room, _OPERATIONS[name])(layout, *arguments)
    return result


def _facts(layout: Layout | ComposedLayout) -> dict[str, Any]:
    from evt.layout import Layout, is_contiguous, is_injective, naive_cosize_fault

    return {
        "ok": True,
        "layout": str(layout),
        "shape": layout.shape,
        "stride": layout.stride if isinstance(layout, Layout) else None,
        "size": layout.size,
        "bounds": layout.bounds,
        "cosize": layout.cosize,
        "inner_cosize": layout.cosize if isinstance(layout, Layout) else layout.layout.cosize,
        "naive_cosize": layout.naive_cosize,
        "naive_cosize_fault": naive_cosize_fault(layout),
        "injective": is_injective(layout),
        "contiguous": is_contiguous(layout),
    }


def _text(layout: Layout | ComposedLayout, facts: dict[str, Any]) -> str:
    low, high = facts["bounds"]
    inner = facts["inner_cosize"]
    fault = facts["naive_cosize_fault"]
    lines = [
        facts["layout"],
        f"  size          {facts['size']}",
        f"  cosize        {facts['cosize']}, from {low} to {high}",
        *([f"  CuTe's        {inner}, of the layout without its swizzle"] if inner != facts["cosize"] else []),
        f"  naive cosize  {facts['naive_cosize']}" + (f": wrong, {fault}" if fault else ""),
        f"  injective     {'yes' if facts['injective'] else 'no'}",
        f"  contiguous    {'yes' if facts['contiguous'] else 'no'}",
    ]
    return "\n".join([*lines, "", _grid(layout)])


def _grid(layout: Layout | ComposedLayout) -> str:
    from evt.layout import LayoutError, draw_text, grid

    try:
        columns = len(grid(layout)[0])
    except LayoutError as error:
        return f"not drawn: {error.diagnostics[0].message}"
    if columns > _MOST_COLUMNS:
        return f"not drawn: {columns} columns; --svg draws them"
    return draw_text(layout)
