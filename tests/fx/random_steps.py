"""Random training steps: ``check(seed)`` compares the results, gradients and buffers of a compiled step with eager's.

Steps are products, convolutions, norms, broadcasts, views, operators in place on values and on views, casts, and
checkpoints. Layers are called several times, and weights are tied. Inputs and parameters are frozen or not, sizes are
0, 1 or symbolic, and some steps run under autocast, or without autocast inside of it. All of a step without casts is
in float64.

    python -m tests.fx.random_steps --count 1000
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from evt.errors import ArgumentError
from evt.fx.fuse import fuse, fusion
from evt.fx.records import RECORDS

from .compiling import ALWAYS, compiled
from .fusing import TOLERANCES
from .seeds import Value, check_seeds
from .training import fused

C, H = 8, 4
#: The error relative to eager mode's, and to the tolerance.
_FACTOR, _LEAST = 4.0, 0.5

Step = Callable[[Any, list[Value]], Value]
_UNARY: Sequence[Callable[[Value], Value]] = (
    torch.relu, torch.tanh, torch.sigmoid, functional.gelu, functional.silu, functional.softplus, functional.leaky_relu,
    lambda x: functional.gelu(x, approximate="tanh"), lambda x: x * 0.5, lambda x: 1 - x, lambda x: x.clamp(-1, 1),
    functional.hardswish, functional.elu, lambda x: x.square(), lambda x: x.abs(), lambda x: x.softmax(-1),
    lambda x: x.masked_fill(x > 0.5, 0.25), lambda x: torch.where(x > 0, x, 0.1 * x), lambda x: x.exp().log1p(),
    lambda x: x - x.mean(-1, keepdim=True), lambda x: x / (x.abs().amax(-1, keepdim=True) + 1),
    lambda x: x + x.sum(0, keepdim=True).tanh(), lambda x: x.detach() + x, lambda x: x.clone(),
    lambda x: functional.dropout(x, 0.0, True), lambda x: functional.normalize(x, dim=-1), lambda x: x.float(),
    lambda x: functional.relu6(x), lambda x: x.cumsum(-1), lambda x: x.flip(-1), lambda x: x.roll(1, 0),
    lambda x: x * x.new_ones(x.shape[-1]), lambda x: x.mean(-1, keepdim=True) * x, lambda x: functional.mish(x),
    lambda x: functional.layer_norm(x, x.shape[-1:]), lambda x: functional.hardsigmoid(x) * x,
    lambda x: x.sum(-1, keepdim=True) + x, lambda x: functional.relu(x, inplace=False) ** 2,
)  # fmt: skip
_VIEWS: Sequence[Callable[[Value], Value]] = (
    lambda x: x.mT, lambda x: x.transpose(0, 1), lambda x: x.flatten(0, 1), lambda x: x.reshape(-1, x.shape[-1]),
    lambda x: x.unflatten(-1, (2, -1)), lambda x: x.unflatten(-1, (2, -1)).transpose(1, 2), lambda x: x[:, 1:],
    lambda x: x[..., ::2], lambda x: x.chunk(2, -1)[1], lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1],
    lambda x: x.split([2, x.shape[-1] - 2], -1)[1], lambda x: x.unsqueeze(1), lambda x: x.squeeze(),
    lambda x: x[None].expand(2, *x.shape), lambda x: x.permute(*range(1, x.dim()), 0), lambda x: x[0],
    lambda x: torch.cat((x, -x), -1), lambda x: torch.stack(x.unbind(-1), -1), lambda x: x[..., :0],
    lambda x: x.unfold(-1, 2, 1), lambda x: x.diagonal(), lambda x: functional.pad(x, (1, 1)), lambda x: x[-1:],
    lambda x: x.movedim(-1, 1), lambda x: x.repeat_interleave(2, 1), lambda x: x.tile(2, 1), lambda x: x.contiguous(),
)  # fmt: skip
_IN_PLACE: Sequence[Callable[[Value], Value]] = (
    lambda x: x.relu_(), lambda x: x.mul_(0.5), lambda x: x.add_(1), lambda x: x[..., :1].zero_(),
    lambda x: x.mT.mul_(2), lambda x: x.clamp_(-1, 1), lambda x: x.masked_fill_(x > 0, 0.5), lambda x: x[1:].tanh_(),
    lambda x: functional.silu(x, inplace=True), lambda x: functional.dropout(x, 0.0, True, True), lambda x: x.neg_(),
    lambda x: x.chunk(2, -1)[0].sigmoid_(), lambda x: (x[..., ::2].add_(1), x)[1],
    lambda x: functional.relu_(x.clone()),
)  # fmt: skip
_BINARY: Sequence[Callable[[Value, Value], Value]] = (
    torch.add, torch.sub, torch.mul, torch.maximum, lambda x, y: torch.where(y > 0, x, y), lambda x, y: x + y[:1],
    lambda x, y: x * y.sigmoid(), lambda x, y: x + y.mean(-1, keepdim=True), lambda x, y: torch.cat((x, y), -1),
    lambda x, y: x * y[..., :1], lambda x, y: torch.addcmul(x, x, y), lambda x, y: x.add_(y), lambda x, y: x.mul_(y),
    lambda x, y: torch.lerp(x, y, 0.25), lambda x, y: x.copy_(y), lambda x, y: functional.silu(x) * y,
    lambda x, y: x.sub_(y, alpha=2), lambda x, y: x.div(y.abs() + 1), lambda x, y: torch.stack((x, y)).sum(0),
)  # fmt: skip
_PRODUCTS: Sequence[Step] = (
    lambda m, v: m.lin(v[-1]), lambda m, v: m.lin(v[-1]), lambda m, v: m.up(v[-1]), lambda m, v: m.down(v[-1]),
    lambda m, v: functional.linear(v[-1], m.lin.weight.t(), m.vector), lambda m, v: v[-1] @ m.up.weight.t(),
    lambda m, v: v[-1] @ v[-1].mT, lambda m, v: v[-1].mT @ v[-1], lambda m, v: v[-1] @ v[-2],
    lambda m, v: v[-1] @ v[-2].mT, lambda m, v: torch.einsum("...k,nk->...n", v[-1], m.lin.weight),
    lambda m, v: torch.einsum("btk,bsk->bts", v[-1], v[-2]), lambda m, v: torch.einsum("btk,hkn->bhtn", v[-1], m.heads),
    lambda m, v: torch.bmm(v[-1], m.heads[:1].expand(v[-1].shape[0], -1, -1)),
    lambda m, v: torch.baddbmm(v[-1], v[-1], m.heads[:1].expand(v[-1].shape[0], -1, -1), beta=0.5),
    lambda m, v: torch.addmm(m.vector, v[-1].flatten(0, -2), m.lin.weight, alpha=0.5),
    lambda m, v: functional.scaled_dot_product_attention(v[-1], v[-2], v[-2]),
    lambda m, v: m.conv(v[-1].mT).mT, lambda m, v: m.depthwise(v[-1].mT).mT, lambda m, v: m.conv(v[-1].mT),
    lambda m, v: m.image(v[-1].unflatten(1, (2, -1)).permute(0, 3, 1, 2)), lambda m, v: m.image(v[-1]),
    lambda m, v: m.grouped(v[-1]), lambda m, v: m.back(v[-1]), lambda m, v: m.bn2(m.image(v[-1])),
    lambda m, v: m.image(v[-1].to(memory_format=torch.channels_last)), lambda m, v: m.bn2(v[-1]),
    lambda m, v: m.bn(v[-1].mT).mT, lambda m, v: m.norm(v[-1]), lambda m, v: m.rms(v[-1]),
    lambda m, v: m.gn(v[-1].mT).mT,
    lambda m, v: m.gn(v[-1]), lambda m, v: torch.bilinear(v[-1], v[-1], m.heads, None),
    lambda m, v: m.embed(m.ids) + v[-1],
    lambda m, v: checkpoint(lambda x: torch.tanh(m.lin(x)).relu(), v[-1], use_reentrant=False),
    lambda m, v: checkpoint(lambda x: m.down(functional.gelu(m.up(x))) + x, v[-1], use_reentrant=False),
    lambda m, v: v[-1] + m.down(functional.silu(m.up(m.norm(v[-1])))), lambda m, v: m.norm(v[-1] + m.lin(v[-1])),
    lambda m, v: m.lin(v[-1]) * m.scale + v[-1], lambda m, v: torch.tensordot(v[-1], m.heads, ([-1], [1])),
    lambda m, v: functional.glu(m.up(v[-1])), lambda m, v: (m.lin(v[-1]) + m.vector).sum(0, keepdim=True) + v[-1],
    lambda m, v: functional.interpolate(v[-1], scale_factor=2), lambda m, v: functional.avg_pool2d(v[-1], 2, 1),
    lambda m, v: torch.outer(m.vector, m.vector) @ v[-1].mT, lambda m, v: torch.mv(m.lin.weight, m.vector) + v[-1],
    lambda m, v: m.lin(v[-1]).to(torch.bfloat16).to(v[-1].dtype), lambda m, v: torch.matmul(v[-1], m.vector),
    lambda m, v: torch.inner(v[-1], m.lin.weight), lambda m, v: torch.linalg.vecdot(v[-1], v[-2]),
    lambda m, v: torch.linalg.multi_dot((v[-1].flatten(0, -2), m.up.weight.t(), m.down.weight.t())),
    lambda m, v: torch.linalg.matrix_power(v[-1] @ v[-1].mT, 2),
)  # fmt: skip


def _cast(step: Step, enabled: bool) -> Step:
    """Return a step with autocast enabled or disabled inside."""

    def run(model: Any, values: list[Value]) -> Value:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            return step(model, values)

    return run


class Model(nn.Module):
    """Steps over a list of values, which begins with the inputs; the steps share layers."""

    def __init__(self, choose: random.Random) -> None:
        super().__init__()
        bias = choose.random() < 0.7
        self.lin, self.up, self.down = nn.Linear(C, C, bias), nn.Linear(C, 2 * C, bias), nn.Linear(2 * C, C, bias)
        self.conv, self.depthwise = nn.Conv1d(C, C, 3, padding=1), nn.Conv1d(C, C, 3, padding=1, groups=C, bias=bias)
        self.image, self.back = nn.Conv2d(C, C, 3, padding=1, bias=bias), nn.ConvTranspose2d(C, C, 2, 2)
        self.grouped = nn.Conv2d(C, C, 3, 2, 1, groups=2, bias=bias)
        self.bn, self.bn2, self.norm = nn.BatchNorm1d(C), nn.BatchNorm2d(C), nn.LayerNorm(C)
        self.rms, self.gn, self.embed = nn.RMSNorm(C), nn.GroupNorm(2, C), nn.Embedding(5, C)
        self.heads, self.vector = nn.Parameter(torch.randn(2, C, C) / 3), nn.Parameter(torch.randn(C))
        self.scale = nn.Parameter(torch.rand(()))
        self.ids: Value
        self.register_buffer("ids", torch.arange(H) % 5)
        if choose.random() < 0.2:
            self.lin.weight = nn.Parameter(self.lin.weight.detach().clone())
            self.embed.weight = nn.Parameter(torch.randn(5, C))
            self.down.weight = nn.Parameter(self.up.weight.detach().t().clone())
        for parameter in self.parameters():
            parameter.requires_grad_(choose.random() < 0.85)
        self.steps: list[Step] = []
        self.results: list[int] = []

    def forward(self, *inputs: Value) -> tuple[Value, ...]:
        values = [each * 1 for each in inputs]
        for step in self.steps:
            values.append(step(self, values))
        return tuple(values[place] for place in self.results)


class _Case:
    def __init__(self, seed: int, ones: bool = False) -> None:
        self.choose = choose = random.Random(seed)
        torch.manual_seed(seed)
        self.seed = seed
        self.autocast = choose.random() < 0.25
        self.training, self.gradients = choose.random() < 0.8, choose.random() < 0.85
        self.model = Model(choose).to(torch.float32 if self.autocast else torch.float64)
        self.model.train(self.training)
        images = choose.random() < 0.35
        batch = choose.choice([2, 2, 3, 1, 0])
        shape: tuple[int, ...] = (batch, C, choose.choice([4, 6]), H) if images else (batch, H, C)
        if ones:
            shape = (batch, *(choose.choice((each, 1)) if each != C else C for each in shape[1:]))
        self.dynamic = choose.random() < 0.15
        self.shapes = [shape, (batch + 2, *shape[1:])] if self.dynamic else [shape]
        self.ways = [choose.choice(["packed", "packed", "transposed", "sliced", "last"]) for _ in range(2)]
        self.grads = [choose.random() < 0.6 for _ in range(2)]
        count = choose.randint(2, 8)
        self.model.results = [1]
        self.try_(_PRODUCTS[choose.randrange(len(_PRODUCTS))])
        for _ in range(count):
            self.try_(self.draw())
        values = 2 + len(self.model.steps)
        self.model.results = sorted(
            {*(choose.randrange(values) for _ in range(choose.choice([0, 0, 1, 2]))), values - 1}
        )

    def draw(self) -> Step:
        choose = self.choose
        place = choose.choice([-1] * 6 + [-2, -2, -3, 0])
        kind = choose.random()
        if kind < 0.35:
            product = choose.choice(_PRODUCTS)
            return _cast(product, choose.random() < 0.5) if self.autocast and choose.random() < 0.3 else product
        if kind < 0.6:
            unary = choose.choice(_UNARY)
            return lambda m, v: unary(v[place])
        if kind < 0.75:
            view = choose.choice(_VIEWS)
            return lambda m, v: view(v[place])
        if kind < 0.83:
            change = choose.choice(_IN_PLACE)
            return lambda m, v: change(v[place])
        binary, other = choose.choice(_BINARY), choose.choice([-2, -2, -3, 0, 1, -1])
        return lambda m, v: binary(v[place], v[other])

    def try_(self, step: Step) -> None:
        """Add a step if eager mode runs it, and its gradients, for all sizes."""
        model = self.model
        model.steps.append(step)
        model.results = [1 + len(model.steps)]
        try:
            for call in range(len(self.shapes)):
                found = self.run(copy.deepcopy(model), None, call)
                if any(each.numel() > 4000 or not bool(each.isfinite().all()) for each in found[0]):
                    raise ValueError("a result is too large")
                if any(float(each.detach().abs().amax()) > 100 for each in found[0] if each.numel()):
                    raise ValueError("a number is too large")
        except (RuntimeError, IndexError, NotImplementedError, TypeError, ValueError):
            model.steps.pop()
            model.results = [1 + len(model.steps)]

    def tolerance(self) -> float:
        """Return the tolerance of the coarsest type on the way."""
        types: set[torch.dtype] = set()

        class Watching(TorchDispatchMode):
            def __torch_dispatch__(self, function: Any, kinds: Any, args: Any = (), keywords: Any = None) -> Any:
                result = function(*args, **(keywords or {}))
                types.update(each.dtype for each in tree_leaves(result) if isinstance(each, torch.Tensor))
                return result

        with Watching():
            self.run(copy.deepcopy(self.model), None, 0)
        return max(TOLERANCES.get(each, 0.0) for each in types)

    def inputs(self, call: int, exact: bool) -> list[Value]:
        generator = torch.Generator().manual_seed(self.seed + call)
        found = []
        for how, grad in zip(self.ways, self.grads, strict=True):
            shape = self.shapes[call]
            x = torch.randn(shape, generator=generator)
            if how == "transposed":
                x = torch.randn(shape[1], shape[0], *shape[2:], generator=generator).transpose(0, 1)
            elif how == "sliced":
                x = torch.randn(*shape[:-1], 2 * shape[-1], generator=generator)[..., ::2]
            elif how == "last" and len(shape) == 4:
                x = x.to(memory_format=torch.channels_last)
            x = x.double() if exact or not self.autocast else x
            found.append(x.requires_grad_(grad and self.gradients))
        return found

    def run(
        self, model: Model, call: Any, which: int, exact: bool = False
    ) -> tuple[list[Value], list[Value | None], list[Value], list[Value]]:
        """Return the results of a call, the gradients, the buffers and the inputs afterwards."""
        inputs = self.inputs(which, exact)
        function = model if call is None else call
        with (
            torch.set_grad_enabled(self.gradients),
            torch.autocast("cpu", torch.bfloat16, enabled=self.autocast and not exact),
        ):
            results = list(function(*inputs))
        grads: list[Value | None] = []
        if self.gradients:
            generator = torch.Generator().manual_seed(0)
            floating = [each for each in results if each.requires_grad]
            loss = sum((each.double() * torch.randn(each.shape, generator=generator)).sum() for each in floating)
            if floating:
                torch.autograd.backward(loss)
            grads = [each.grad for each in (*inputs, *model.parameters())]
        return results, grads, list(model.buffers()), inputs


def _check(seed: int, ours: Callable[[Any, bool], Any], theirs: Callable[[Any, bool], Any], ones: bool = False) -> int:
    """Compare; accept errors that PyTorch's compiler makes without evt."""
    try:
        return _compared(seed, ours, ones)
    except Exception:
        try:
            _compared(seed, theirs, ones)
        except Exception:
            return 0
        raise


