"""Checks of the data before training: ``heedful audit``, and the warnings at the start of a run.

audit.py runs the checks; each returns ``Finding`` (findings.py). The checks: duplicates.py (equal and nearly equal
examples, leakage), labels.py (labels and tagged words), characters.py, images.py, encoded_examples.py (lengths,
truncation, unknown tokens). A new check is a function in one of these files and a line in audit.py.
"""
