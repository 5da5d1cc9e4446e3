"""Results whose sizes are symbols, and the refusal of gradients: PyTorch's stable C++ interface has neither.

A program is a dictionary of the package's tables. Each extension has the same file.
"""

from __future__ import annotations

import math

import torch


def register(library, operator, program):
    """Add the shapes, and the refusal of gradients, to the overloads of an operator; the library keeps them."""
    qualified = operator._qualified_op_name

    def results(A, B, **inputs):  # noqa: N803
        return _results(qualified, program, A, B, inputs)

    for name in operator.overloads():
        overload = getattr(operator, name)
        torch.library.register_fake(overload, results, lib=library)
        library.impl(overload, _without_derivative(overload, qualified), "Autograd", with_keyset=True)


class _Underived(torch.autograd.Function):
    """Results whose gradients nobody knows."""

    @staticmethod
    def forward(ctx, qualified, results, *_):
        ctx.qualified = qualified
        return results

    @staticmethod
    def backward(ctx, *_):
        raise RuntimeError(f"derivative for {ctx.qualified} is not implemented")


def _without_derivative(overload, qualified):
    """Return an operator whose results refuse ``backward``."""
    below = torch._C._after_autograd_keyset

    def call(keyset, *args, **kwargs):
        with torch._C._AutoDispatchBelowAutograd():
            results = overload.redispatch(keyset & below, *args, **kwargs)
        if not torch.is_grad_enabled():
            return results
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if not any(each.requires_grad for each in tensors):
            return results
        return _Underived.apply(qualified, results, *tensors)

    return call


def _results(qualified, program, a, b, inputs):
    """Return the results of a call without their values."""

    def check(condition, message):
        if not condition:
            raise RuntimeError(f"{qualified}: {message}")

    given = {"A": a, "B": b, **inputs}
    for value in program["inputs"]:
        tensor = given.get(value["name"])
        if isinstance(tensor, torch.Tensor):
            expected = getattr(torch, value["dtype"])
            check(tensor.dtype == expected, f"`{value['name']}` is {tensor.dtype}; expected {expected} (evt E0603)")
    shapes = (_convolution if program["convolution"] else _matrices)(program, list(a.shape), list(b.shape), check)
    columns = math.prod(shapes["n"])
    for width, what in program["columns"]:
        check(columns % width == 0, f"n is {columns}, which does not divide into {what} (evt E0604)")
    made = []
    for value in program["outputs"]:
        shape = [size for mode, divisor in value["modes"] for size in _dims(shapes[mode], divisor)]
        if value["bits"]:
            shape[-1] = (shape[-1] + 7) // 8
        result = a.new_empty(shape, dtype=getattr(torch, value["dtype"]))
        if value["image"]:
            result = result.movedim(-1, 1)
            if not _follows_channels_last(program["convolution"], a, b):
                result = result.contiguous()
        made.append(result)
    return made[0] if len(made) == 1 else tuple(made)


def _dims(dims, divisor):
    return dims if divisor == 1 else [math.prod(dims) // divisor]


def _matrices(program, a, b, check):
    """Return the dimensions of the modes of a product of matrices."""
    modes_a, modes_b = ([mode for mode, _ in each["modes"]] for each in program["inputs"][:2])
    rows_lead = program["linear"] and modes_a[0] == "m"
    least = 1 if rows_lead else 2
    check(len(a) >= least, f"`A` has shape {a}; expected at least two dimensions (evt E0604)")
    right = len(b) == 2 if rows_lead else len(b) >= 2
    check(right, f"`B` has shape {b}; expected two dimensions, or in batches more (evt E0604)")
    shapes = {"l": []}
    if rows_lead:
        shapes["m"], k = a[:-1], a[-1]
    else:
        known = dict(zip(modes_a, a[-2:], strict=True))
        k = known.pop("k")
        shapes |= {mode: [size] for mode, size in known.items()}
        rank = max(len(a), len(b)) - 2
        for one, two in zip([1] * (rank + 2 - len(a)) + a[:-2], [1] * (rank + 2 - len(b)) + b[:-2], strict=True):
            check(one == two or one == 1 or two == 1, f"the batches of A {a} and B {b} do not broadcast (evt E0604)")
            shapes["l"].append(two if one == 1 else one)
    known = dict(zip(modes_b, b[-2:], strict=True))
    of_b = known.pop("k")
    shapes |= {mode: [size] for mode, size in known.items()}
    check(k == of_b, f"A is {a} and B is {b}: k is {k} in A and {of_b} in B (evt E0604)")
    return shapes


def _convolution(program, a, b, check):
    """Return the dimensions of the modes of a convolution."""
    geometry = program["convolution"]
    strides, kind = geometry["stride"], geometry["kind"]
    rank = len(strides)
    for name, shape in (("A", a), ("B", b)):
        check(len(shape) == rank + 2, f"`{name}` has {len(shape)} dimensions; expected {rank + 2} (evt E0604)")
    wgrad, dgrad = kind == "wgrad", kind == "dgrad"
    filters = a[1] if wgrad else b[0]
    taps = list(geometry["kernel_size"]) if wgrad else b[2:]
    if wgrad:
        check(a[0] == b[0], f"A has {a[0]} images and B has {b[0]} (evt E0604)")
    else:
        channels = filters if dgrad else b[1]
        check(a[1] == channels, f"A has {a[1]} channels and B has {channels} (evt E0604)")
    found = []
    for at in range(rank):
        reach = geometry["dilation"][at] * (taps[at] - 1)
        before, after = geometry["padding"][at] if geometry["padding"] else (reach // 2, reach - reach // 2)
        if dgrad:
            size = (a[at + 2] - 1) * strides[at] - before - after + reach + 1 + geometry["output_padding"][at]
            check(size >= 1, f"the result would have {size} pixels along a dimension (evt E0604)")
        else:
            padded = (b if wgrad else a)[at + 2] + before + after
            check(padded > reach, f"the filters span {reach + 1} pixels, the padded input has {padded} (evt E0604)")
            size = (padded - reach - 1) // strides[at] + 1
            check(not wgrad or a[at + 2] == size, f"A has {a[at + 2]} pixels along a dimension, not {size} (evt E0604)")
        found.append(size)
    if wgrad:
        return {"l": [], "m": [filters], "n": [*taps, b[1]]}
    return {"l": [], "m": [a[0], *found], "n": [b[1] if dgrad else filters]}


def _follows_channels_last(geometry, a, b):
    """Return whether PyTorch's convolution of A and B is channels_last."""
    wgrad = geometry["kind"] == "wgrad"
    if len(geometry["stride"]) > 1:
        return _is_channels_last(b if wgrad else a) or _is_channels_last(b)
    first = b if wgrad else a
    of_first = first.is_contiguous() and _is_channels_last(first.unsqueeze(2))
    return of_first or (not wgrad and _is_channels_last(b.unsqueeze(2)))


def _is_channels_last(image):
    """Return whether PyTorch regards the strides of an image as channels_last."""
    if image.stride(1) == 0:
        return False
    least = 0
    for at in (1, *range(image.dim() - 1, 1, -1), 0):
        size, stride = image.shape[at], image.stride(at)
        if size == 0 or stride < least or (at == 0 and least == image.stride(1)):
            return False
        least = stride * size if size > 1 else stride
    return True
