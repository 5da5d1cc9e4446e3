"""Lower calls of regions in Inductor: the code calls a :class:`evt.runtime.site.Site` for each shape of call.

    evt_launch_f3c1 = evt_site('...', lambda s0: (None, ((s0, 768), (768, 1), 0), None, None))
    ...
    evt_launch_f3c1[s0](arg1_1, buf0, buf1, arg2_1)

Inductor allocates the results as for its own products, so its memory planner reuses buffers for them. A launch needs
addresses only, so the code passes buffers and not views. The graph keeps the operator, and C++ code calls it.

Buffers of convolutions are channels last, as kernels store them. The operator's results have PyTorch's memory format
instead, which is never channels last for lines of pixels; Inductor converts them where a reader needs this format.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch
from torch._inductor import ir, lowering
from torch._inductor.virtualized import V, ops
from torch.fx import Node
from torch.utils import _pytree

import evt.runtime.folded
import evt.runtime.group_norm  # noqa: F401  both register operators
from evt.fx.compared import STORED
from evt.fx.index_map import same
from evt.fx.rewrite import STRIDES
from evt.fx.shown import ORDERED
from evt.reference import is_image
from evt.request import Request
from evt.runtime.call import caller_of
from evt.runtime.inductor import call_in_cpp, is_cpp
from evt.runtime.memory_format import copied_channels_last
from evt.runtime.site import Site

_OPERATOR = torch.ops.evt.launch.default
_FOLDED = torch.ops.evt.fold_norms.default
_GROUP_NORM = torch.ops.evt.group_norm.default
_NAME = "evt_site"


class _Launch(ir.ExternKernelOut):  # type: ignore[misc, unused-ignore]
    """A launch that writes its first result into its own buffer, and other results into ``memory``."""

    def __init__(self, program: str, results: Sequence[Any], arguments: Sequence[Any], memory: Sequence[Any]) -> None:
        layouts = [*results, *(each.get_layout() for each in arguments)]
        sizes = [size for each in layouts for size in (*each.size, *each.stride, each.offset)]
        symbols = sorted({symbol for size in sizes for symbol in getattr(size, "free_symbols", ())}, key=str)
        super().__init__(results[0], arguments, symbols, python_kernel_name=_NAME)
        self.program, self.symbols, self.results = program, symbols, results
        self.shapes = str([(each.dtype, *each.size, *each.stride, each.offset) for each in layouts])
        self.memory = [self.unwrap_storage_for_input(each) for each in memory]
        nowhere = ir.NoneLayout(device=self.get_device())
        self.mutation_outputs = [ir.MutationOutput(nowhere, each, self) for each in self.memory]

    def codegen(self, wrapper: Any) -> None:
        self.codegen_comment(wrapper)
        unread = self.get_name() in V.graph.removed_buffers  # the kernel writes this result, so it needs memory
        if unread:
            V.graph.removed_buffers.discard(self.get_name())
            wrapper.codegen_allocation(self)
        a, b, *inputs = map(self._passed, self.inputs)
        memory = [each.codegen_reference() for each in (self, *self.memory)]
        results = zip(memory, ("None" if each.size else "((), (), 0)" for each in self.results), strict=True)
        names, views = zip(a, b, *results, *inputs, strict=True)
        symbols = ", ".join(map(str, self.symbols))
        taking = f", lambda {symbols}: ({', '.join(views)},)" if set(views) != {"None"} else ""
        made = f"{_NAME}({self.program!r}{taking})"
        # Calls of one program with different shapes have separate sites: a site checks and packs the shapes once.
        name = f"evt_launch_{sha256((made + self.shapes).encode()).hexdigest()[:8]}"
        self._define(wrapper, f"{name} = {made}")
        wrapper.writeline(f"{name}[{symbols or '()'}{',' if len(self.symbols) == 1 else ''}]({', '.join(names)})")
        if unread:
            wrapper.codegen_free(self)

    def _passed(self, tensor: Any) -> tuple[str, str]:
        """Return the name of a tensor's buffer in the code, and the view of that buffer or "None"."""
        if not isinstance(tensor, ir.ReinterpretView) or not _is_whole(tensor.data, tensor.layout.dtype):
            return tensor.codegen_reference(), "None"
        code, layout = V.graph.wrapper_code, tensor.layout
        size, stride = map(code.codegen_python_shape_tuple, (layout.size, layout.stride))
        return tensor.get_name(), f"({size}, {stride}, {code.codegen_sizevar(layout.offset)})"

    def _define(self, wrapper: Any, line: str) -> None:
        """Write a line once, before all functions of the code: the wrapper of the outermost graph has that place."""
        while (outer := getattr(wrapper, "parent_wrapper", None)) is not None:
            wrapper = outer
        written: set[str] = vars(wrapper).setdefault("evt_lines", set())
        needed = f"from {Site.__module__} import {Site.__name__} as {_NAME}"
        for place, each in ((wrapper.imports, needed), (wrapper.header, line)):
            if each not in written:
                place.writeline(each)
                written.add(each)


def _is_whole(data: Any, dtype: torch.dtype) -> bool:
    """Return whether a view's base is a buffer with a name, at offset 0 and with the same type."""
    while isinstance(data, ir.StorageBox | ir.TensorBox):
        data = data.data
    return isinstance(data, ir.Buffer) and data.get_layout().offset == 0 and data.get_layout().dtype == dtype


