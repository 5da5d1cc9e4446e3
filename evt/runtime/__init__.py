"""Running programs on tensors. A call goes through these modules in this order.

:mod:`call`: values in a fixed order, and what tells this call from others; a call like an earlier one goes straight to
its launch. Another one is checked by :mod:`arguments`: values as nothing but memory (:mod:`plain`), their strides
(:mod:`layout`), images as matrices (:mod:`convolution`), each tensor against the program (:mod:`tensors`), which makes
a :mod:`bound` call. On the CPU :mod:`answer` gives the reference's, and :mod:`no_kernel` warns; else :mod:`kernels`
chooses, plans, builds and loads (:mod:`library`), and :mod:`prepare` fills in what the metadata decides, with what
:mod:`overlap` needs. The launch only lacks addresses and numbers. :mod:`results` makes one value of the outputs.

:mod:`grouped` calls groups: :mod:`groups` divides the arguments, each group is bound as a call of its own, and
:mod:`table` is what the one launch reads.
"""
