"""The intermediate representation: a program as a graph of flat frozen nodes."""

from evt.ir.dag import Builder, Dag, TypedDag
from evt.ir.infer import infer
from evt.ir.lower import lower
from evt.ir.node import (
    Acc,
    Apply,
    Cast,
    Const,
    Element,
    Extent,
    Feed,
    Index,
    Input,
    Interleave,
    Load,
    Node,
    Operand,
    Output,
    Pick,
    Random,
    Reduce,
    ReduceBlocks,
    Scale,
    Store,
    ValueType,
)
from evt.ir.origin import Foreign, Origin, Place
from evt.ir.text import format_dag, parse_dag
from evt.ir.verify import verify

__all__ = [
    "Acc",
    "Apply",
    "Builder",
    "Cast",
    "Const",
    "Dag",
    "Element",
    "Extent",
    "Feed",
    "Foreign",
    "Index",
    "Input",
    "Interleave",
    "Load",
    "Node",
    "Operand",
    "Origin",
    "Output",
    "Pick",
    "Place",
    "Random",
    "Reduce",
    "ReduceBlocks",
    "Scale",
    "Store",
    "TypedDag",
    "ValueType",
    "format_dag",
    "infer",
    "lower",
    "parse_dag",
    "verify",
]
