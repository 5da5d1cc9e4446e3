"""Descriptions of visitors in CUTLASS's terms: ``describe(node) -> str``."""

from __future__ import annotations

from evt.emission.functors import stock_functor
from evt.plan.epilogue.nodes import (
    Access,
    AccFetch,
    Apply,
    AuxLoad,
    AuxStore,
    BlockReduce,
    BlockStore,
    ColumnBroadcast,
    ColumnOrScalarBroadcast,
    Combined,
    Compute,
    Coordinate,
    FirstColumns,
    Gather,
    HalfLoad,
    HalfStore,
    Indexed,
    MaskLoad,
    MaskStore,
    Node,
    PairInterleave,
    PairMember,
    PlaceKeys,
    RandomNumbers,
    Reduction,
    Result,
    RowBroadcast,
    RowOrScalarBroadcast,
    ScalarBroadcast,
    Scatter,
    SourceFetch,
    VectorStore,
)

_LOADS = {Access.TILE: "", Access.DIRECT: ", directly from global memory", Access.STRIDED: ", element by element"}
_STORES = {Access.TILE: "", Access.DIRECT: ", directly to global memory", Access.STRIDED: ", element by element"}


def describe(node: Node) -> str:
    """Return the description of a visitor."""
    match node:
        case AccFetch():
            return "accumulator fetch"
        case SourceFetch():
            return "source C, through the collective's own load"
        case ScalarBroadcast():
            return "scalar broadcast"
        case RowBroadcast():
            return "row broadcast"
        case ColumnBroadcast():
            return "column broadcast"
        case RowOrScalarBroadcast():
            return "row or scalar broadcast"
        case ColumnOrScalarBroadcast():
            return "column or scalar broadcast"
        case AuxLoad(access=access):
            return f"auxiliary load{_LOADS[access]}"
        case AuxStore(access=access):
            return f"auxiliary store{_STORES[access]}"
        case Compute(function):
            return f"compute of {stock_functor(function)}"
        case Apply(region):
            return f"compute of {region.name}"
        case Coordinate():
            return "coordinates"
        case RandomNumbers(wide=wide):
            return f"random numbers, by Philox-{'4x32' if wide else '2x32'}-10"
        case PairMember(member):
            return f"{'second' if member else 'first'} columns of pairs"
        case PairInterleave():
            return "two values, in the first and the second columns of pairs"
        case PlaceKeys():
            return "values with their places"
        case FirstColumns():
            return "first columns of a value that several hold"
        case BlockReduce(kind):
            return f"reduction of blocks of columns, {kind}"
        case MaskLoad():
            return "load of packed bits"
        case MaskStore():
            return "store of packed bits"
        case HalfLoad():
            return "load of half the columns"
        case HalfStore():
            return "store of half the columns"
        case BlockStore():
            return "store of one value a block"
        case VectorStore(shape):
            return f"store of a {shape}, once"
        case Gather():
            return f"gathered {_placed(node)}"
        case Scatter():
            return f"scattered {_placed(node)}"
        case Reduction(shape, kind, atomic=atomic):
            return f"{shape} reduction, {kind}, {'by atomics' if atomic else 'in parts'}"


def _placed(node: Indexed) -> str:
    """Return the modes of a tensor that indices name, as modes of the kernel."""
    return " and ".join(word for word, places in (("rows", node.rows), ("columns", node.columns)) if places)


def describe_result(result: Result) -> str:
    """Return the description of a final reduction."""
    read = ", ".join(dict.fromkeys(each.reduction for each in result.operands if isinstance(each, Combined)))
    return f"{result.name}: final reduction, {result.region} of {read}"
