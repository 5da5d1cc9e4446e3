"""Visitor nodes in CUTLASS 2.x's dialect."""

from __future__ import annotations

from evt.emission.expressions import element, input_pointer, read_stride, stride_type, stride_value, value_of
from evt.emission.text import Assignments, NodeText
from evt.emission.visitors import Dialect
from evt.plan.epilogue.loads import ColumnBroadcast, RowBroadcast, ScalarBroadcast, VectorBroadcast
from evt.plan.epilogue.values import Single, pointer_of


class Dialect2x(Dialect):
    """Nodes that know their elements by a thread map."""

    def own(self, name: str, template: str, *parameters: str, arguments: Assignments = ()) -> NodeText:
        functor = f"evt::threadblock::{template}"
        return NodeText("own", name, functor=functor, parameters=("ThreadMap", *parameters), arguments=arguments)

    def scalar_stride(self, node: ScalarBroadcast) -> tuple[str, str, str]:
        # VisitorScalarBroadcast knows only strides of the type int.
        return stride_type(node.strides, "int"), "dScalar", stride_value(node.strides, "(int)")

    def vector(self, node: VectorBroadcast) -> NodeText:
        """Return CUTLASS's broadcast, or evt's own.

        CUTLASS's row broadcast reads whole accesses: past the end of a vector, and never unaligned ones.
        """
        if isinstance(node, ColumnBroadcast) and not node.is_flexible:
            return super().vector(node)
        rows, columns, batch = node.strides
        single = node.values if isinstance(node.values, Single) else None
        arguments = (
            ("ptr", input_pointer(node.dtype, pointer_of(node.values))),
            *((("value", value_of(single)),) if single else ()),
            ("stride", read_stride(columns if isinstance(node, RowBroadcast) else rows)),
            ("stride_l", read_stride(batch)),
        )
        template = f"VectorOrScalar{'Row' if isinstance(node, RowBroadcast) else 'Col'}"
        return self.own(node.name, template, element(node.dtype), arguments=arguments)
