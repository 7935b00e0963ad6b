"""Helpers without a subject of their own: files written whole or not at all, locks, downloads, escaping, value checks,
processes, the terminal. They import ``heedful.errors`` alone of ours; only ``ranks`` and ``shares`` need torch.
"""
