"""Evaluation: ``heedful evaluate`` (``run``), ``heedful compare`` (``compare``), and the rows that a model was trained
on (``trained_on``). The metrics themselves are in ``heedful.metrics``.
"""
