"""Random programs and an evaluator of them that is not evt: see ``python -m tests.programs --help``.

In the order of the data: ``generate`` draws a program (:mod:`.tree`), ``problems`` makes the data of a call
(:mod:`.call`, of :mod:`.values` and with the strides of :mod:`.views`), ``evaluate`` computes the expected results
(:mod:`.evaluator`), ``check`` compares evt with these (:mod:`.checks`), and ``shrink`` reduces a failing program. A new
function of the language is a row in :mod:`.functions`; a new construct is a node in :mod:`.tree`, a case in
:mod:`.evaluator` and one in :mod:`.expressions`.
"""

from .compare import same
from .samples import Sample, programs, typed

__all__ = ["Sample", "programs", "same", "typed"]
