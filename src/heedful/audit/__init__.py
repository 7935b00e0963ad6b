"""Checks of the data before training: ``heedful audit``, and the warnings at the start of a run.

audit.py runs the checks. A file each: duplicates.py, characters.py, labels.py,
images.py, encoded_examples.py. findings.py holds their result, ``Finding``.
"""
