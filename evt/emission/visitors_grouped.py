"""Visitor nodes of grouped kernels: CUTLASS 3.x's dialect, with an array where every group has its own value."""

from __future__ import annotations

from evt.emission.expressions import element, loaded, stride_type, stride_value
from evt.emission.text import Assignments, GroupValueText, NodeText
from evt.emission.visitors import packed_class
from evt.emission.visitors_3x import Dialect3x
from evt.plan import Field
from evt.plan.epilogue.loads import Auxiliary, Packed, RowBroadcast, ScalarBroadcast, VectorBroadcast
from evt.plan.epilogue.step import Step
from evt.plan.epilogue.values import Single, Size, Varies, pointer_of
from evt.plan.epilogue.writes import AuxStore


def row(word: str, field: Field) -> str:
    """Return a row of the table on the device, as an array of a type."""
    return f"row<{word}>(arguments, row_{field.name})"


class DialectGrouped(Dialect3x):
    """Nodes that find their group's values by its number."""

    def scalar(self, node: ScalarBroadcast) -> NodeText:
        if isinstance(node.value, Size):
            return self.own(node.name, "GroupSize", arguments=(("extents", row("std::int64_t", node.value.extent)),))
        if not isinstance(node.value, Single):
            return super().scalar(node)
        type_ = element(node.value.dtype)
        arguments = (("pointers", row(f"{type_} const*", node.value.pointer)),)
        return self.own(node.name, "GroupScalar", type_, arguments=arguments)

    def vector(self, node: VectorBroadcast) -> NodeText:
        kind, member = ("row", "row") if isinstance(node, RowBroadcast) else ("column", "col")
        values = row(f"{element(node.dtype)} const*", pointer_of(node.values))
        arguments: Assignments = ((f"ptr_{member}", values),)
        if any(isinstance(stride, Varies) for stride in node.strides):
            arguments = (*arguments, (f"d{member.capitalize()}", stride_value(node.strides)))
        return NodeText(
            kind,
            node.name,
            f"{element(node.dtype)}*",
            stride_type(node.strides),
            output=loaded(node.dtype),
            arguments=arguments,
        )

    def auxiliary(self, node: Auxiliary) -> NodeText:
        type_, stride = element(node.dtype), stride_type(node.strides, "std::int64_t")
        if isinstance(node, AuxStore):
            inner = f"fusion::Sm90AuxStore<0, void, {type_}, kRoundStyle, {stride}, void, void, {node.alignment}>"
        else:
            inner = f"fusion::Sm90AuxLoad<0, void, {type_}, {stride}, void, void, {node.alignment}>"
        strides = (
            (member, row("std::int64_t", given))
            for member, given in zip(("strides_m", "strides_n"), node.strides, strict=False)
            if isinstance(given, Field)
        )
        return self.own(node.name, "GroupTensor", inner, arguments=(("pointers", row("void*", node.pointer)), *strides))

    def packed(self, node: Packed) -> NodeText:
        template, parameters = packed_class(node)
        listed = f"<{', '.join(parameters)}>" if parameters else ""
        arguments = (("pointers", row("void*", node.pointer)), ("strides_m", row("std::int64_t", node.row)))
        return self.own(node.name, "GroupTensor", f"{self.namespace}::{template}{listed}", arguments=arguments)


def group_values(nodes: tuple[Step, ...]) -> tuple[GroupValueText, ...]:
    """Return the values that a group may give as numbers: the launcher puts them where the kernel reads them."""
    found = []
    for node in {node.name: node for node in nodes}.values():
        match node:
            case ScalarBroadcast(value=Single() as given) | VectorBroadcast(values=Single() as given):
                found.append(GroupValueText(given.number.name, given.pointer.name, element(given.dtype)))
    return tuple(found)
