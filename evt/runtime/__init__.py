"""Running programs on tensors. A call goes through these modules in this order.

:mod:`call`: values in a fixed order, and the key that identifies the call; a call like an earlier one goes straight to
its launch. Any other is checked by :mod:`arguments`: values as plain memory (:mod:`tensor_checks`), their strides
(:mod:`layout`), convolution tensors as matrices (:mod:`convolution`), each tensor against the program
(:mod:`tensors`), which gives a :mod:`bound` call. On the CPU :mod:`cpu_fallback` computes the reference, and
:mod:`no_kernel` warns; on a GPU :mod:`kernels` chooses, plans, builds and loads (:mod:`library`), and :mod:`prepare`
fills in the values that metadata decides, and the checks of :mod:`overlap`. The launch then only needs addresses and
numbers.
:mod:`results` makes one value of the outputs.

If PyTorch traces or transforms a call, :mod:`operator` makes it a custom operator, :mod:`fresh` describes its results,
as for launches, and :mod:`vmap` makes one launch of torch.vmap.

:mod:`grouped` calls groups: :mod:`groups` divides the arguments, each group is bound as a separate call, and
:mod:`table` is the table of the one launch.
"""
