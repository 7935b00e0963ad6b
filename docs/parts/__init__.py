"""Sphinx extensions of the documentation: equations without a network, source code, figures, notebooks."""
