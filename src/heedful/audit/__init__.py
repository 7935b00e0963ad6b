"""The data, looked at before the time is spent: ``heedful audit`` and the lines at the head of a run.

Here live `audit` (audit.py), what rows tell by themselves (rows.py, characters.py) and beside each other (near.py),
what the model would be given of them (tokens.py), and what a finding is (finding.py).
"""
