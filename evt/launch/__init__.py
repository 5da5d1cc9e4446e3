"""The launch of own kernels without a compiled launcher: the parameters of their kernels as data.

In the order of the data: :mod:`members` (which member of a kernel's parameters has which value of a call),
:mod:`shape` (the values that the sizes of a call decide, of :mod:`halo` and :mod:`depthwise` kernels), :mod:`layout`
(where NVRTC has put the members; :mod:`cubin` reads it), :mod:`recipe` (the bytes of the parameters for the sizes of a
call).
"""
