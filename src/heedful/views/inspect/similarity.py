"""How alike several inputs are to a model: the cosines of the vectors that it makes of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from heedful.config import EncoderDecoderConfig, PooledHead, SequenceHead, VisionConfig
from heedful.heads import pool
from heedful.inspection.embedding_space import similarity
from heedful.views import figures
from heedful.views.inspect.model_input import read, read_source, row_of
from heedful.views.inspect.opened_model import Subject
from heedful.views.inspect.request import Ask
from heedful.views.inspect.result import Look

ROWS = {
    "first": "the first token",
    "last": "the last token",
    "mean": "the mean of all tokens",
    "max": "the largest of all",
}


def look(subject: Subject, ask: Ask) -> Look:
    """Two inputs or more."""
    pooling, what = _pooling(subject)
    names, vectors = zip(*(_vector(subject, one, pooling, ask) for one in ask.inputs), strict=True)
    cosines = similarity(torch.stack(vectors)).cpu().numpy()
    note = f"The cosine of the inputs' vectors, each {what}."
    title = f"{subject.name}: how alike {len(names)} inputs are"
    data: dict[str, Any] = {"inputs": list(names), "similarity": cosines, "note": note}
    table: list[list[str | float]] = [["cosine", *names]]
    table += [[name, *row] for name, row in zip(names, cosines.tolist(), strict=True)]
    draw = partial(figures.heat, cosines, names, names)
    return Look.drawn(title, ask.view, data, caption="cosines", draw=draw, table=table)


def _pooling(subject: Subject) -> tuple[str, str]:
    """Which row of the final stream stands for an input, as the model or its folder says, and in words."""
    config = subject.model.config
    if isinstance(config, VisionConfig):
        pooling = "first" if config.patches.prefix_tokens else "mean"
        return pooling, "the class token's in the last layer" if pooling == "first" else ROWS["mean"]
    if isinstance(config, EncoderDecoderConfig):
        return "mean", "the mean of the encoder's last layer over all tokens"
    if isinstance(config.head, PooledHead):
        return "", "as the model's head makes it"
    told = config.head if isinstance(config.head, SequenceHead) else subject.pooled
    pooling = told.pooling if told else "mean"
    return pooling, f"{ROWS[pooling]} in the last layer" + ("" if told else ", since the folder says nothing of it")


@torch.no_grad()
def _vector(subject: Subject, one: Any, pooling: str, ask: Ask) -> tuple[str, Tensor]:
    model = subject.model
    if isinstance(model.config, EncoderDecoderConfig):
        name, ids = read_source(subject, one)
        stream = model.encode(row_of(subject, ids))  # type: ignore[operator]  # an encoder-decoder's
    else:
        reading = read(subject, one, ask)
        if isinstance(model.config.head, PooledHead):
            return reading.name, model(*reading.arguments)[0].float()
        name, stream = reading.name, model.hidden(*reading.arguments)  # type: ignore[operator]  # every model's
    return name, pool(stream, None, pooling)[0].float()
