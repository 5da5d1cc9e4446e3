"""One custom operator for all fused programs: ``torch.ops.evt.run(a, b, inputs, program)``.

``program`` is the program itself, as JSON of what a pickle of it holds, so a graph with calls of it can be stored and
read elsewhere. The operator is opaque to torch.compile and torch.export, allocates its outputs, and has a fake
implementation that works with symbolic sizes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

import torch

from evt.program import Program
from evt.runtime.memory_format import follows_channels_last
from evt.spec import typed_graph

_LIBRARY = torch.library.Library("evt", "FRAGMENT")
_LIBRARY.define("run(Tensor a, Tensor b, Tensor[] inputs, str program) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))


def write_program(program: Program) -> str:
    """Return a program as text that :func:`read_program` reads."""
    return json.dumps(program.__getstate__(), sort_keys=True)


@lru_cache(maxsize=4096)
def read_program(text: str) -> Program:
    """Return the program of such a text, the same object each time. Raises ArgumentError (E0613, E0657)."""
    made = Program.__new__(Program)
    made.__setstate__(json.loads(text))
    return made


def _run(a: torch.Tensor, b: torch.Tensor, inputs: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    op = read_program(program)
    with torch.no_grad():
        found = op(a, b, **dict(zip(op.inputs, inputs, strict=True)))
    return [found] if len(op.outputs) == 1 else list(found)


def _fake(a: torch.Tensor, b: torch.Tensor, inputs: Sequence[torch.Tensor], program: str) -> list[torch.Tensor]:
    spec = read_program(program).spec
    kinds = [str(each.dtype).removeprefix("torch.") for each in (a, b)]
    outputs = typed_graph(spec, *kinds).outputs
    geometry = spec.convolution
    if geometry is not None:
        assert geometry.padding is not None
        pads = [before for before, _ in geometry.padding]
        others = (geometry.stride, pads, geometry.dilation, False, [0] * geometry.rank, geometry.groups)
        like = torch.ops.aten.convolution.default(a, b, None, *others)
        last = follows_channels_last(geometry, a, b)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        memory = formats.get(like.dim(), torch.contiguous_format) if last else torch.contiguous_format
        shape = like.shape
    else:
        memory = torch.contiguous_format
        modes = spec.operand_modes[1]
        columns = b.shape[-1] if modes[-1] == "n" else b.shape[-2]
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if spec.operation == "gemm" else a.shape[:-2]
        shape = torch.Size((*batch, a.shape[-2], columns))
    return [
        torch.empty(shape, dtype=getattr(torch, output.dtype.torch), device=a.device, memory_format=memory)
        for output in outputs
        if output.dtype is not None
    ]


_LIBRARY.impl("run", _run, "CompositeExplicitAutograd")
torch.library.register_fake("evt::run", _fake, lib=_LIBRARY)
