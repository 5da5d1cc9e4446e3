"""Timing the kernels of a problem on a GPU: :mod:`clock` has the time, :mod:`tune` the kernels,
:mod:`grouped` those of groups.

What comes out is kept by :mod:`evt.measured`, for calls to take the fastest.
"""
