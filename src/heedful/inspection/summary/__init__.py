"""Model summary: layers, shapes, parameters, operations and memory, without allocating weights.

- ``count``: the public function, over one forward on the meta device;
- ``weightless``: a module on the meta device, of a preset, a configuration or a folder;
- ``memory``: bytes, and attention without a fused kernel; ``table``: the result, and how it is printed.
"""

from heedful.inspection.summary.count import summary

__all__ = ["summary"]
