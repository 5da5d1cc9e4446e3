"""Limits of the tensor memory accelerator (TMA): see ``cuTensorMapEncodeTiled`` in the CUDA driver API."""

#: The largest traversal stride of a box along a dimension, for tiles and in im2col mode.
LARGEST_STRIDE = 8
