"""Kernels: what is decided of each kind of them."""
