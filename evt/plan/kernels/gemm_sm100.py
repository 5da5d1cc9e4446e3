"""Planning for CUTLASS 3.x on sm100 and sm103: tcgen05, whose sums are in tensor memory."""

from __future__ import annotations

from typing import ClassVar

from evt.plan.epilogue.visitors import Graph
from evt.plan.kernels.gemm_3x import Planner3x
from evt.plan.plan import Node, Tensor
from evt.plan.rules.gemm import reads_columns
from evt.plan.target import Family

#: Our nodes for tensors of bits, of pairs and of blocks.
_STORES = frozenset({"MaskLoad", "MaskStore", "HalfLoad", "HalfStore", "BlockStore"})


class PlannerSm100(Planner3x):
    """What of the 3.x family is another on sm100: our nodes that know where their elements are, and no D."""

    family: ClassVar[Family] = "sm100"
    template = "gemm_sm100"

    def is_transposed(self) -> bool:
        """Whether D' = B' A' is computed: tcgen05 takes any operands, but our nodes need to be given rows."""
        return reads_columns(self.problem)

    def own(self, name: str, template: str, *parameters: str, arguments: tuple[tuple[str, str], ...] = ()) -> Node:
        node = super().own(name, template, *parameters, arguments=arguments)
        return Node("own", name, functor=f"evt::sm100::{template}", parameters=node.parameters, arguments=arguments)

    def reduction_memory(self, graph: Graph, warps: int) -> int:
        return 0  # every warp has a part of its own

    def epilogue_wrapper(self, destination: Tensor) -> str:
        """CUTLASS's collective stores a D of every tile."""
        return "evt::unstored" if destination.element == "void" else ""

    def arch_tag(self) -> str:
        return "cutlass::arch::Sm100"

    def headers(self, nodes: tuple[Node, ...]) -> list[str]:
        templates = [node.functor.rpartition("::")[2] for node in nodes if node.kind == "own"]
        found = ["restage_sm100.hpp", *["unstored_sm100.hpp"] * (not self.stored)]
        found.append("visitors_sm100.hpp" if templates else "visitors_3x.hpp")
        if any(template.endswith("Reduction") for template in templates):
            found += ["visitors_sm100_reduce.hpp", "finish.hpp"]
        if not _STORES.isdisjoint(templates):
            found.append("visitors_sm100_store.hpp")
        return found
