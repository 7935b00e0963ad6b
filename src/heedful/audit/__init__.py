"""Checks of the data before training: ``heedful audit``, and the warnings at the start of a run.

audit.py runs the checks. A file each: duplicates.py, characters.py, near_duplicates.py, labels.py, tagged_words.py,
images.py, encoded_examples.py. findings.py holds their result, ``Finding``.
"""
