"""The summary: what a model is made of, without its weights.

- ``counted``: the function itself, over one forward on the meta device;
- ``source``: a module without weights, of a preset, a configuration or a folder;
- ``layers``: what runs inside each module; ``memory``: bytes; ``kernels``: where attention has no fused one;
- ``table``: what it found, and how that is shown.
"""

from heedful.inspection.summary.count import summary

__all__ = ["summary"]
