"""OpenAI's routes: completions, chat completions, embeddings, models."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from heedful.serving.admission import RequestError
from heedful.serving.answer_text import TokenText
from heedful.serving.generation import Answer, Answers, Question
from heedful.serving.requests import (
    STOP_LENGTH,
    STOPS,
    DecodingFields,
    Fields,
    JsonRoute,
    decoding_options,
    options_of,
    resolved_options,
)
from heedful.serving.responses import DONE, EventStream, json_response, while_connected
from heedful.serving.service import Service
from heedful.serving.vectors import vectors_of
from heedful.tasks.task import Continues, Embeds, Streams

ANY_MODEL = "dummy"  # the model's name in requests of huggingface_hub's client to an address
Stop = Annotated[str, Field(min_length=1, max_length=STOP_LENGTH)]
Ids = Annotated[
    list[int], Field(fail_fast=True)
]  # lists stop at the first error: one for each item would fill the memory


class StreamOptions(Fields):
    """Options of a stream."""

    include_usage: bool = False


class GenerationFields(DecodingFields):
    """Fields of completions and chat completions; our decoding options have their own names."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None


class CompletionRequest(GenerationFields):
    """Request of ``/v1/completions``."""

    prompt: str | Annotated[list[str], Field(fail_fast=True)] | Ids | Annotated[list[Ids], Field(fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=0)] | None = None  # 0 with echo: the prompt is scored, nothing is generated
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool = False


class TextPart(Fields):
    """Part of a message."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """Message of a conversation."""

    role: str
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """Returns the message for a chat template."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text, **({} if self.name is None else {"name": self.name})}


class ChatRequest(GenerationFields):
    """Request of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    truncation: Literal["auto", "disabled"] = "disabled"
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


class EmbeddingsRequest(Fields):
    """Request of ``/v1/embeddings``."""

    input: str | Annotated[list[str], Field(min_length=1, fail_fast=True)]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


def openai_routes(service: Service) -> APIRouter:
    """Returns the routes that fit the model's task."""
    router, task = APIRouter(prefix="/v1", route_class=JsonRoute), service.pipe.task

    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [model_entry(service)]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        check_model_name(service, name)
        return json_response(model_entry(service))

    if isinstance(task, Continues):
        router.post("/completions")(completions_of(service))
        if has_template(service):
            router.post("/chat/completions")(chat_of(service))
    if isinstance(task, Embeds):

        @router.post("/embeddings")
        async def embeddings(body: EmbeddingsRequest, request: Request) -> Response:
            check_model_name(service, body.model)
            texts = [body.input] if isinstance(body.input, str) else body.input
            vectors, tokens = await while_connected(request.receive, vectors_of(service, texts, field="input"))
            data = [
                {"object": "embedding", "index": i, "embedding": _encoded(vector, body.encoding_format)}
                for i, vector in enumerate(vectors)
            ]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            return json_response({"object": "list", "data": data, "model": service.name, "usage": usage})

    return router


def model_entry(service: Service) -> dict[str, Any]:
    """Returns the entry of ``/v1/models``, with what our page needs to know under "heedful"."""
    task = service.pipe.task
    about = {
        "task": task.name,
        "family": service.pipe.model.config.kind,
        "columns": dict(task.request_columns),
        "options": options_of(task),
        "has_template": has_template(service),
        "streams": isinstance(task, Streams),
        "embeds": isinstance(task, Embeds),
        "max_tokens": service.tokens_read,
    }
    entry = {"id": service.name, "object": "model", "created": service.created, "owned_by": "heedful"}
    return {**entry, "heedful": about}


def has_template(service: Service) -> bool:
    """Returns True if the model's folder has a chat template."""
    task = service.pipe.task
    return isinstance(task, Continues) and bool(task.tokenizer.config.get("chat_template"))


