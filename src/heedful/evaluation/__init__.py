"""Evaluation on a file: ``heedful evaluate`` (evaluate.py), ``heedful compare`` (compare.py), and the hashes of
training rows (trained_on.py). The metrics are in ``heedful.metrics``.
"""
