"""``heedful watch``: the runs below some folders, shown while they go on.

`runs` reads what training writes, and only what is new of it; `server` shows it in the browser. Nothing here changes a
file or imports torch: it is to start at once, and beside trainings.
"""
