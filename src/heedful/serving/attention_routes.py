"""The route of attention: ``POST /v1/attention``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import TypeAdapter
from starlette.responses import Response

from heedful.serving import attention
from heedful.serving.admission import RequestError
from heedful.serving.requests import estimated_tokens, inputs_of, parse_body, takes_images
from heedful.serving.responses import json_response, while_connected
from heedful.serving.service import Batch, Service

POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
)


def _sizes_of(service: Service, data: dict[str, Any]) -> tuple[int, int]:
    """Returns about how many tokens, and how many pixels a request has.

    Raises ``RequestError`` for too many tokens, or too large an image.
    """
    task, values, target, pixels = service.pipe.task, data.get("input"), data.get("target") or "", 0
    texts = [data.get("messages") or "", target]
    if takes_images(task):
        _, pixels = inputs_of(
            task, values if isinstance(values, list) else [] if values is None else [values], service.limits
        )
    else:
        texts.append(values or "")
    tokens = estimated_tokens(task, texts, {}, service.limits) + (len(target) if isinstance(target, list) else 0)
    if tokens > 2 * service.max_tokens:  # of an estimate that may be twice too high
        raise RequestError(
            413, f"the input has more than {service.max_tokens:,} tokens; give a shorter one", "too_long"
        )
    return tokens, pixels


def attention_routes(service: Service) -> APIRouter:
    """Returns the route of attention; requests are computed one at a time, on the inference thread."""
    router, opened = (
        APIRouter(prefix="/v1"),
        attention.open_loaded(service.pipe.model, service.pipe.model.folder.source),
    )
    as_read = service.pipe.task.as_read

    def with_input(data: dict[str, Any]) -> dict[str, Any]:
        value = data.get("input")
        return {**data, "input": list(map(as_read, value)) if isinstance(value, list) else as_read(value)}

    def compute(requests: Sequence[dict[str, Any]], options: dict[str, Any]) -> list[dict[str, Any] | str]:
        try:
            return [attention.look(opened, with_input(data)) for data in requests]
        except attention.TooManyNumbers as error:
            raise RequestError(422, str(error), "too_many_numbers") from None

    @router.post("/attention")
    async def look(request: Request) -> Response:
        data = TypeAdapter(dict[str, Any]).validate_python(parse_body(await request.body()))
        tokens, pixels = await asyncio.to_thread(_sizes_of, service, data)
        batch = Batch([data], {}, compute, service.admission.admit(1, tokens, pixels), tokens, may_merge=False)
        (answer,) = await while_connected(request.receive, service.compute(batch))
        if not isinstance(answer, str):
            return json_response(answer)
        kind = "image/svg+xml" if data["format"] == "svg" else "text/html"
        return Response(answer, media_type=kind, headers={"Content-Security-Policy": POLICY})

    return router
