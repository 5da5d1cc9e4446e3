"""Which headers of ours a kernel needs, and their text with that of the headers they include."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from evt import resources
from evt.emission import translate
from evt.emission.text import FunctorText
from evt.ir.node import PLACES
from evt.plan import Plan
from evt.plan.epilogue.computes import BlockReduce, FirstColumns, PairInterleave, PairMember, PlaceKeys
from evt.plan.epilogue.loads import (
    Auxiliary,
    Coordinate,
    Gather,
    HalfLoad,
    MaskLoad,
    Packed,
    RandomNumbers,
    RowBroadcast,
    ScalarBroadcast,
    VectorBroadcast,
)
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access, Size
from evt.plan.epilogue.writes import BlockStore, HalfStore, MaskStore, Reduction, Scatter, VectorStore
from evt.plan.geometry import convolution, depthwise, halo, halo_schedule
from evt.plan.plan import (
    Convolution2x,
    Convolution3x,
    DepthwiseConvolution,
    HaloConvolution,
    HaloProduct,
    MatrixProduct,
    StockFusion,
    StockOperator,
)

#: Where our nodes are: what follows the family's part of the name of a header in codegen/include/evt.
_PLACES: dict[type, str] = {
    Coordinate: "",
    RandomNumbers: "_philox",
    Reduction: "_reduce",
    VectorStore: "_vector_store",
    **dict.fromkeys((MaskLoad, MaskStore), "_mask"),
    **dict.fromkeys((PairMember, HalfLoad, HalfStore), "_pair"),
    PairInterleave: "_interleave",
    **dict.fromkeys((BlockReduce, BlockStore), "_block"),
    **dict.fromkeys((Gather, Scatter), "_indexed"),
    FirstColumns: "_first",
    PlaceKeys: "_key",
}
#: Places that share one header on sm100.
_IN_VISITORS_SM100 = frozenset({"", "_mask", "_vector", "_pair", "_block"})


def needed(plan: Plan, functors: Iterable[FunctorText]) -> list[str]:
    """Return the headers of a kernel, without those that they include."""
    found = ["entry.hpp", *_of_mainloop(plan), *_of_epilogue(plan), *["pad.hpp"] * bool(plan.copies)]
    found += ["pdl.hpp"] * plan.with_pdl
    found += ["finish_compute.hpp"] * any(result.region for result in plan.results)
    found += ["finish_place.hpp"] * any(node.kind in PLACES for node in plan.reductions)
    found += ["mainloop_2x.hpp"] * bool(plan.work)
    statements = [statement.expression for functor in functors for statement in functor.statements]
    found += ["functions.hpp"] * (bool(plan.functions) or any("evt::fn::" in each for each in statements))
    found += ["narrow.hpp"] * any("evt::narrow(" in each for each in statements)
    found += ["product.hpp"] * any("evt::product(" in each for each in statements)
    found += ["functions_fast.hpp"] * any("evt::fn::fast::" in each for each in statements)
    return found


def _of_mainloop(plan: Plan) -> list[str]:
    match plan.mainloop:
        case Convolution2x():
            stock = isinstance(plan.epilogue, StockOperator)
            return ["convolution_2x_stock.hpp" if stock else "convolution_2x.hpp"]
        case Convolution3x():
            return ["convolution_3x.hpp"]
        case HaloConvolution() | HaloProduct():
            return ["halo.hpp"]
        case DepthwiseConvolution():
            return ["depthwise.hpp"]
        case MatrixProduct():
            return []


def _of_epilogue(plan: Plan) -> list[str]:
    """Return the headers of the collective and of our nodes."""
    stock = isinstance(plan.epilogue, StockOperator | StockFusion)
    match plan.family:
        case "2x":
            return [] if stock else _of_nodes("2x", plan.steps)
        case "3x":
            return ["restage.hpp", *([] if stock else _of_nodes("3x", plan.steps))]
        case "sm100":
            return ["restage_sm100.hpp", *([] if stock else _of_sm100(plan))]
        case "sm120":
            return ["auxiliary_sm120.hpp", "restage.hpp", *([] if stock else _of_nodes("3x", plan.steps))]
        case "own":
            return ["fragment.hpp", *_of_fragment(plan)]
        case "3x_grouped":
            wrapped = [node for node in plan.steps if isinstance(node, Packed)]
            others = [node for node in plan.steps if not isinstance(node, Packed)]
            found = _of_nodes("3x", (*others, *wrapped))
            sizes = any(isinstance(node, ScalarBroadcast) and isinstance(node.value, Size) for node in plan.steps)
            found += ["visitors_3x_grouped.hpp", *["visitors_3x_grouped_size.hpp"] * sizes]
            return ["grouped.hpp", "restage_grouped.hpp", *found]


def _of_nodes(family: str, nodes: tuple[Step, ...]) -> list[str]:
    found = [f"visitors_{family}.hpp", *(f"visitors_{family}{place}.hpp" for place in _places(nodes, family))]
    found += ["finish.hpp"] * any(isinstance(node, Reduction) for node in nodes)
    strided = any(isinstance(node, Auxiliary) and node.access is Access.STRIDED for node in nodes)
    found += ["visitor_strided.hpp"] * strided
    return found


def _of_fragment(plan: Plan) -> list[str]:
    """Return the headers of what an epilogue on a fragment has besides elements; place.hpp makes keys."""
    found = ["place.hpp" if place == "_key" else f"fragment{place}.hpp" for place in _places(plan.steps) if place]
    return found + ["finish.hpp"] * bool(plan.reductions)


def _of_sm100(plan: Plan) -> list[str]:
    """Return the headers of our nodes that know where their elements are, and of a collective that stores no D."""
    places = _places(plan.steps)
    found = ["unstored_sm100.hpp"] * (plan.destination is None)
    found.append("visitors_sm100.hpp" if places else "visitors_3x.hpp")
    found += [f"visitors_sm100{place}.hpp" for place in places if place not in _IN_VISITORS_SM100]
    found += ["finish.hpp"] * bool(plan.reductions)
    found += ["visitors_sm100_store.hpp"] * any(isinstance(node, Packed) for node in plan.steps)
    return found


def _places(nodes: tuple[Step, ...], family: str = "") -> list[str]:
    """Return where our own nodes are, each place once."""
    found = [_place(node, family) for node in nodes]
    return list(dict.fromkeys(place for place in found if place is not None))


def _place(node: Step, family: str) -> str | None:
    if isinstance(node, RandomNumbers) and node.wide:
        return "_philox_wide"
    if isinstance(node, VectorBroadcast) and family == "2x":
        return "_vector" if isinstance(node, RowBroadcast) or node.is_flexible else None
    return _PLACES.get(type(node))


#: Where our headers name the namespace that all of them are in, and what they refer to it by from elsewhere.
_NAMESPACE = re.compile(r"\bnamespace evt\b|(?<![\w:])::evt(?=::)")
#: Headers that are modules of the planner, with their namespaces.
GENERATED = {
    "halo_geometry.hpp": ((convolution, halo, halo_schedule), "halo"),
    "depthwise_geometry.hpp": ((convolution, depthwise), "depthwise"),
}
_GUARD = re.compile(r"^#ifndef (EVT_\w+_HPP)\n#define \1\n|^#endif  // EVT_\w+_HPP\n", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "evt/([\w.]+)"\n', re.MULTILINE)


def pasted(names: Iterable[str], namespace: str) -> list[tuple[str, str]]:
    """Return our headers and those that they include, by name, each after what it includes, as part of a namespace."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for included in _header(name)[0]:
                visit(included)
            order.append(name)

    for name in names:
        visit(name)
    return [(name, placed(_header(name)[1], namespace)) for name in order]


def placed(text: str, namespace: str) -> str:
    """Return C++ of ours with its namespace ``evt`` inside another one."""
    return _NAMESPACE.sub(lambda found: found[0].replace("evt", f"{namespace}::evt"), text)


@cache
def _header(name: str) -> tuple[tuple[str, ...], str]:
    """Return the headers of ours that a header includes, and its text without these lines and its include guard."""
    if name in GENERATED:
        return (), translate.header(*GENERATED[name])
    text = resources.text("codegen", f"include/evt/{name}")
    return tuple(_INCLUDE.findall(text)), _GUARD.sub("", _INCLUDE.sub("", text)).strip()
