"""Planning for the stock epilogues of CUTLASS 3.x: one fusion operation instead of visitors of ours."""

from __future__ import annotations

from evt.plan.epilogue.functor import literal
from evt.plan.epilogue.visitors import Graph
from evt.plan.kernels.gemm_3x import Planner3x
from evt.plan.kernels.gemm_sm100 import PlannerSm100
from evt.plan.kernels.gemm_sm120 import PlannerSm120
from evt.plan.plan import Node
from evt.plan.stock.match import Factor
from evt.plan.stock.operators import Fused


class PlannerStock3x(Planner3x):
    """The sm90 planner with one node, which CUTLASS makes of the operation's name.

    Its nodes are those of sm90 on every architecture, as CUTLASS's own callbacks of the others are.
    """

    def nodes(self, graph: Graph) -> tuple[Node, ...]:
        found = self.matches[Fused]
        return (
            Node(
                "stock_aux" if found.stored else "stock",
                "Operation",
                self.element(found.stored) if found.stored else "",
                self.tensor_stride(found.stored, self.signature[found.stored])[0] if found.stored else "",
                functor=found.template,
                parameters=found.parameters,
                arguments=(
                    *self.scale("alpha", found.alpha),
                    *(
                        self.scale("beta", found.beta)
                        if found.sources or not found.template.endswith("ScaledAcc")
                        else ()
                    ),
                    *(self.bias(found.vector) if found.vector else ()),
                    *(self.auxiliary(found.stored) if found.stored else ()),
                    *((member, literal(value)) for member, value in found.members),
                ),
            ),
        )

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["restage.hpp"]

    def scale(self, member: str, factor: Factor) -> list[tuple[str, str]]:
        """A factor: a number, a scalar by value or by device pointer, or a vector."""
        if not factor.name:
            return [(member, literal(factor.value))]
        value = self.dag.input[factor.name]
        if value.is_scalar:
            number, pointer = self.scalar_arguments(value, "float")
            return [(member, number), (f"{member}_ptr", pointer)]
        types, values = ["cute::_0", "bool"], ["cute::_0{}", "true"]
        if self.rows in value.modes:
            types, values = types[::-1], values[::-1]
        return self.strided(f"{member}_ptr", f"d{member.capitalize()}", factor.name, values)

    def bias(self, name: str) -> list[tuple[str, str]]:
        values = ["cute::_0{}", "cute::_1{}"]
        return self.strided(
            "bias_ptr", "dBias", name, values[::-1] if self.rows in self.dag.input[name].modes else values
        )

    def strided(self, member: str, stride: str, name: str, values: list[str]) -> list[tuple[str, str]]:
        """A vector's pointer, and its strides of (rows, columns, batch)."""
        value, short = self.dag.input[name], self.names[name]
        pointer = self.add_field(short, "pointer", name, "pointer")
        batch = self.add_field(f"stride_l_of_{short}", "size", name, "l") if "l" in value.modes else "0"
        typed = f"static_cast<{self.element(name)} const*>({pointer})"
        return [(member, typed), (stride, f"{{{', '.join([*values, batch])}}}")]

    def auxiliary(self, name: str) -> list[tuple[str, str]]:
        """The tensor that is stored besides D, through shared memory."""
        self.tile_kind("store", name, self.signature[name])  # takes its part of the budget
        pointer = self.add_field(self.names[name], "pointer", name, "pointer")
        _, stride = self.tensor_stride(name, self.signature[name])
        typed = f"static_cast<{self.element(name)}*>(const_cast<void*>({pointer}))"
        return [("aux_ptr", typed), ("dAux", stride)]


class PlannerStockSm100(PlannerStock3x, PlannerSm100):
    """The same on sm100 and sm103."""

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["restage_sm100.hpp"]


class PlannerStockSm120(PlannerStock3x, PlannerSm120):
    """The same on sm120."""

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        return ["auxiliary_sm120.hpp", "restage.hpp"]
