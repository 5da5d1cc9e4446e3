"""Timing of a problem's kernels on a GPU: :mod:`clock` measures time, :mod:`tune` times kernels, :mod:`grouped` times
the kernels of groups.

:mod:`evt.measured` keeps the results, so that calls take the fastest kernel.
"""
