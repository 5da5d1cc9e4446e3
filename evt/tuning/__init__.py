"""Timing the kernels of a problem on a GPU: :mod:`clock` measures time, :mod:`tune` times kernels,
:mod:`grouped` those of groups.

:mod:`evt.measured` keeps the results, for calls to take the fastest.
"""