def _compared(seed: int, compile: Callable[[Any, bool], Any], ones: bool) -> int:
    case = _Case(seed, ones)
    tolerance = case.tolerance()
    RECORDS.clear()
    torch._dynamo.reset()
    ours, theirs = copy.deepcopy(case.model), copy.deepcopy(case.model)
    made = compile(ours, case.dynamic)
    for call in range(len(case.shapes)):
        exact = copy.deepcopy(theirs).double()
        want, eager = case.run(exact, None, call, exact=True), case.run(theirs, None, call)
        got = case.run(ours, made, call)
        for name, wanted, reference, found in zip(
            ("result", "gradient", "buffer", "input"), want, eager, got, strict=True
        ):
            assert len(wanted) == len(found)
            for place, (x, y, z) in enumerate(zip(wanted, reference, found, strict=True)):
                where = f"call {call}, {name} {place}"
                assert (y is None) == (z is None), f"{where}: {z is None}"
                if x is None or y is None or z is None:
                    continue
                assert (y.dtype, y.shape) == (z.dtype, z.shape), (
                    f"{where}: {z.dtype}, {z.shape}, not {y.dtype}, {y.shape}"
                )
                if name == "result":
                    assert y.requires_grad == z.requires_grad, f"{where}: requires_grad {z.requires_grad}"
                _close(x, y, z, tolerance, where)
        for each in (ours, theirs):
            each.zero_grad(set_to_none=True)
    return sum(row.fused for record in RECORDS for row in record.rows)


