"""Random functions with operators of another library: ``check(seed)`` compares a fused one with eager.

The library's operators have the names of ATen's operators and other meanings. Some write to their arguments, return
several tensors, or take a list. Products, views and operators of ATen stand between them.

    python -m tests.fx.random_libraries --count 1000
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.nn import functional

from evt.fx.fuse import fuse, fusion
from evt.fx.op_semantics import known_operators
from evt.fx.records import RECORDS

from .fusing import compare
from .seeds import Steps, Value, check_seeds
from .training import fused

#: The size of the square matrices: no shape tells a value apart.
N = 6
_SPACE = "evt_test_library"
#: Names of products, of views, and of other operators that evt's passes know.
_NAMES = (
    *("mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "convolution", "_int_mm", "einsum", "conv2d", "launch"),
    *("view", "reshape", "permute", "transpose", "t", "slice", "expand", "select", "unsqueeze", "squeeze", "split"),
    *(
        "as_strided",
        "copy_",
        "cat",
        "native_layer_norm",
        "native_group_norm",
        "var_mean",
        "_softmax",
        "constant_pad_nd",
    ),
    *("full", "zeros_like", "embedding", "scalar_tensor", "convolution_backward", "native_group_norm", "write"),
)


def _write(x: Value) -> None:
    x.add_(1)


#: Schemas, and the meanings of the operators.
_KINDS: Sequence[tuple[str, Callable[..., Any]]] = (
    ("(Tensor x) -> Tensor", lambda x: x * 0.5 + 1),
    ("(Tensor x, float factor=2.0) -> Tensor", lambda x, factor=2.0: x * factor - 1),
    ("(Tensor x, Tensor y) -> Tensor", lambda x, y: x - 2 * y),
    ("(Tensor x, Tensor y) -> Tensor", lambda x, y: x + y.sum(0)),
    ("(Tensor x, Tensor y, Tensor? z=None) -> Tensor", lambda x, y, z=None: x * 0.25 + y),
    ("(Tensor(a!) x) -> ()", _write),
    ("(Tensor(a!) x, Tensor y) -> Tensor", lambda x, y: x.mul_(0.5) + y),
    ("(Tensor x, Tensor y) -> (Tensor, Tensor)", lambda x, y: (x - y, x + 2 * y)),
    ("(Tensor[] x) -> Tensor", lambda x: x[0] - 3 * x[-1]),
)
_UNARY: Sequence[Callable[[Value], Value]] = (
    torch.relu, torch.tanh, lambda x: x * 0.5, lambda x: x.t(), lambda x: x - x.mean(-1, keepdim=True),
    lambda x: x.reshape(-1).reshape(x.shape), lambda x: x.clone(), lambda x: x[:, :], lambda x: x.add_(1),
)  # fmt: skip
_BINARY: Sequence[Callable[[Value, Value], Value]] = (
    torch.mm, torch.mm, torch.mm, functional.linear, torch.add, torch.mul, torch.sub, lambda x, y: torch.addmm(x, x, y),
)  # fmt: skip


@cache
def _library() -> tuple[torch.library.Library, Mapping[str, int]]:
    """Define the library; return it with the kind of each operator."""
    made = torch.library.Library(_SPACE, "DEF")
    kinds = {}
    for name in sorted({*_NAMES, *(each.partition(".")[0] for each in known_operators())}):
        kinds[name] = zlib.crc32(name.encode()) % len(_KINDS)
        schema, meaning = _KINDS[kinds[name]]
        made.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        made.impl(name, meaning, "CompositeExplicitAutograd")
    return made, kinds


def _step(name: str) -> Callable[..., Value]:
    """Return a step that calls an operator of the library on two matrices."""
    kinds = _library()[1]
    schema, _ = _KINDS[kinds[name]]
    operator = getattr(getattr(torch.ops, _SPACE), name)

    def step(x: Value, y: Value) -> Value:
        if schema.startswith("(Tensor[]"):
            return operator([x, y])
        if schema.endswith("()"):
            x = x.clone()
            operator(x)
            return x
        if "a!" in schema:
            x = x.clone()
            return operator(x, y) - x
        found = operator(x, y) if "y" in schema else operator(x)
        return found[0] * found[1] if isinstance(found, tuple) else found

    return step


def make(seed: int) -> tuple[Steps, tuple[Value, ...]]:
    """Return a random module and inputs for it."""
    choose = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    program = Steps()
    inputs = tuple(torch.randn(N, N, generator=generator, dtype=torch.float64) / 2 for _ in range(3))
    count = len(inputs)
    names = sorted(_library()[1])
    for _ in range(choose.randint(4, 9)):
        x, y = (count - 1 if choose.random() < 0.6 else choose.randrange(count) for _ in range(2))
        kind = choose.random()
        if kind < 0.4:
            program.steps.append((_step(choose.choice(names)), (x, y)))
        elif kind < 0.75:
            program.steps.append((choose.choice(_BINARY), (x, y)))
        else:
            program.steps.append((choose.choice(_UNARY), (x,)))
        count += 1
    program.results = sorted({count - 1, choose.randrange(3, count)})
    return program, inputs


def check(seed: int) -> int:
    """Assert that a random module is the same fused; return how many regions it has."""
    module, inputs = make(seed)
    with torch.no_grad():
        made = fuse(module, tuple(each.clone() for each in inputs)).eval()
        ours, theirs = ([each.clone() for each in inputs] for _ in range(2))
        compare((*module(*theirs), *theirs), (*made(*ours), *ours))
    return len(fusion(made).regions)


def check_compiled(seed: int) -> int:
    """Assert that a random module is the same compiled; return how many regions it has."""
    module, inputs = make(seed)
    RECORDS.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        ours, theirs = ([each.clone() for each in inputs] for _ in range(2))
        compare((*module(*theirs), *theirs), (*fused(module)(*ours), *ours))
    return sum(row.fused for record in RECORDS for row in record.rows)


if __name__ == "__main__":
    check_seeds(__doc__, {"fuse": check, "compile": check_compiled})
