"""Metrics: numbers and texts in, numbers out, with confidence intervals and the verdict on a model.

Each kind of metric has a file. Their common base is ``example_scores``: metrics of any selection of the examples, which
intervals (``intervals``) and paired comparisons (``paired``, ``verdict``) need. No torch.
"""