def _close(exact: Value, eager: Value, found: Value, tolerance: float, where: str) -> None:
    exact, eager, found = exact.detach().double(), eager.detach().double(), found.detach().double()
    assert torch.equal(eager.isfinite(), found.isfinite()), f"{where}: not finite elsewhere"
    size = max(float(eager.nan_to_num(0, 0, 0).norm()), 1.0)
    errors = [float((x - y).nan_to_num(0, 0, 0).norm()) for x, y in ((found, eager), (found, exact), (eager, exact))]
    close = errors[0] <= tolerance * size or errors[1] <= _FACTOR * errors[2] + _LEAST * tolerance * size
    assert close, f"{where}: off by {errors[0] / size} from eager, {errors[1] / size}; eager by {errors[2] / size}"


def check(seed: int, ones: bool = False) -> int:
    """Assert that a random step is right with evt's pass; the reference and eager mode run the graph."""
    plain = "aot_eager_decomp_partition"
    return _check(seed, fused, lambda model, dynamic: torch.compile(model, backend=plain, dynamic=dynamic), ones)


def check_ones(seed: int) -> int:
    """Assert that a random step with images and sequences of one element is right."""
    return check(seed, ones=True)


def check_inductor(seed: int) -> int:
    """Assert that a random step is right compiled by Inductor with evt's pass."""
    return _check(
        seed,
        lambda model, dynamic: compiled(model, ALWAYS, dynamic=dynamic),
        lambda model, dynamic: torch.compile(model, dynamic=dynamic),
    )


