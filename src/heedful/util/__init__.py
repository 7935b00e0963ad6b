"""Helpers that every room may use.

files.py (atomic writes, JSON, TOML), locks.py, downloads.py (the Hub), escaping.py, values.py, ranks.py (distributed),
sharding.py, machine.py, progress.py, template_sandbox.py (Jinja), terminal.py. Of the package they import only
``heedful.errors``; only ``ranks`` needs torch.
"""
