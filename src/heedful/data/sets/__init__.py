"""The sets that come along: made of installed packages, each split into parts with nothing in two. See builtin.py."""
