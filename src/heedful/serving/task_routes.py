"""Routes of every task: ``/predict``, the Hub's task shapes, ``/embed``, ``/rerank``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, TypeAdapter
from starlette.responses import Response

from heedful.serving.admission import RequestError
from heedful.serving.answer_text import TokenText
from heedful.serving.generation import Answer, Answers, Question
from heedful.serving.hub_shapes import HubShape, shape_of
from heedful.serving.openai_routes import with_greedy
from heedful.serving.requests import (
    Fields,
    JsonRoute,
    estimated_tokens,
    inputs_of,
    parse_body,
    resolved_options,
    takes_images,
)
from heedful.serving.responses import EventStream, json_response, while_connected
from heedful.serving.service import Batch, Service
from heedful.serving.vectors import vectors_of
from heedful.tasks.choices import CHOICES
from heedful.tasks.choices import OPTIONS as RANKING
from heedful.tasks.task import Continues, Embeds, Prediction, Task
from heedful.tasks.token_batches import GeneratedText, prediction_of
from heedful.text.chat_template import is_conversation

Texts = Annotated[list[str], Field(min_length=1, fail_fast=True)]
FINISH = {"stop": "eos_token", "length": "length"}  # the Hub's names


class PredictRequest(Fields):
    """Request of ``/predict``: one input or a list of inputs, and options of ``heedful predict``."""

    inputs: Any
    options: dict[str, Any] = Field(default_factory=dict)


class EmbedRequest(Fields):
    """Request of ``/embed``, as of Text Embeddings Inference."""

    inputs: str | Texts
    normalize: bool = True
    truncate: bool = False
    truncation_direction: Literal["Right", "right"] = "Right"


class FeatureRequest(Fields):
    """Request of the Hub's API for vectors."""

    inputs: str | Texts
    normalize: bool | None = None
    truncate: bool = True
    truncation_direction: Literal["Right", "right"] = "right"


class SimilarityInputs(Fields):
    """A sentence, and others to compare it with."""

    source_sentence: str
    sentences: Texts


class SimilarityRequest(Fields):
    """Request of the Hub's API for the similarity of sentences."""

    inputs: SimilarityInputs
    parameters: dict[str, Any] = Field(default_factory=dict, max_length=0)


class RerankRequest(Fields):
    """Request of ``/rerank``, as of Text Embeddings Inference; scores are those of the model."""

    query: str
    texts: Texts
    raw_scores: Literal[True] | None = None
    return_text: bool = False


class HubRequest(Fields):
    """Request of the Hub's API."""

    inputs: Any
    parameters: dict[str, Any] = Field(default_factory=dict)
    stream: bool | None = None


def task_routes(service: Service) -> APIRouter:
    """Returns the routes that fit the model's task."""
    router, task = APIRouter(route_class=JsonRoute), service.pipe.task

    @router.post("/predict")
    async def predict(body: PredictRequest, request: Request) -> Response:
        values, is_one = _as_list(body.inputs)
        predictions = await while_connected(request.receive, predicted_rows(service, values, body.options))
        shown = [prediction.as_dict() for prediction in predictions]
        return json_response(shown[0] if is_one else shown)

    @router.post("/")
    @router.post("/pipeline/{name}")
    async def hub(request: Request, name: str | None = None) -> Response:
        return await hub_response(service, request, name)

    if isinstance(task, Embeds):

        @router.post("/embed")
        async def embed(body: EmbedRequest, request: Request) -> Response:
            texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
            work = vectors_of(service, texts, truncate=body.truncate, normalise=body.normalize)
            return json_response((await while_connected(request.receive, work))[0])

    if task.ranks_texts:

        @router.post("/rerank")
        async def rerank(body: RerankRequest, request: Request) -> Response:
            scores = await while_connected(request.receive, relevance(service, body.query, body.texts))
            order = sorted(range(len(scores)), key=lambda i: -scores[i])
            ranked: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in order]
            return json_response(
                [{**one, "text": body.texts[one["index"]]} for one in ranked] if body.return_text else ranked
            )

    return router


def _as_list(inputs: Any) -> tuple[list[Any], bool]:
    """Returns the inputs of a request, and True if there is one that was not in a list."""
    if isinstance(inputs, list) and not is_conversation(inputs):
        return inputs, False
    return [inputs], True


