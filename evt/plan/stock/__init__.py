"""Epilogues of CUTLASS's own: which formulas they compute."""
