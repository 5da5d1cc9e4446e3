"""A fuzzer for GPUs: see ``python -m tests.fuzz_gpu --help``.

In the order of the data: ``schedule`` says which kernels come (:mod:`.kinds`), ``draw_case`` draws one with its
problems (:mod:`.cases`, with the sizes of :mod:`.extents`), ``placed`` puts a call's tensors into larger buffers
(:mod:`.memory`), ``launch`` runs it (:mod:`.launch`), ``judge`` compares the outputs with the evaluator
(:mod:`.judge`), and ``Table`` counts (:mod:`.table`).
"""