async def predicted_rows(service: Service, values: Sequence[Any], options: Mapping[str, Any]) -> list[Prediction]:
    """Returns the predictions of a pipeline for the inputs of a request."""
    task = service.pipe.task
    if not values:
        return []
    call = with_greedy(dict(options))
    chosen = resolved_options(service.pipe, call)
    generates = not ranks_choices(values, chosen)
    if isinstance(task, Continues) and generates and (found := await _continued(service, values, chosen)) is not None:
        return found
    limits = service.limits
    inputs, pixels = await asyncio.to_thread(inputs_of, task, values, limits)
    tokens = estimated_tokens(task, inputs, chosen, limits)
    decoding = chosen.get("decoding")
    is_seeded = decoding is not None and decoding.seed is not None
    ticket = service.admission.admit(len(inputs), tokens, pixels)
    batch = Batch(inputs, chosen, service.pipe.predict_block, ticket, tokens, may_merge=not is_seeded)
    return await service.compute(batch)


def ranks_choices(values: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Returns True for a request whose outputs are chosen from given texts, all or some, instead of generated."""
    return bool(RANKING & options.keys()) or any(isinstance(value, Mapping) and CHOICES in value for value in values)


async def _continued(service: Service, values: Sequence[Any], options: Mapping[str, Any]) -> list[Prediction] | None:
    """Returns predictions by the slots; None for a search."""
    question = Question(prompts=values, decoding=options["decoding"], top_logprobs=0, field="inputs")
    if not question.in_slots:
        return None
    _check_prompts(values)
    decoding = options["decoding"]
    count = decoding.num_return_sequences if "num_return_sequences" in decoding.given else 1
    answers = Answers(service, replace(question, count=count))
    await answers.start()
    complete = await answers.complete()
    predictions = []
    for index, value in enumerate(values):
        shown = value if isinstance(value, str) else ""
        outputs = [
            GeneratedText(
                shown + answer.text + answer.stopped_by,
                sum(answer.logprobs) / max(1, len(answer.logprobs)),
                answer.logprobs if options.get("logprobs") else None,
            )
            for answer in complete
            if answer.prompt == index
        ]
        predictions.append(prediction_of(value, outputs, replace(decoding, num_return_sequences=count)))
    return predictions


def _check_prompts(values: Sequence[Any]) -> None:
    """Raises ``RequestError`` unless each input is a text or a list of messages."""
    if not all(isinstance(value, str) or is_conversation(value) for value in values):
        raise RequestError(400, "an input is a text, or a list of messages", param="inputs")


async def relevance(service: Service, query: str, texts: list[str]) -> list[float]:
    """Returns the task's score of each text for a query."""
    task = service.pipe.task
    tokens = estimated_tokens(task, [*texts, *[query] * len(texts)], {}, service.limits)
    ticket = service.admission.admit(len(texts), tokens)
    return await service.compute(Batch(texts, {"query": query}, service.relevance, ticket, tokens))


# ----------------------------------------------------------------------------------------------------- the Hub's shapes


async def hub_response(service: Service, request: Request, name: str | None) -> Response:
    """Returns the response to a request of the Hub's API, as ``huggingface_hub.InferenceClient`` sends it."""
    task = service.pipe.task
    shape = shape_of(task)
    if name is not None and name not in {task.name, *shape.tasks, *shape.further}:
        raise RequestError(404, f"this model is for {task.name}, not for {name}", "task_not_found")
    content = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0]
    is_json = kind == "application/json"
    if kind == "multipart/form-data":
        remedy = "send JSON with Content-Type: application/json"
        if takes_images(task):
            remedy = "send the file as the body: curl --data-binary @x.png -H 'Content-Type: image/png' URL"
        raise RequestError(400, f"multipart forms are not read; {remedy}", "multipart")
    if not is_json and takes_images(task):
        return await _hub_predictions(service, request, shape, [content], {}, is_one=True)
    if not is_json:
        raise RequestError(400, "the body is not declared as JSON; send it with Content-Type: application/json", "json")
    if isinstance(task, Embeds):
        body = _parsed(SimilarityRequest | FeatureRequest, content)
        if isinstance(body, SimilarityRequest):
            work = relevance(service, body.inputs.source_sentence, body.inputs.sentences)
            return json_response(await while_connected(request.receive, work))
        if body.normalize is False and task.normalises(service.pipe.model):
            raise RequestError(400, "the model itself scales its vectors to length 1; leave it out", param="normalize")
        texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
        vectors = vectors_of(service, texts, truncate=body.truncate, normalise=bool(body.normalize))
        return json_response((await while_connected(request.receive, vectors))[0])
    body = _parsed(HubRequest, content)
    values, is_one = _as_list(body.inputs)
    parameters = {name: value for name, value in body.parameters.items() if value is not None}
    if isinstance(task, Continues):
        return await _generated(service, request, body, values, parameters)
    if body.stream:
        raise RequestError(400, f"{task.name} does not stream; leave it out", param="stream")
    return await _hub_predictions(service, request, shape.of_request(name, parameters), values, parameters, is_one)


