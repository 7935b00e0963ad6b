"""``heedful.inspect``: runs a model on an input under probes; the result is a page, a figure and data.

    catalogue       the table of views: the models that have each, its options; no torch
    request         a request, checked against the model's configuration; no torch
    opened_model    the model, with its tokenizers or image preprocessing
    model_input     an input as the arguments of the model's call, and as token pieces
    inspect         ``heedful.inspect``          result   page, figure and data
    attention_view  heads, model, matrix         steps_view, lens_view, image_view   the views of these names
    vector_views    embeddings, similarity, positions, filters
    gradient_views  gradient, importance

To add a view, write a function ``(OpenedModel, Request) -> InspectionResult`` and add a line to the table of
``catalogue``. Numbers come from ``heedful.inspection``, figures and pages from ``heedful.views``.
"""