def check_model_name(service: Service, name: str | None) -> None:
    """Raises ``RequestError`` (404) for another model than the one that is served."""
    if name not in (None, ANY_MODEL, service.name):
        raise RequestError(404, f"no model {name!r}; this server has {service.name!r}", "model_not_found", "model")


def _encoded(vector: Sequence[float], encoding: str) -> Any:
    if encoding == "float":
        return list(vector)
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()


# ------------------------------------------------------------------------------------------------------- completions


def call_options(request: GenerationFields) -> dict[str, Any]:
    """Returns the decoding options of a request, OpenAI's fields under our names."""
    options = decoding_options(request)
    hub = {
        "stop": ("stop_strings", [request.stop] if isinstance(request.stop, str) else request.stop or None),
        "n": ("num_return_sequences", request.n),
        "max_tokens": ("max_new_tokens", request.max_tokens),
        "max_completion_tokens": ("max_new_tokens", getattr(request, "max_completion_tokens", None)),
    }
    for name, (ours, value) in hub.items():
        if value is not None and ours in options:
            raise RequestError(400, f"{name} is {ours} under OpenAI's name, and both are given; give one", param=name)
        options |= {} if value is None else {ours: value}
    return with_greedy(options)


def with_greedy(options: dict[str, Any]) -> dict[str, Any]:
    """Returns options in which a temperature of 0 means greedy decoding, as clients of HTTP expect.

    >>> with_greedy({"temperature": 0, "top_p": 1, "seed": 1})
    {'do_sample': False}
    """
    if options.get("temperature") != 0:
        return options
    neutral = {"temperature": 0, "top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1}
    kept = {name: value for name, value in options.items() if neutral.get(name) != value and name != "seed"}
    return {**kept, "do_sample": False}


def question_of(service: Service, request: GenerationFields, prompts: Sequence[Any], field: str) -> Question:
    """Returns what a request asks for."""
    check_model_name(service, request.model)
    if request.stream_options is not None and not request.stream:
        raise RequestError(400, "stream_options need stream: true; leave them out", param="stream_options")
    options = call_options(request)
    count = options.pop("num_return_sequences", 1)
    if isinstance(request, ChatRequest):
        if request.top_logprobs is not None and not request.logprobs:
            raise RequestError(400, "top_logprobs need logprobs: true", param="top_logprobs")
        top_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    else:
        top_logprobs = getattr(request, "logprobs", None)
    decoding = resolved_options(service.pipe, options)["decoding"]
    return Question(
        prompts=prompts,
        decoding=decoding,
        count=count,
        top_logprobs=top_logprobs,
        stream=request.stream,
        leaves_out_turns=getattr(request, "truncation", None) == "auto",
        field=field,
    )


def completions_of(service: Service) -> Callable[..., Any]:
    """Returns the handler of ``/v1/completions``."""

    async def completions(body: CompletionRequest, request: Request) -> Response:
        prompts: Any = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        prompts = [prompts] if prompts and isinstance(prompts[0], int) else prompts
        if not prompts:
            raise RequestError(400, "prompt is an empty list; give a text", param="prompt")
        if body.max_tokens == 0 and not body.echo:
            raise RequestError(400, "max_tokens is 0, which returns nothing without echo", param="max_tokens")
        scores = body.model_copy(update={"max_tokens": 1}) if body.max_tokens == 0 else None
        question = question_of(service, scores or body, prompts, "prompt")
        if scores is not None:  # a token is generated, and dropped
            greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": 1}
            question = replace(question, decoding=resolved_options(service.pipe, greedy)["decoding"], generates=False)
        question = replace(question, with_prompt=body.echo and body.logprobs is not None)
        answers = Answers(service, question)
        await while_connected(request.receive, answers.start())

        def echoed(answer: Answer) -> str:
            prompt = prompts[answer.prompt]
            return prompt if isinstance(prompt, str) else answers.task.tokenizer.decode([prompt])[0]

        def choice(answer: Answer, text: str, tokens: Sequence[TokenText], finish: str | None) -> dict[str, Any]:
            logprobs = None if body.logprobs is None else _completion_logprobs(tokens, body.logprobs)
            return {"index": answer.index, "text": text, "logprobs": logprobs, "finish_reason": finish}

        return await _respond(
            service, body, request, answers, choice, "text_completion", "cmpl", echoed if body.echo else None
        )

    return completions


def chat_of(service: Service) -> Callable[..., Any]:
    """Returns the handler of ``/v1/chat/completions``."""

    async def chat(body: ChatRequest, request: Request) -> Response:
        messages = [message.plain() for message in body.messages]
        answers = Answers(service, question_of(service, body, [messages], "messages"))
        await while_connected(request.receive, answers.start())

        def choice(answer: Answer, text: str, tokens: Sequence[TokenText], finish: str | None) -> dict[str, Any]:
            message: dict[str, Any] = {"content": text}
            if not body.stream or text == answer.text:  # the first piece
                message = {"role": "assistant", **message}
            logprobs = None if not body.logprobs else {"content": list(map(_chat_logprob, tokens))}
            name = "delta" if body.stream else "message"
            return {"index": answer.index, name: message, "logprobs": logprobs, "finish_reason": finish}

        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        return await _respond(service, body, request, answers, choice, kind, "chatcmpl", None)

    return chat


async def _respond(
    service: Service,
    body: GenerationFields,
    request: Request,
    answers: Answers,
    choice: Callable[[Answer, str, Sequence[TokenText], str | None], dict[str, Any]],
    kind: str,
    prefix: str,
    echoed: Callable[[Answer], str] | None,
) -> Response:
    """Returns the answers at once, or as a stream of chunks."""
    head = {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": service.name}
    if answers.question.leaves_out_turns:
        head["heedful"] = {"left_out": answers.left_out}
    if not body.stream:
        complete = await while_connected(request.receive, answers.complete())
        before = {answer.index: echoed(answer) if echoed else "" for answer in complete}
        choices = [
            choice(
                answer,
                before[answer.index] + answer.text,
                [*answer.prompt_tokens, *_after(before[answer.index], answer.tokens)],
                answer.finish,
            )
            for answer in complete
        ]
        return json_response({**head, "choices": choices, "usage": answers.usage})
    with_usage = body.stream_options is not None and body.stream_options.include_usage

    async def chunks() -> AsyncGenerator[Any]:
        usage: dict[str, Any] = {"usage": None} if with_usage else {}
        before: dict[int, str] = {}
        async with aclosing(answers.pieces()) as pieces:
            async for answer, piece in pieces:
                if echoed and answer.index not in before:
                    before[answer.index] = echoed(answer)
                    first = choice(answer, before[answer.index], answer.prompt_tokens, None)
                    yield {**head, "choices": [first], **usage}
                tokens = _after(before.get(answer.index, ""), piece.tokens)
                yield {**head, "choices": [choice(answer, piece.text, tokens, piece.finish)], **usage}
        if with_usage:
            yield {**head, "choices": [], "usage": answers.usage}
        yield DONE

    return EventStream(chunks())


def _after(text: str, tokens: Sequence[TokenText]) -> list[TokenText]:
    """Returns the tokens of an answer that follows ``text``."""
    return [token._replace(offset=token.offset + len(text)) for token in tokens]


def _completion_logprobs(tokens: Sequence[TokenText], top: int) -> dict[str, Any]:
    """Returns the log-probabilities in the shape of completions; the first token of a prompt has none."""
    tops = [None if token.logprob is None else dict(token.top) for token in tokens]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops if top else None,
        "text_offset": [token.offset for token in tokens],
    }


def _chat_logprob(token: TokenText) -> dict[str, Any]:
    """Returns a token's log-probabilities in the shape of chat completions."""

    def one(text: str, logprob: float | None) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    return {**one(token.text, token.logprob), "top_logprobs": [one(*other) for other in token.top]}
