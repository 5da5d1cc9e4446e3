"""The operations of ``evt.layout``: their names in C++, random arguments for them, and their laws."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import evt.layout as room
from evt.layout import ComposedLayout, Layout, Swizzle
from tests.support.layout_laws import (
    law_of_blocked,
    law_of_coalesce,
    law_of_compact,
    law_of_complement,
    law_of_compose,
    law_of_concatenate,
    law_of_coordinate,
    law_of_cosize,
    law_of_default,
    law_of_depth,
    law_of_divide,
    law_of_filtered,
    law_of_index,
    law_of_left_inverse,
    law_of_merged,
    law_of_product,
    law_of_regrouped,
    law_of_right_inverse,
    law_of_size,
    law_of_swizzle,
    through_swizzle,
)
from tests.support.layouts import (
    random_composed,
    random_coordinate,
    random_cotarget,
    random_layout,
    random_profile,
    random_stepper,
    random_swizzle,
    random_swizzles,
    random_tiler,
)

Draw = Callable[[random.Random], tuple[Any, ...]]


@dataclass(frozen=True)
class Operation:
    """An operation: ours, CuTe's (a name, or a form), its arguments, and its law, of the arguments and the result."""

    ours: Callable[..., Any]
    cute: str
    draw: Draw
    law: Callable[..., str]


def one(rng: random.Random) -> tuple[Any, ...]:
    return (random_layout(rng),)


def two(rng: random.Random) -> tuple[Any, ...]:
    return random_layout(rng), random_layout(rng)


def a_few(rng: random.Random) -> tuple[Any, ...]:
    return tuple(random_layout(rng, 12) for _ in range(rng.randrange(1, 4)))


def two_small(rng: random.Random) -> tuple[Any, ...]:
    return random_layout(rng, 24), random_layout(rng, 24)


def stepped(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, random_stepper(rng, layout)


def tiled(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, random_tiler(rng, layout)


def profiled(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, random_profile(rng, layout.shape)


def targeted(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, random_cotarget(rng, layout)


def swizzled(draw: Draw) -> Draw:
    """Return the arguments with a swizzle on the first, whose layout has powers of two half of the time."""

    def drawn(rng: random.Random) -> tuple[Any, ...]:
        layout, *others = draw(rng)
        composed = random_composed(rng)
        return ComposedLayout(composed.swizzle, composed.offset, layout), *others

    return drawn


def composed(rng: random.Random) -> tuple[Any, ...]:
    return (random_composed(rng),)


def placed(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, rng.randrange(-2 * layout.size, 3 * layout.size)


def at_coordinate(rng: random.Random) -> tuple[Any, ...]:
    layout = random_layout(rng)
    return layout, random_coordinate(rng, layout.shape)


def operations() -> dict[str, Operation]:
    """Every operation that CuTe has, in the forms of its arguments."""
    table = {
        "coalesce": Operation(room.coalesce, "coalesce", profiled, law_of_coalesce),
        "filtered": Operation(room.filtered, "filter", profiled, law_of_filtered),
        "complement": Operation(room.complement, "complement", targeted, law_of_complement),
        "complement up to the cosize": Operation(room.complement, "complement", one, law_of_default(law_of_complement)),
        "right_inverse": Operation(room.right_inverse, "right_inverse", one, law_of_right_inverse),
        "left_inverse": Operation(room.left_inverse, "left_inverse", one, law_of_left_inverse),
        "compose": Operation(room.compose, "composition", two, law_of_compose),
        "compose with steps": Operation(room.compose, "composition", stepped, law_of_compose),
        "compose with a tiler": Operation(room.compose, "composition", tiled, law_of_compose),
        "logical_divide by steps": Operation(room.logical_divide, "logical_divide", stepped, law_of_divide),
        "logical_product of two": Operation(room.logical_product, "logical_product", two_small, law_of_product),
        "blocked_product": Operation(room.blocked_product, "blocked_product", two_small, law_of_blocked),
        "raked_product": Operation(room.raked_product, "raked_product", two_small, partial(law_of_blocked, raked=True)),
        "logical_divide": Operation(room.logical_divide, "logical_divide", tiled, law_of_divide),
        "logical_product": Operation(room.logical_product, "logical_product", tiled, law_of_product),
    }
    for kind, operation in itertools.product(("zipped", "tiled", "flat"), ("divide", "product")):
        name = f"{kind}_{operation}"
        table[name] = Operation(getattr(room, name), name, tiled, partial(law_of_regrouped, kind, operation))
    for name in ("coalesce", "filtered", "compose with a tiler", "zipped_divide", "logical_product", "blocked_product"):
        plain = table[name]
        through = Operation(plain.ours, plain.cute, swizzled(plain.draw), through_swizzle(plain.law))
        table[f"{name} through a swizzle"] = through
    with_swizzle = {
        "complement": (lambda rng: (*composed(rng), random_cotarget(rng, random_layout(rng))), law_of_complement),
        "right_inverse": (composed, law_of_right_inverse),
        "left_inverse": (composed, law_of_left_inverse),
    }
    for name, (draw, law) in with_swizzle.items():
        table[f"{name} through a swizzle"] = Operation(getattr(room, name), name, draw, law)
    pairs: dict[str, Draw] = {
        "a layout and a swizzle": lambda rng: (random_composed(rng).layout, random_swizzle(rng)),
        "a layout and a swizzled one": lambda rng: (random_composed(rng).layout, random_composed(rng)),
        "a swizzled layout and a swizzle": lambda rng: (random_composed(rng), random_swizzle(rng)),
        "two swizzled layouts": lambda rng: (random_composed(rng), random_composed(rng)),
    }
    for name, draw in pairs.items():
        table[f"compose {name}"] = Operation(room.compose, "composition", draw, law_of_compose)
    table["concatenate"] = Operation(room.concatenate, "make_layout", a_few, law_of_concatenate)
    table["compact"] = Operation(Layout, "make_layout", lambda rng: (random_layout(rng).shape,), law_of_compact)
    table["swizzle"] = Operation(
        Swizzle.__call__, "{0}({1})", lambda rng: (random_swizzle(rng), rng.randrange(-300, 1000)), law_of_swizzle
    )
    table["size"] = Operation(lambda layout: layout.size, "size", one, law_of_size)
    table["depth"] = Operation(lambda layout: layout.depth, "depth", one, law_of_depth)
    table["index"] = Operation(Layout.__call__, "{0}({1})", at_coordinate, law_of_index)
    through = Operation(ComposedLayout.__call__, "{0}({1})", swizzled(at_coordinate), law_of_index)
    table["index through a swizzle"] = through
    table["coordinate"] = Operation(Layout.coordinate, "idx2crd({1}, shape({0}))", placed, law_of_coordinate)
    table["cosize"] = Operation(lambda layout: layout.cosize, "cosize", one, law_of_cosize)
    table["compose two swizzles"] = Operation(room.compose, "composition", random_swizzles, law_of_merged)
    return table