def _parsed(kind: Any, content: bytes) -> Any:
    """Returns a request's fields; raises pydantic's ``ValidationError``."""
    return TypeAdapter(kind).validate_python(parse_body(content))


def hub_options(task: Task, shape: HubShape, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns our options for parameters of the Hub's API."""
    parameters = dict(parameters)
    nested = parameters.pop("generate_parameters", {})
    if not isinstance(nested, Mapping):
        raise RequestError(400, "generate_parameters is an object of parameters", param="generate_parameters")
    parameters |= nested
    if shape.required is not None and shape.required not in parameters:
        raise RequestError(400, f"{shape.required} is missing; add it to parameters", param=shape.required)
    for name, value in shape.fixed(task).items():
        if name in parameters and parameters.pop(name) != value:
            raise RequestError(400, f"{name} is always {value!r} here; leave it out", "unsupported_field", name)
    for name in parameters:
        if name not in task.options and name not in shape.names:
            raise RequestError(400, f"{name} is not supported for {task.name}; leave it out", "unsupported_field", name)
    return {shape.names.get(name, name): value for name, value in parameters.items()}


async def _hub_predictions(
    service: Service,
    request: Request,
    shape: HubShape,
    values: Sequence[Any],
    parameters: Mapping[str, Any],
    is_one: bool,
) -> Response:
    options = {**shape.defaults, **hub_options(service.pipe.task, shape, parameters)}
    predictions = await while_connected(request.receive, predicted_rows(service, values, options))
    outputs = [shape.output(prediction) for prediction in predictions]
    return json_response(outputs[0] if is_one and not shape.lists_one else outputs)


async def _generated(
    service: Service, request: Request, body: HubRequest, values: Sequence[Any], parameters: dict[str, Any]
) -> Response:
    """Returns continuations in the shape of Text Generation Inference, at once or as a stream."""
    task = service.pipe.task
    full, details = (bool(parameters.pop(name, False)) for name in ("return_full_text", "details"))
    options = with_greedy(hub_options(task, shape_of(task), parameters))
    question = Question(
        prompts=values,
        decoding=resolved_options(service.pipe, options)["decoding"],
        top_logprobs=0 if details or body.stream else None,
        stream=bool(body.stream),
        field="inputs",
    )
    _check_prompts(values)
    if body.stream and len(values) != 1:
        raise RequestError(400, "a stream answers one input; send one", param="inputs")
    answers = Answers(service, question)
    await while_connected(request.receive, answers.start())

    def text_of(answer: Answer) -> str:
        prompt = values[answer.prompt]
        return (prompt if full and isinstance(prompt, str) else "") + answer.text

    def end_of(answer: Answer) -> dict[str, Any]:
        finish = "stop_sequence" if answer.stopped_by else FINISH[answer.finish or "stop"]
        return {"finish_reason": finish, "generated_tokens": answer.count, "seed": None}

    if not body.stream:
        complete = await while_connected(request.receive, answers.complete())
        shown = [
            {
                "generated_text": text_of(answer),
                **(
                    {"details": {**end_of(answer), "prefill": [], "tokens": list(map(_token, answer.tokens))}}
                    if details
                    else {}
                ),
            }
            for answer in complete
        ]
        return json_response(shown)

    async def events() -> AsyncGenerator[Any]:
        async with aclosing(answers.pieces()) as pieces:
            index = 0
            async for answer, piece in pieces:
                index += 1
                token = piece.tokens[-1] if piece.tokens else TokenText("", 0.0, [], 0)
                end: dict[str, Any] = {}
                if piece.finish is not None:
                    details = {**end_of(answer), "input_length": len(answers.prompts[0])}
                    end = {"generated_text": text_of(answer), "details": details}
                yield {"index": index, "token": {**_token(token), "text": piece.text}, **end}

    return EventStream(events())


def _token(token: TokenText) -> dict[str, Any]:
    return {"id": token.id, "text": token.text, "logprob": token.logprob, "special": token.is_special}
