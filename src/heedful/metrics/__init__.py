"""Metrics: numbers and texts in, numbers out, as the field computes them, with confidence intervals and the verdict.

Each file holds one kind of metric. ``scored`` is what they share: a metric that can be computed for any choice of the
examples, which intervals (``intervals``) and paired comparisons (``paired``, ``verdict``) resample. No torch.
"""