def check_fuse(seed: int) -> int:
    """Assert that the model of a random step is right fused, for inference; results have eager's strides."""
    case = _Case(seed, ones=seed % 3 == 0)
    case.gradients = False
    with torch.no_grad():
        return _fused(case, case.tolerance())


def _fused(case: _Case, tolerance: float) -> int:
    model = case.model.eval()
    given = (case.inputs(call, exact=False) for call in range(len(case.shapes)))
    inputs = [[each.detach() for each in call] for call in given]
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            made = fuse(copy.deepcopy(model), tuple(inputs[0]))
    except ArgumentError as error:
        if error.diagnostics[0].code != "E1020":
            raise
        return 0
    for call in inputs:
        copies = [copy.deepcopy(each) for each in call]
        with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
            wanted, found = (*model(*call), *call), (*made(*copies), *copies)
        try:
            exact = copy.deepcopy(model).double()(*(each.double() for each in call))
        except RuntimeError:  # a layer and a value that a step casts have two types
            exact = wanted
        for place, (want, got) in enumerate(zip(wanted, found, strict=True)):
            where = f"result {place}"
            facts = [(each.dtype, tuple(each.shape), each.stride(), each.storage_offset()) for each in (want, got)]
            assert facts[0] == facts[1], f"{where}: {facts[1]}, not {facts[0]}"
            _close(exact[place] if place < len(exact) else want, want, got, tolerance, where)
    return len(fusion(made).regions)


if __name__ == "__main__":
    check_seeds(__doc__, {"reference": check, "ones": check_ones, "inductor": check_inductor, "fuse": check_fuse})
