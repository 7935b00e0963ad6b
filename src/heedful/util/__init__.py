"""Helpers without a subject of their own.

files.py (atomic writes, JSON, TOML), locks.py, downloads.py (the Hub), escaping.py, values.py, ranks.py (distributed),
sharding.py, machine.py, progress.py, terminal.py. They import ``heedful.errors`` alone of ours; only ``ranks`` needs
torch.
"""