def _lower(*given: Any) -> Any:
    if is_cpp(V.graph):
        return call_in_cpp(_OPERATOR, given)
    if V.graph.cpp_wrapper or getattr(V.graph, "fx_wrapper", False):
        return _pytree.tree_map(ir.TensorBox.create, ir.FallbackKernel.create(_OPERATOR, *given))
    with V.graph.fake_mode:
        found, arguments = _processed(ir.ExternKernel.process_kernel(_OPERATOR, *given))
        found = _as_stored(caller_of(given[-1]).request, found)
    results = [ir.FallbackKernel.tensor_to_layout(each) for each in found]
    memory = [_empty(each) for each in results[1:]]
    first = ir.TensorBox.create(_Launch(given[-1], results, arguments, memory))
    return [first, *map(_shown, memory, results[1:])]


def _as_stored(request: Request, found: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return fake results of a program with the strides of the tensors that kernels store."""
    if request.convolution is None:
        return found
    outputs = map(request.dag.output.__getitem__, request.outputs)
    return [copied_channels_last(x) if is_image(output) else x for output, x in zip(outputs, found, strict=True)]


def _lower_folded(*given: Any) -> Any:
    """Call the operator; its results are kept from call to call, so no other buffer may take their memory."""
    results = _pytree.tree_map(ir.TensorBox.create, ir.FallbackKernel.create(_FOLDED, *given))
    V.graph.never_reuse_buffers.update(each.get_name() for each in results)
    return results


def _lower_stored(tensor: Any) -> Any:
    """Store a tensor, for all its readers.

    Kernels of Inductor's compute 16-bit floats in f32. The conversion to bits and back rounds the elements for readers
    in the kernel that stores them; Inductor omits a conversion to the 16-bit type and back.
    """
    dtype, load = tensor.get_dtype(), tensor.make_loader()

    def rounded(index: Any) -> Any:
        bits = ops.to_dtype_bitcast(load(index), torch.int16, dtype)
        return ops.to_dtype_bitcast(bits, dtype, torch.int16)

    if dtype.itemsize == torch.int16.itemsize and not _is_given(tensor):
        device, size = tensor.get_device(), tensor.get_size()
        tensor = ir.Pointwise.create(device=device, dtype=dtype, inner_fn=rounded, ranges=size)
    tensor.realize()
    return tensor


def _lower_ordered(tensor: Any, dims: Sequence[int]) -> Any:
    """Store a tensor with its dimensions in an order, outermost first; copy it if it lies otherwise."""
    tensor.realize()
    order = [0] * len(dims)
    for place, dim in enumerate(reversed(dims)):
        order[dim] = place
    return ir.ExternKernel.require_stride_order(tensor, order)  # type: ignore[no-untyped-call, unused-ignore]


def _is_given(data: Any) -> bool:
    """Return whether a tensor is in memory, and no kernel of Inductor's computes it."""
    while isinstance(data, ir.MutableBox | ir.BaseView):
        data = data.data
    return isinstance(data, ir.Buffer) and not isinstance(data, ir.ComputedBuffer)


def _processed(given: Any) -> tuple[Any, Any]:
    """Return an operator's results and tensors; up to torch 2.13 they are parts of a tuple."""
    return given[:2] if isinstance(given, tuple) else (given.example_output, given.tensor_args)


def _empty(layout: Any) -> Any:
    """Return uninitialised memory for a result. Inductor would fill memory without dimensions by a kernel."""
    size, stride = (layout.size, layout.stride) if layout.size else ([1], [1])
    return lowering.empty_strided(size, stride, dtype=layout.dtype, device=layout.device)  # type: ignore[no-untyped-call, unused-ignore]


def _shown(memory: Any, layout: Any) -> Any:
    view: Any = lowering.view
    return memory if layout.size else view(memory, [])


def _ordered(node: Node, *args: Any, **keywords: Any) -> tuple[Any, Any]:
    """Return the arguments of a call with the order of strides for which its kernel is planned.

    Inductor writes a computed value that is expanded as one of all its elements. Its dimensions of stride 0 become the
    outermost ones: as the innermost ones, which their stride makes them, they would leave rows and columns strided.
    """
    planned = iter(node.meta.get(STRIDES, ()))

    def ordered(given: Any, known: Any) -> Any:
        if not (isinstance(known, Node) and isinstance(given, ir.IRNode)):
            return given
        strides = next(planned, None) or known.meta["val"].stride()
        if not ir.is_storage_and_layout(given):
            outermost = sum(strides) + 1
            strides = [outermost if same(stride, 0) else stride for stride in strides]
        order = ir.get_stride_order(strides, V.graph.sizevars.shape_env)
        return ir.ExternKernel.require_stride_order(given, order)  # type: ignore[no-untyped-call, unused-ignore]

    given, structure = _pytree.tree_flatten((args, keywords))
    known = _pytree.tree_leaves((node.args, node.kwargs))
    made: tuple[Any, Any] = _pytree.tree_unflatten(map(ordered, given, known), structure)
    return made


def register() -> None:
    """Register the lowering."""
    made: Any = lowering
    made.make_fallback(_OPERATOR, _ordered, warn=False)
    made.register_lowering(_OPERATOR, type_promotion_kind=None)(_lower)
    made.make_fallback(_GROUP_NORM, _ordered, warn=False)
    made.make_fallback(_FOLDED, warn=False)
    made.register_lowering(STORED, type_promotion_kind=None)(_lower_stored)
    made.register_lowering(ORDERED, type_promotion_kind=None)(_lower_ordered)
    made.register_lowering(_FOLDED, type_promotion_kind=None)(_lower_folded)
