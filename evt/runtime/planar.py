"""Contiguous outputs [N, F, ...] of convolutions of one channel, which a kernel stores without a copy.

PyTorch takes images of one channel to be contiguous, and convolves them to contiguous outputs: :mod:`evt.plan.planar`.
"""

from __future__ import annotations

from dataclasses import replace

from evt.errors import EvtError
from evt.plan import LayoutClass, Target
from evt.plan.plan import HaloConvolution
from evt.plan.planar import may_be_planar
from evt.request import Request, surveyed
from evt.runtime.bound import Bound
from evt.runtime.kernels import call_problem
from evt.runtime.layout import LIMIT, TensorArgument
from evt.runtime.memory_format import follows_channels_last


def with_planes(request: Request, bound: Bound, target: Target, atomic: bool, *, fresh: bool) -> Bound:
    """Return a call whose kernel stores contiguous images, or the call itself if no kernel of a target does.

    ``fresh``: the call allocates its output.
    """
    problem, dag = bound.convolution, bound.dag
    if problem is None or problem.channels > 1 or problem.geometry.rank < 2 or not may_be_planar(dag):
        return bound
    output = dag.primary
    if "A" in bound.copied or "B" in bound.copied:
        return bound
    if fresh:
        is_contiguous = not follows_channels_last(problem.geometry, bound.values["A"], bound.values["B"])
    else:
        is_contiguous = output.name in bound.copied and bound.values[output.name].is_contiguous()
    pixels, filters = bound.extent("m") // problem.leads["m"][0], bound.extent("n")
    if not is_contiguous or min(pixels, filters) == 1 or bound.extent("m") * filters > LIMIT:
        return bound
    planes = TensorArgument(output.name, {"m": 1, "n": pixels, "l": 0}, LayoutClass("m", 1))
    copied = tuple(name for name in bound.copied if name != output.name)
    made = replace(bound, tensors={**bound.tensors, output.name: planes}, copied=copied, planar=True)
    try:
        loops = [plan.mainloop for plan in surveyed(request, call_problem(request, made, target, atomic)).defaults]
    except EvtError:  # no route, or another one: the call tells why
        return bound
    return made if all(isinstance(loop, HaloConvolution) and loop.planar for loop in loops) else bound
