"""Serving: the dashboard of training runs behind ``heedful watch``.

    runs    training runs in the folders to watch, read from their logs
    server  the local HTTP server of the dashboard; it only reads

Nothing here writes a file or imports torch: it starts at once, also while trainings run.
"""
