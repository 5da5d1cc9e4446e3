"""evt: write the epilogue of a matrix product as a formula; get a fused CUTLASS kernel."""
