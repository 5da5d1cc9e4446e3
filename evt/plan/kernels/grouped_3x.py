"""Planning grouped kernels: CUTLASS 3.x on sm90, many problems of one layout in one launch.

Every group has its own extents, addresses and strides: the rows of a table, which the launcher copies to the device.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace

from evt.ir import Input, Operand, Output
from evt.plan.epilogue.visitors import Visitor, is_collective
from evt.plan.kernels.family import operand_element, own_headers
from evt.plan.kernels.gemm_3x import Planner3x
from evt.plan.plan import ABI, Field, FieldKind, Node, OperandPlan, Plan, Tensor
from evt.plan.signature import Layout


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A value per group: the row of numbers, the row of addresses, and the C++ type that both are of."""

    number: str
    pointer: str
    element: str


@dataclass(frozen=True, kw_only=True)
class GroupedPlan(Plan):
    """A grouped kernel, ready to print.

    ``group_fields`` are the rows of the table, in order: what :class:`Field` says, for each group. ``group_values``
    are those rows of numbers that the kernel reads through a row of addresses.
    """

    group_fields: tuple[Field, ...]
    group_values: tuple[GroupValue, ...]


class PlannerGrouped(Planner3x):
    """What of the 3.x family is another in every group: tensors and values, by rows of the table."""

    template = "gemm_3x_grouped"

    def __post_init__(self) -> None:
        super().__post_init__()
        values: tuple[Input | Output, ...] = (*self.dag.inputs, *self.dag.outputs)
        alone = {value.name for value in values if value.is_tile and not is_collective(value)}
        self.signature = replace(  # every group has its own tensors, and one batch
            self.signature,
            tensors=tuple(
                (name, replace(layout, batch="shared" if name in alone else "strided"))
                for name, layout in self.signature.tensors
            ),
        )
        self.fields = [
            Field("table", "pointer", "", "table"),
            Field("workspace", "pointer", "", "workspace"),
            Field("groups", "size", "", "groups"),
        ]
        self.group_fields = [Field(mode, "size", "", mode) for mode in ("m", "n", "k")]
        self.group_values: list[GroupValue] = []
        self.inner: list[Node] = []

    def plan(self) -> GroupedPlan:
        made = super().plan()
        known = {field.name: getattr(made, field.name) for field in fields(Plan)}
        members = tuple(field for field in made.fields if field.name != "swizzle")  # the scheduler knows none
        listed = {
            key: [[field.name, field.kind] for field in group]
            for key, group in (("fields", members), ("rows", self.group_fields))
        }
        known |= {"family": "3x_grouped", "fields": members, "schema": json.dumps({"abi": ABI, **listed})}
        return GroupedPlan(**known, group_fields=tuple(self.group_fields), group_values=tuple(self.group_values))

    def add_field(self, name: str, kind: FieldKind, tensor: str, role: str) -> str:
        """As for one problem; what belongs to a tensor is a row of the table, and the result its name."""
        if not tensor:
            return super().add_field(name, kind, tensor, role)
        field = Field(name, kind, tensor, role)
        if field not in self.group_fields:
            self.group_fields.append(field)
        return f"row_{name}"

    def row(self, word: str, name: str, kind: FieldKind, tensor: str, role: str) -> str:
        """The C++ expression of a row of the table on the device."""
        return f"row<{word}>(arguments, {self.add_field(name, kind, tensor, role)})"

    def pointers(self, name: str, word: str) -> str:
        """The addresses of a tensor, as C++ pointers of a type."""
        return self.row(word, self.names.get(name, name), "pointer", name, "pointer")

    def stride(self, name: str, mode: str, word: str = "std::int64_t") -> str:
        """The strides of a tensor along a mode."""
        return self.row(word, f"stride_{mode}_of_{self.names.get(name, name)}", "size", name, mode)

    def operand(self, operand: Operand, layout: Layout, outer: str) -> OperandPlan:
        row_major = layout.contiguous == ("k" if operand.name == "A" else outer)
        role = {"A": "B", "B": "A"}[operand.name] if self.transposed else operand.name
        return OperandPlan(
            operand_element(operand.dtype),
            f"cutlass::layout::{'RowMajor' if row_major else 'ColumnMajor'}",
            layout.alignment,
            self.pointers(operand.name, f"Element{role} const*"),
            self.stride(operand.name, outer if layout.contiguous == "k" else "k", f"Kernel::InternalStride{role}"),
            "",
            "",
        )

    def collective_tensor(self, name: str, role: str, pointer_type: str) -> Tensor:
        layout = self.signature[name]
        row_major = layout.contiguous == self.columns
        other = self.rows if row_major else self.columns
        arguments = (
            (f"ptr_{role}", self.pointers(name, f"Element{role} {pointer_type}")),
            (f"d{role}", self.stride(name, other, f"Kernel::InternalStride{role}")),
        )
        tag = f"cutlass::layout::{'RowMajor' if row_major else 'ColumnMajor'}"
        return Tensor(self.element(name), tag, layout.alignment, arguments)

    def value_pointers(self, value: Input) -> str:
        """The addresses of an input's single values; the launcher fills in those of numbers."""
        name, element = self.names[value.name], self.element(value.name)
        self.add_field(f"value_of_{name}", "number", value.name, "value")
        self.group_values.append(GroupValue(f"value_of_{name}", name, element))
        return self.pointers(value.name, f"{element} const*")

    def scalar(self, value: Input) -> Node:
        arguments = (("pointers", self.value_pointers(value)),)
        return self.own(self.names[value.name], "GroupScalar", self.element(value.name), arguments=arguments)

    def vector(self, kind: str, value: Input) -> Node:
        name, element = self.names[value.name], self.element(value.name)
        types = ["cute::_0", "cute::_1"] if kind == "row" else ["cute::_1", "cute::_0"]
        pointers = self.pointers(value.name, f"{element} const*")
        arguments = ((f"ptr_{'row' if kind == 'row' else 'col'}", pointers),)
        stride = f"cute::Stride<{', '.join(types)}, cute::_0>"
        return Node(kind, name, f"{element}*", stride, output=self.computed(value), arguments=arguments)

    def flexible(self, kind: str, value: Input) -> Node:
        """A vector or a single value for all groups alike, as a member says."""
        name, element = self.names[value.name], self.element(value.name)
        varies = super().add_field(f"{name}_varies", "size", "", f"varies {value.name}")
        types, values = ["cute::_0", "bool", "cute::_0"], ["cute::_0{}", f"{varies} != 0", "cute::_0{}"]
        if kind == "column":
            types[:2], values[:2] = types[1::-1], values[1::-1]
        member = "row" if kind == "row" else "col"
        arguments = (
            (f"ptr_{member}", self.value_pointers(value)),
            (f"d{member.capitalize()}", f"{{{', '.join(values)}}}"),
        )
        stride = f"cute::Stride<{', '.join(types)}>"
        return Node(kind, name, f"{element}*", stride, output=self.computed(value), arguments=arguments)

    def tile(self, value: Input | Output) -> Node:
        name, element, layout = self.names[value.name], self.element(value.name), self.signature[value.name]
        types, arguments = [], [("pointers", self.pointers(value.name, "void*"))]
        for member, mode in (("strides_m", self.rows), ("strides_n", self.columns)):
            types.append("cute::_1" if mode == layout.contiguous else "std::int64_t")
            if mode != layout.contiguous:
                arguments.append((member, self.stride(value.name, mode)))
        stride = f"cute::Stride<{', '.join(types)}, cute::_0>"
        if isinstance(value, Output):
            inner = f"fusion::Sm90AuxStore<0, void, {element}, kRoundStyle, {stride}, void, void, {layout.alignment}>"
        else:
            inner = f"fusion::Sm90AuxLoad<0, void, {element}, {stride}, void, void, {layout.alignment}>"
        return self.own(name, "GroupTensor", inner, arguments=tuple(arguments))

    def columns_of(self, visitor: Visitor) -> Node:
        inner = super().columns_of(visitor)
        self.inner.append(inner)
        arguments = (
            ("pointers", self.pointers(visitor.name, "void*")),
            ("strides_m", self.stride(visitor.name, "m")),
        )
        parameters = f"<{', '.join(inner.parameters)}>" if inner.parameters else ""
        return self.own(inner.name, "GroupTensor", f"{inner.functor}{parameters}", arguments=arguments)

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        found = ["grouped.hpp", "restage_grouped.hpp", *own_headers("3x", (*nodes, *self.inner))]
        return [*found, "visitors_3x_grouped.hpp"]
