"""The execution of programs on tensors. A call passes through these modules in this order.

:mod:`call` puts the values in a fixed order, and :mod:`identity` gives the key of the call. A call with a known key
goes straight to its launch. :mod:`arguments` checks any other call: the given names (:mod:`given`), values as plain
memory (:mod:`tensor_checks`), strides (:mod:`layout`), convolution tensors as matrices (:mod:`convolution`), and each
tensor against the program (:mod:`tensors`). The result is a :mod:`bound` call. On the CPU :mod:`cpu_fallback` computes
the reference, and :mod:`no_kernel` warns. On a GPU :mod:`kernels` chooses, plans (:mod:`plans`), builds and loads
(:mod:`library`). :mod:`prepare` fills in everything that the metadata decides, and :mod:`overlap` the facts about
shared memory. The launch then needs addresses and numbers only. :mod:`results` makes one value of the outputs.

If PyTorch traces or transforms a call, the call is a custom operator of :mod:`operator`. :mod:`fresh` makes its outputs
without values, as for launches, and :mod:`vmap` makes one launch of a call inside torch.vmap.

:mod:`grouped` calls groups: :mod:`groups` divides the arguments, each group is bound as a separate call, and the one
launch reads the rows of :mod:`table`.
"""
