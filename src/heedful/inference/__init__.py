"""Inference: the pipeline (``pipeline``), files of inputs through a model (``files``), the nearest of many texts
(``neighbours``). Files are worked through in blocks, and a stopped call is continued.
"""
