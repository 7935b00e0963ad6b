"""Metrics: numbers and texts in, numbers out, with confidence intervals and the verdict on a model.

A file a kind of metric. ``example_scores`` is their common base: metrics of any choice of examples, which intervals
(``intervals``) and paired comparisons (``paired``, ``verdict``) resample. No torch.
"""
