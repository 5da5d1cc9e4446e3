"""What is stored when the parts of reductions are combined: reductions as they are, and what is computed of them."""

from __future__ import annotations

from typing import Literal

from evt.ir import Extent, Index, Input, Load, Output, Reduce
from evt.ir.columns import columns_of
from evt.ir.dtype import F32, I32
from evt.ir.node import PLACES, divisor
from evt.ir.origin import quoted
from evt.plan.epilogue.nodes import Combined, Given, Operand, Result, ResultIndex
from evt.plan.epilogue.regions import identity, make_region
from evt.plan.epilogue.visitors import in_order, is_leaf, reductions_of
from evt.plan.fields import Field
from evt.plan.kernels.draft import Draft


class Results:
    """The results of a kernel, each planned once all of its reductions have a node; ``stored`` are not atomic."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.stored: list[Result] = []
        self._reductions: dict[int, str] = {}
        #: Outputs that are not planned yet, and the reductions that they are made of.
        self._waiting = {
            name: reductions_of(draft.dag, store) for name, store in in_order(draft.dag) if draft.dag.reduced[store]
        }
        self._read = [node for nodes in self._waiting.values() for node in nodes]

    def add(self, node: int, name: str) -> Result | None:
        """Plan the results that are complete with a reduction, whose node has a name.

        Return that in whose output it may be combined by atomics: the only one, of its type and not computed further.
        """
        draft = self.draft
        self._reductions[node] = name
        complete = [output for output, nodes in self._waiting.items() if self._reductions.keys() >= set(nodes)]
        for output in complete:
            del self._waiting[output]
            result, dtype = self._make(draft.dag.output[output]), draft.dag.types[node].dtype
            alone = draft.problem.options.atomic and self._read.count(node) == 1
            if alone and result.region is None and dtype == result.dtype and dtype in (F32, I32):
                return result
            self.stored.append(result)
        draft.fields.workspace()
        return None

    def _make(self, output: Output) -> Result:
        draft, dag = self.draft, self.draft.dag
        value = dag.arguments(dag.stores[output.name])[0]
        pointer, over = draft.fields.pointer(output.name), dag.reduced[value]
        batch = draft.batch(output.name, "l" not in over)
        kept = {"m", "n"} - set(over)
        extent: Field | Literal[1] = draft.fields.size(kept.pop()) if kept else 1
        columns = columns_of(dag.types[value])
        op = dag[value]
        plain = isinstance(op, Reduce) and divisor(columns) == 1 and op.kind not in PLACES
        # Of several outputs that store a reduction as it is, the first has its name.
        name = self._reductions.get(value, "") if plain else ""
        name = draft.names[output.name] if not name or any(each.name == name for each in self.stored) else name
        leaves = [value] if isinstance(op, Reduce) else self._leaves(value)
        operands = tuple(self._operand(leaf, output) for leaf in leaves)
        region = None
        if isinstance(op, Reduce):
            region = None if plain else identity(draft.next_region(), dag.types[value].dtype.compute)
        else:
            region = make_region(dag, draft.next_region(), value, {leaf: self._label(leaf) for leaf in leaves})
        dtype = draft.dtype(output.name)
        origin = quoted(dag.origins[dag.stores[output.name]], dag.source)
        return Result(name, dtype, pointer, extent, divisor(columns), batch, "l" in over, operands, region, origin)

    def _leaves(self, value: int) -> list[int]:
        """Return what a value is computed of: reductions, inputs, sizes and places."""
        dag, found, stack, seen = self.draft.dag, set[int](), [value], {value}
        while stack:
            node = stack.pop()
            if isinstance(dag[node], Reduce) or is_leaf(dag[node]):
                found.add(node)
                continue
            new = [operand for operand in dag.arguments(node) if operand not in seen]
            seen.update(new)
            stack.extend(new)
        return sorted(found)

    def _label(self, leaf: int) -> str:
        match self.draft.dag[leaf]:
            case Load(name):
                return self.draft.names[name]
            case Extent(mode):
                return f"size_{mode}"
            case Index(mode):
                return f"index_{mode}"
        return self._reductions[leaf]

    def _operand(self, leaf: int, output: Output) -> Operand:
        draft = self.draft
        match draft.dag[leaf]:
            case Load(name):
                return self._given(draft.dag.input[name])
            case Extent(mode):
                return draft.size(mode)
            case Index(mode):
                return ResultIndex(mode == "l")
        columns = columns_of(draft.dag.types[leaf])
        apart = draft.pair_distance(leaf) if divisor(columns) > 1 else 1
        return Combined(self._reductions[leaf], divisor(columns) * apart, apart)

    def _given(self, value: Input) -> Given:
        draft, mode = self.draft, next((mode for mode in value.modes if mode != "l"), None)
        assert value.dtype is not None
        batch = draft.batch(value.name, "l" in value.modes)
        if mode is None:
            return Given(value.dtype, draft.single(value), 0, batch)
        if value.flexible:
            return Given(value.dtype, draft.single(value), draft.fields.stride(value.name, mode), batch)
        return Given(value.dtype, draft.fields.pointer(value.name), 1, batch)
