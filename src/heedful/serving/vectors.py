"""Vectors of texts for the routes of embeddings: computed in dynamic batches, with the texts' numbers of tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from heedful.serving.admission import RequestError
from heedful.serving.requests import estimated_tokens
from heedful.serving.service import Batch, Service
from heedful.tasks.task import Embeds


async def vectors_of(
    service: Service, texts: Sequence[str], *, field: str = "inputs", truncate: bool = False, normalise: bool = False
) -> tuple[list[Any], int]:
    """Returns a vector for each text, and the number of tokens of all.

    Args:
        service: the server's.
        texts: none of them blank.
        field: of the request, for errors.
        truncate: cuts texts that are longer than the model takes; without it they are an error.
        normalise: scales the vectors to length 1.
    """
    task = service.pipe.task
    assert isinstance(task, Embeds)
    if not texts or not all(text.strip() for text in texts):
        raise RequestError(400, "a text is blank, or there is none; give texts", param=field)
    ticket = service.admission.admit(len(texts), estimated_tokens(task, texts, {}, service.limits))
    try:
        counts = await asyncio.to_thread(task.token_counts, texts)
        if max(counts) > task.longest and not truncate:
            raise RequestError(
                413,
                f"a text has {max(counts):,} tokens, but the model takes {task.longest:,}; shorten it",
                "context_length_exceeded",
                field,
            )
        ticket.resize(sum(counts))
        batch = Batch(list(texts), {}, service.vectors, ticket, sum(counts))
        vectors = [np.asarray(vector) for vector in await service.compute(batch)]
    finally:
        ticket.release()
    if normalise:
        vectors = [vector / max(float(np.linalg.norm(vector)), 1e-12) for vector in vectors]
    return [vector.tolist() for vector in vectors], sum(counts)
