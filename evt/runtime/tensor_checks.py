"""The checks of tensors that are more than memory with a shape and strides, which is all that kernels know.

:func:`plain` removes properties that do not matter: a subclass without behaviour, dimension names, a negative bit.
:func:`fault` refuses tensors without memory, tensors that PyTorch traces or transforms, and tangents: a launch would
lose them. Both functions serve the first call of a combination. Later calls only check whether a property may have
changed, which is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, TypeGuard

import torch
from torch.autograd import forward_ad

from evt.diagnostics import Diagnostic
from evt.layout import span
from evt.reference.dense import not_dense
from evt.runtime.layout import modes_of

#: The types that calls recognise, plain tensors and numbers: isinstance() on torch.Tensor takes ten times as long.
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
NUMBERS = frozenset({float, int})

#: The number of active modes of torch.utils._python_dispatch: PyTorch's tracers are among them.
mode_depth = torch._C._len_torch_dispatch_stack
#: Whether a transform of torch.func is active: vmap, grad, jvp and the like.
transforming = torch._C._are_functorch_transforms_active
_mode_at = torch._C._get_dispatch_stack_at


def is_watched() -> bool:
    """Return whether PyTorch traces or transforms this call, or a mode sees its operators."""
    return bool(mode_depth()) or transforming() or torch._C._get_tracing_state() is not None


def tracing_fault() -> Diagnostic | None:
    """Return why no tensors can be launched here, or None: PyTorch traces or transforms the call."""
    if torch._C._get_tracing_state() is not None:
        return _traced("this call is traced by torch.jit.trace")
    if tracer := _tracer():
        return _traced(f"this call is traced by {tracer}")
    if transforming():
        return _traced("this call is inside of a transform of torch.func (vmap, grad, jvp, ...)")
    return None


def _tracer() -> str:
    """Return the name of an active mode of PyTorch's that traces, or ""."""
    modes = (type(_mode_at(place)) for place in range(mode_depth()))
    return next((mode.__name__ for mode in modes if mode.is_infra_mode()), "")


def is_traced(values: Iterable[object]) -> bool:
    """Return whether a call on these values is for PyTorch's operators: it has no memory to launch on."""
    if torch._C._get_tracing_state() is not None:
        return False
    return bool(_tracer()) or transforming() or any(isinstance(each, torch.Tensor) and _stands(each) for each in values)


def _stands(tensor: torch.Tensor) -> bool:
    """Return whether a tensor stands for other tensors that PyTorch's dispatcher knows."""
    kind = type(tensor)
    if kind.__name__ in ("FakeTensor", "FunctionalTensor") and kind.__module__.startswith("torch._subclasses"):
        return True
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor)


def _traced(what: str) -> Diagnostic:
    help_text = "call the program outside of it, on tensors that have values; batches take the place of vmap"
    return Diagnostic("E0611", f"{what}, which is not supported yet", help=help_text)


def fault(name: str, tensor: torch.Tensor, *, written: bool = False) -> Diagnostic | None:
    """Return why a launch cannot take a tensor of any shape and type, or None; ``written``: it is a buffer."""
    return (
        not_dense(name, tensor)
        or _without_values(name, tensor)
        or _dropped(name, tensor, written)
        or _without_memory(name, tensor)
    )


def _without_values(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Return why a tensor has no values, or None: it is traced or transformed, or stands for others."""
    kind = type(tensor)
    if kind.__name__ in ("FakeTensor", "FunctionalTensor") and kind.__module__.startswith("torch._subclasses"):
        return _traced(f"`{name}` is a {kind.__name__} of torch.export, make_fx or their like")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return _traced(f"`{name}` is inside of a transform of torch.func (vmap, grad, jvp, ...)")
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        message = f"`{name}` is a {kind.__name__}, which is not one piece of memory; expected a plain tensor"
        help_text = f"pass the tensor that it stands for, of a DTensor `{name}.to_local()`"
        return Diagnostic("E0607", message, help=help_text)
    return None


def _dropped(name: str, tensor: torch.Tensor, written: bool) -> Diagnostic | None:
    """Diagnose a property of a tensor that a launch would lose, or return None."""
    if found := gradient_fault(name, tensor):
        return found
    if written and tensor.is_neg():
        message = f"the buffer `{name}` is a negative view: its memory holds its elements' negatives"
        return Diagnostic("E0608", message, help="pass a separate buffer")
    return None


def gradient_fault(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Diagnose gradients that would be dropped, or return None."""
    if tensor.requires_grad and torch.is_grad_enabled():
        message = f"`{name}` requires grad, and autograd records calls without output buffers only"
        help_text = f"leave the buffers out, call under torch.no_grad(), or pass {name}.detach()"
        return Diagnostic("E0610", message, help=help_text)
    return tangent_fault(name, tensor)


def tangent_fault(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Return why a launch would lose a tensor's tangent, or None."""
    if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:  # type: ignore[no-untyped-call]
        message = f"`{name}` has a tangent, and forward-mode differentiation is not supported"
        help_text = f"pass torch.autograd.forward_ad.unpack_dual({name}).primal"
        return Diagnostic("E0610", message, help=help_text)
    return None


def _without_memory(name: str, tensor: torch.Tensor) -> Diagnostic | None:
    """Return why some elements have no memory, or None; FSDP frees the memory of unsharded parameters."""
    if tensor.device.type == "meta" or reaches_memory(tensor):
        return None
    message = f"`{name}` has no memory: its storage has fewer bytes than its shape and strides reach over"
    help_text = "its storage was resized: pass it while its values are there (of FSDP, inside of the wrapped module)"
    return Diagnostic("E0612", message, help=help_text)


def reaches_memory(tensor: torch.Tensor) -> bool:
    """Return whether a strided tensor's storage holds all of its elements."""
    if not tensor.numel():
        return True
    end = tensor.storage_offset() + span(modes_of(tensor))[1]
    return tensor.data_ptr() != 0 and end * tensor.element_size() <= tensor.untyped_storage().nbytes()


def plain(value: Any) -> Any:
    """Return a tensor without its subclass, names and negative bit (by a copy), and any other value unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    if type(value) not in PLAIN:
        with torch._C.DisableTorchFunctionSubclass():
            value = value.as_subclass(torch.Tensor)
    if hasattr(value, "has_names") and value.has_names():  # in PyTorch up to 2.12
        value = value.rename(None)
    return value.resolve_neg() if value.is_neg() else value


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def signed(value: float) -> int:
    """Return a whole number of 64 bits as an i64 has them."""
    return (int(value) + 2**63) % 2**64 - 2**63


def plain_value(name: str, value: Any, *, written: bool = False) -> Any:
    """Return a tensor as :func:`plain` has it unless :func:`fault` refuses it, a number as int or float, or it."""
    if isinstance(value, torch.Tensor):
        return value if fault(name, value, written=written) else plain(value)
    kind = int if isinstance(value, Integral) else float
    try:
        return kind(value) if is_number(value) else value
    except OverflowError:  # an int beyond the range of double
        return value


def write(buffer: torch.Tensor, found: torch.Tensor) -> None:
    """Write a result into a plain buffer, even one of torch.inference_mode from outside of it, as a kernel does."""
    with torch.inference_mode(buffer.is_inference()):
        buffer.copy_(found.reshape(buffer.shape))
