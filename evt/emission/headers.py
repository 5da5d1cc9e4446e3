"""The headers of evt that a kernel needs, with the headers that they include."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

from evt import resources
from evt.emission import translate
from evt.emission.text import FunctorText
from evt.ir.node import PLACES
from evt.plan import Plan
from evt.plan.epilogue.broadcasts import ColumnBroadcast, ScalarBroadcast, VectorBroadcast
from evt.plan.epilogue.loads import Auxiliary
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Access
from evt.plan.epilogue.writes import MERGED
from evt.plan.gemv import Gemv
from evt.plan.geometry import (
    convolution,
    depthwise,
    gemv,
    halo,
    halo_groups,
    halo_kernel,
    halo_multiplied,
    halo_schedule,
    wgrad,
    wgrad_choice,
)
from evt.plan.joined import joins_bits, loads_bits
from evt.plan.plan import (
    Convolution2x,
    Convolution3x,
    DepthwiseConvolution,
    FilterGradient,
    HaloConvolution,
    MatrixProduct,
    OwnProduct,
)
from evt.plan.stock_epilogue import StockFusion, StockOperator
from evt.plan.target import Family


def needed(plan: Plan, functors: Iterable[FunctorText]) -> list[str]:
    """Return the headers of a kernel, without the headers that they include."""
    found = ["entry.hpp", *_of_mainloop(plan), *_of_epilogue(plan), *["pad.hpp"] * bool(plan.copies)]
    found += ["rows.hpp"] * bool(plan.row_copies)
    found += ["pdl.hpp"] * plan.with_pdl
    found += ["finish_compute.hpp"] * any(result.region for result in plan.results)
    found += ["finish_place.hpp"] * any(node.kind in PLACES for node in plan.reductions)
    found += ["finish_moments.hpp"] * any(node.kind == MERGED for node in plan.reductions)
    found += ["mainloop_2x.hpp"] * bool(plan.work)
    statements = [statement.expression for functor in functors for statement in functor.statements]
    found += ["functions.hpp"] * (bool(plan.functions) or any("evt::fn::" in each for each in statements))
    found += ["quotient.hpp"] * any("evt::quotient(" in each for each in statements)
    found += ["narrow.hpp"] * any("evt::narrow(" in each for each in statements)
    found += ["rounded.hpp"] * any("evt::rounded::" in each for each in statements)
    found += ["functions_eager.hpp"] * any("evt::fn::eager::" in each for each in statements)
    found += ["functions_fast.hpp"] * any("evt::fn::fast::" in each for each in statements)
    return found


def _of_mainloop(plan: Plan) -> list[str]:
    match plan.mainloop:
        case Convolution2x():
            stock = isinstance(plan.epilogue, StockOperator)
            return ["convolution_2x_stock.hpp" if stock else "convolution_2x.hpp"]
        case Convolution3x():
            return ["convolution_3x.hpp"]
        case HaloConvolution(windows=windows) if windows:
            return ["kit/kernel.hpp", "kit/mainloop_windows.hpp"]
        case HaloConvolution(groups="words"):
            return ["kit/kernel.hpp", "kit/mainloop_words.hpp"]
        case HaloConvolution(groups="taps"):
            return ["kit/kernel.hpp", "kit/mainloop_taps.hpp"]
        case HaloConvolution(groups=groups) if groups != "one":
            return ["kit/kernel.hpp", "kit/mainloop_groups.hpp"]
        case HaloConvolution():
            return ["kit/kernel.hpp", "kit/mainloop.hpp"]
        case OwnProduct():
            return ["kit/gemm.hpp"]
        case Gemv():
            return ["kit/gemv.hpp"]
        case DepthwiseConvolution():
            return ["kit/depthwise.hpp"]
        case FilterGradient():
            return ["kit/wgrad.hpp"]
        case MatrixProduct():
            return []


def _of_epilogue(plan: Plan) -> list[str]:
    """Return the headers of the collective, and of the operations of evt in the epilogue."""
    found = list(_COLLECTIVES.get(plan.family, ()))
    if isinstance(plan.epilogue, StockOperator | StockFusion):
        return found
    if plan.family == "sm100" and plan.destination is None:
        found.append("unstored_sm100.hpp")
    operations = _operations(plan)
    if plan.family != "own":
        found.append(f"epilogue/tree_{'2x' if plan.family == '2x' else '3x'}.hpp")
    found += [f"epilogue/lanes_{_LANES[plan.family]}.hpp"] * (bool(operations) or plan.family == "own")
    found += [f"epilogue/{each}.hpp" for each in operations]
    found += ["epilogue/mask_own.hpp"] * (joins_bits(plan) or loads_bits(plan))
    merged = any(step.kind == MERGED for step in plan.reductions)
    found += ["epilogue/moments_own.hpp" if plan.family == "own" else "moments.hpp"] * merged
    return found + ["finish.hpp"] * bool(plan.reductions)


#: The lanes of a family, in codegen/include/evt/epilogue.
_LANES: dict[Family, str] = {
    "own": "own",
    "2x": "2x",
    "3x": "sm90",
    "sm100": "sm100",
    "sm120": "sm90",
    "3x_grouped": "sm90",
}
#: The headers of a family's collective.
_COLLECTIVES: dict[Family, list[str]] = {
    "3x": ["restage.hpp"],
    "sm100": ["restage_sm100.hpp"],
    "sm120": ["auxiliary_sm120.hpp", "restage.hpp"],
    "3x_grouped": ["grouped.hpp", "restage_grouped.hpp", "epilogue/lanes_sm90.hpp", "epilogue/grouped.hpp"],
}


def _operations(plan: Plan) -> list[str]:
    """Return the headers of the operations of evt among the steps, each once."""
    found = (step.header for step in plan.steps if step.header and not _is_of_cutlass(step, plan.family))
    return list(dict.fromkeys(found))


def _is_of_cutlass(step: Step, family: Family) -> bool:
    """Return whether CUTLASS has a node for a step; 2.x has none for rows, flexible vectors and any strides."""
    if family == "2x" and isinstance(step, VectorBroadcast):
        return isinstance(step, ColumnBroadcast) and not step.is_flexible
    if family == "2x" and isinstance(step, Auxiliary):
        return step.access is not Access.STRIDED
    return family != "own" and isinstance(step, ScalarBroadcast | VectorBroadcast | Auxiliary)


#: The places before the namespace of evt's headers, and before references to it from elsewhere. Constants come first,
#: which re finds fast.
_NAMESPACE, _REFERENCE = re.compile(r"namespace (?=evt\b)(?<!\wnamespace )"), re.compile(r"::(?=evt::)(?<![\w:]::)")
#: Headers that are modules of the planner, with their namespaces.
GENERATED = {
    "kit/geometry.hpp": ((convolution, halo_kernel, halo, halo_multiplied, halo_groups, halo_schedule), "kit"),
    "kit/depthwise_geometry.hpp": ((convolution, depthwise), "depthwise"),
    "kit/gemv_geometry.hpp": ((convolution, gemv), "gemv"),
    "kit/wgrad_geometry.hpp": ((convolution, wgrad, wgrad_choice), "wgrad"),
}
_GUARD = re.compile(r"^#ifndef (EVT_\w+_HPP)\n#define \1\n|^#endif  // EVT_\w+_HPP\n", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "evt/([\w./]+)"\n', re.MULTILINE)


def pasted(names: Iterable[str], namespace: str) -> list[tuple[str, str]]:
    """Return headers by name, after the headers that they include, inside an outer namespace."""
    order: list[str] = []

    def visit(name: str) -> None:
        if name not in order:
            for included in _header(name)[0]:
                visit(included)
            order.append(name)

    for name in names:
        visit(name)
    return [(name, f"{namespace}::".join(_header(name)[1])) for name in order]


def placed(text: str, namespace: str) -> str:
    """Return evt's C++ with its namespace ``evt`` inside another one."""
    return f"{namespace}::".join(_parts(text))


def _parts(text: str) -> list[str]:
    """Return C++ split at each place that takes the name of the outer namespace."""
    ends = [0, *sorted(found.end() for each in (_NAMESPACE, _REFERENCE) for found in each.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@cache
def _header(name: str) -> tuple[tuple[str, ...], list[str]]:
    """Return evt's headers that a header includes, and the parts of its text without these lines and its include
    guard.
    """
    if name in GENERATED:
        return (), _parts(translate.header(*GENERATED[name]))
    text = resources.text("codegen", f"include/evt/{name}")
    return tuple(_INCLUDE.findall(text)), _parts(_GUARD.sub("", _INCLUDE.sub("", text)).strip())
