"""Data sets made of Python's standard library and installed packages, one file each; ``code_sets.py`` writes them."""
