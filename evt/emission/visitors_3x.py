"""Visitor nodes in CUTLASS 3.x's dialect."""

from __future__ import annotations

from evt.emission.expressions import stride_type, stride_value
from evt.emission.text import Assignments, NodeText
from evt.emission.visitors import Dialect
from evt.plan.epilogue.loads import ScalarBroadcast

#: Our nodes that know the tiles in which the kernel visits its output.
_OF_TILES = frozenset({"RowReduction", "ColReduction", "ScalarReduction"})


class Dialect3x(Dialect):
    """Nodes of sm90; other architectures use the same ones, except ours in ``namespace``."""

    def __init__(self, namespace: str = "evt::fusion") -> None:
        self.namespace = namespace

    def own(self, name: str, template: str, *parameters: str, arguments: Assignments = ()) -> NodeText:
        if template in _OF_TILES:
            parameters = (*parameters, "TileShape", "EpilogueTile")
        functor = f"{self.namespace}::{template}"
        return NodeText("own", name, functor=functor, parameters=parameters, arguments=arguments)

    def scalar_stride(self, node: ScalarBroadcast) -> tuple[str, str, str]:
        return stride_type(node.strides), "dScalar[0]", stride_value(node.strides)
