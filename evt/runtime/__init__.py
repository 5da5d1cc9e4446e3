"""Running programs on tensors. A call goes through these modules in this order.

:mod:`call`: values in a fixed order, and the key that identifies the call; a call like an earlier one goes straight to
its launch. Any other is checked by :mod:`arguments`: values as plain memory (:mod:`plain`), their strides
(:mod:`layout`), convolution tensors as matrices (:mod:`convolution`), each tensor against the program
(:mod:`tensors`), which gives a :mod:`bound` call. On the CPU :mod:`answer` computes the reference, and
:mod:`no_kernel` warns; on a GPU :mod:`kernels` chooses, plans, builds and loads (:mod:`library`), and :mod:`prepare`
fills in what the metadata decides, with what :mod:`overlap` needs. The launch then only needs addresses and numbers.
:mod:`results` makes one value of the outputs.

Where PyTorch traces or transforms a call, :mod:`operator` has it as a custom operator, :mod:`fresh` says what it
returns, as for launches, and :mod:`batched` makes one launch of torch.vmap.

:mod:`grouped` calls groups: :mod:`groups` divides the arguments, each group is bound as a separate call, and
:mod:`table` is what the one launch reads.
"""
