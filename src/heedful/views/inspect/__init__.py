"""Looking: a person's input, a model run over it under a probe, and what it did shown as a page or a picture.

    catalogue  the views, the models that have them, the options they take; no torch
    request        what is asked, checked against them; no torch
    opened    the model opened, with its tokenizers or its preparation of images
    reading    texts and images as what the model is called with, and as pieces that people read
    inspect    ``heedful.inspect``: all of it in one call
    look       what comes out: page, picture, numbers
    attention  heads, model, matrix: maps of any text, long ones through a window under an overview
    steps, lens, image, gradient, embeddings, similarity, positions, filters, importance: a file a view

A view is a file with a function ``look(opened, request) -> Look`` and a line in the table of ``catalogue``. The numbers
come from ``heedful.inspection``, the drawings from ``heedful.views``.
"""
