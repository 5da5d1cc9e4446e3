"""Visitor nodes in CUTLASS 2.x's dialect."""

from __future__ import annotations

from evt.emission.expressions import element, input_pointer, read, stride_type, stride_value, value_of
from evt.emission.text import Assignments, NodeText
from evt.emission.visitors import Dialect
from evt.plan.epilogue.nodes import ColumnOrScalarBroadcast, RowOrScalarBroadcast, ScalarBroadcast, Single, pointer_of


class Dialect2x(Dialect):
    """Nodes that know their elements by a thread map."""

    def own(self, name: str, template: str, *parameters: str, arguments: Assignments = ()) -> NodeText:
        functor = f"evt::threadblock::{template}"
        return NodeText("own", name, functor=functor, parameters=("ThreadMap", *parameters), arguments=arguments)

    def scalar_stride(self, node: ScalarBroadcast) -> tuple[str, str, str]:
        # VisitorScalarBroadcast knows only strides of the type int.
        return stride_type(node.strides, "int"), "dScalar", stride_value(node.strides, "(int)")

    def vector_or_scalar(self, node: RowOrScalarBroadcast | ColumnOrScalarBroadcast) -> NodeText:
        single = node.values if isinstance(node.values, Single) else None
        pointer = input_pointer(node.dtype, pointer_of(node.values))
        arguments = (
            ("ptr", pointer),
            *((("value", value_of(single)),) if single else ()),
            ("stride", read(node.stride)),
            ("stride_l", read(node.batch)),
        )
        template = f"VectorOrScalar{'Row' if isinstance(node, RowOrScalarBroadcast) else 'Col'}"
        return self.own(node.name, template, element(node.dtype), arguments=arguments)
