"""Looking inside: what a model computes, kept (``record``), changed (``intervene``), counted (``summary``).

- ``paths``: which tensors there are, and what they are called;
- ``record``, ``observe``: see them; ``tape`` puts what a generation showed in order; ``intervene``: change them;
- ``taps``: readers and changers put at a model's tensors, and taken away.
"""

from heedful.inspection.intervene import intervene
from heedful.inspection.paths import paths
from heedful.inspection.record import observe, record
from heedful.inspection.summary import summary

__all__ = ["intervene", "observe", "paths", "record", "summary"]
