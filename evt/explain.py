"""Why a program is compiled the way it is: ``explain(problem) -> Explanation``."""

from __future__ import annotations

from dataclasses import dataclass

from evt.ir import Input, Output
from evt.plan import ROUTES, Plan, Problem, choose_route, default_configs, plan


@dataclass(frozen=True, slots=True)
class RouteExplanation:
    """One route: its summary, its rules as (statement, reason of failure or empty), whether it is the one taken."""

    name: str
    summary: str
    rules: tuple[tuple[str, str], ...]
    chosen: bool


@dataclass(frozen=True)
class Explanation:
    """What ``evt explain`` prints."""

    target: str
    routes: tuple[RouteExplanation, ...]
    plan: Plan
    configurations: tuple[str, ...]
    visitors: tuple[str, ...]
    read_bytes: int
    written_bytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "routes": [
                {
                    "name": route.name,
                    "summary": route.summary,
                    "chosen": route.chosen,
                    "rules": [{"rule": rule, "holds": not reason, "reason": reason} for rule, reason in route.rules],
                }
                for route in self.routes
            ],
            "configurations": list(self.configurations),
            "visitors": list(self.visitors),
            "tree": self.plan.tree,
            "shared_memory_bytes": self.plan.shared_memory,
            "epilogue_bytes_per_element": {"read": self.read_bytes, "written": self.written_bytes},
        }

    def __str__(self) -> str:
        lines = [f"target {self.target}"]
        for route in self.routes:
            lines.append(f"{'->' if route.chosen else '  '} {route.name}: {route.summary}")
            lines += [
                f"      {'no ' if reason else 'yes'} {rule}{f': {reason}' if reason else ''}"
                for rule, reason in route.rules
            ]
        kind = "a tree" if self.plan.tree else "a topological visitor (a value is shared)"
        lines.append(f"visitors, as {kind}:")
        lines += [f"   {visitor}" for visitor in self.visitors]
        lines.append(f"configurations: {', '.join(self.configurations)}")
        lines.append(f"shared memory: at least {self.plan.shared_memory / 1024:.0f} KiB a thread block")
        lines.append(
            f"epilogue traffic: {self.read_bytes} bytes read and {self.written_bytes} written per element of D"
        )
        return "\n".join(lines)


_KINDS = {
    "acc": "accumulator fetch",
    "source": "source C, through the collective's own load",
    "scalar": "scalar broadcast",
    "row": "row broadcast",
    "column": "column broadcast",
    "tile": "auxiliary load",
    "tile_direct": "auxiliary load, directly from global memory",
    "tile_strided": "auxiliary load, element by element",
    "compute": "compute",
    "store": "auxiliary store",
    "store_direct": "auxiliary store, directly to global memory",
    "store_strided": "auxiliary store, element by element",
}


def explain(problem: Problem, forced: str | None = None) -> Explanation:
    """Explain the choice of route. Raises TargetError (E0502, E0503) when there is none."""
    chosen = choose_route(problem, forced)
    made = plan(problem.dag, problem.signature, problem.target, route=chosen.name)
    routes = tuple(
        RouteExplanation(
            route.name,
            route.summary,
            tuple((rule.statement, rule.failure(problem) or "") for rule in route.rules),
            route is chosen,
        )
        for route in ROUTES
    )
    visitors = tuple(
        f"{node.name}: {_KINDS[node.kind]}{f' of {node.functor}' if node.functor else ''}"
        for node in {node.name: node for node in made.nodes}.values()
    )
    return Explanation(
        problem.target.name,
        routes,
        made,
        tuple(config.name for config in default_configs(problem, chosen)),
        visitors,
        sum(_tile_bytes(value) for value in problem.dag.inputs),
        sum(_tile_bytes(value) for value in problem.dag.outputs),
    )


def _tile_bytes(value: Input | Output) -> int:
    assert value.dtype is not None
    return value.dtype.bits // 8 if {"m", "n"} <= set(value.modes) else 0
