"""OpenAI's client against a decoder: answers, streams, usage, and every field that is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from huggingface_hub import InferenceClient
from running_server import Running

import heedful
from answering_folders import saved
from heedful.errors import HeedfulError
from heedful.generation.slots import SlotDecoder
from heedful.inference.pipeline import Pipeline
from heedful.kernels.few_rows import compiler
from heedful.serving import service
from tolerances import approx

GREEDY = {"prompt": "the fig", "temperature": 0}
TALK = [{"role": "user", "content": "the saw"}]


@pytest.fixture(scope="module")
def server(serving: Callable[..., Running], talking: Pipeline) -> Running:
    return serving(talking)


@pytest.fixture(scope="module")
def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)


def joined(stream: Any) -> tuple[list[str], list[Any]]:
    """The texts of the answers, and all chunks."""
    chunks = list(stream)
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text = choice.delta.content if hasattr(choice, "delta") else choice.text
            texts[choice.index] = texts.get(choice.index, "") + (text or "")
    return [texts[index] for index in sorted(texts)], chunks


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    about = model.model_dump()["heedful"]
    assert (model.id, about["task"], about["family"]) == ("tiny", "text-generation", "decoder")
    assert about["has_template"]
    assert about["streams"]
    assert "temperature" in about["options"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.models.retrieve("other")


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.3, "seed": 5, "extra_body": {"top_k": 9}}])
def test_a_completion_is_that_of_the_pipeline(client: openai.OpenAI, talking: Pipeline, options: Any) -> None:
    done = client.completions.create(model="tiny", prompt="the fig", max_tokens=40, **options)
    ours = {"do_sample": False} if options["temperature"] == 0 else {"temperature": 1.3, "seed": 5, "top_k": 9}
    output = talking("the fig", max_new_tokens=40, **ours)["output"]
    (choice,) = done.choices
    assert "the fig" + choice.text == output
    assert done.usage is not None
    count = done.usage.completion_tokens
    assert choice.finish_reason == ("length" if count == 40 else "stop")
    assert done.usage.prompt_tokens == len(talking.task.prompt_ids(["the fig"])[0])  # type: ignore[attr-defined]
    assert done.usage.total_tokens == done.usage.prompt_tokens + count
    again = client.completions.create(model="tiny", prompt="the fig", max_tokens=40, stream=True, **options)
    (text,), chunks = joined(again)
    assert text == choice.text
    assert [chunk.choices[0].finish_reason for chunk in chunks][-2:] == [None, choice.finish_reason]


def test_a_stream_ends_with_its_usage(client: openai.OpenAI) -> None:
    asked: Any = {**GREEDY, "model": "tiny", "max_tokens": 5, "stream": True}
    (text,), chunks = joined(client.completions.create(**asked, stream_options={"include_usage": True}))
    assert text
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    assert all(chunk.usage is None for chunk in client.completions.create(**asked))


def test_a_chat_is_that_of_the_pipeline(client: openai.OpenAI, talking: Pipeline) -> None:
    talk: Any = TALK
    done = client.chat.completions.create(model="tiny", messages=talk, max_completion_tokens=20, temperature=0)
    message = done.choices[0].message
    assert message.role == "assistant"
    assert message.content == talking(TALK, max_new_tokens=20, do_sample=False)["output"]
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "saw"}]}]
    stream = client.chat.completions.create(
        model="tiny", messages=parts, max_completion_tokens=20, temperature=0, stream=True
    )
    (text,), chunks = joined(stream)
    assert text == message.content
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    more: Any = [*TALK, message, {"role": "user", "content": "and"}]  # as a client's loop sends it again
    assert client.chat.completions.create(model="tiny", messages=more, max_completion_tokens=3).choices


def test_the_oldest_turns_of_a_long_conversation_are_left_out(
    client: openai.OpenAI, server: Running, talking: Pipeline
) -> None:
    turns = [{"role": role, "content": f"{n} the fig " * 6} for n in range(30) for role in ("user", "assistant")][:-1]
    talk = [{"role": "system", "content": "an apple"}, *turns]
    asked: Any = {"model": "tiny", "messages": talk, "max_tokens": 20, "temperature": 0}
    with pytest.raises(openai.BadRequestError, match="shorten the prompt"):
        client.chat.completions.create(**asked)
    done = client.chat.completions.create(**asked, extra_body={"truncation": "auto"})
    left_out = done.model_extra["heedful"]["left_out"]  # type: ignore[index]
    read = [talk[0], *turns[left_out:]]
    assert left_out % 2 == 0
    assert len(talking.task.prompt_ids([read])[0]) + 20 <= 512  # type: ignore[attr-defined]
    assert len(talking.task.prompt_ids([[talk[0], *turns[left_out - 2 :]]])[0]) + 20 > 512  # type: ignore[attr-defined]
    assert done.choices[0].message.content == talking(read, max_new_tokens=20, do_sample=False)["output"]
    stream = client.chat.completions.create(**asked, stream=True, extra_body={"truncation": "auto"})
    assert {chunk.model_extra["heedful"]["left_out"] for chunk in stream} == {left_out}
    short = server.post("/v1/chat/completions", messages=talk[:2], truncation="auto", max_tokens=2)
    assert short["heedful"] == {"left_out": 0}
    long = {"messages": [*turns, {"role": "user", "content": "fig " * 2000}], "truncation": "auto"}
    assert server.refused("/v1/chat/completions", **long)[1]["code"] == "context_length_exceeded"
    asked = {"messages": talk[:6], "max_length": 120}
    whole, last = (len(talking.task.prompt_ids([each])[0]) for each in (talk[:6], [talk[0], talk[5]]))  # type: ignore[attr-defined]
    assert last < 120 < whole
    message = server.refused("/v1/chat/completions", **asked)[1]["message"]
    assert f"the prompt has {whole} tokens, but max_length is 120 with the answer" in message
    done = server.post("/v1/chat/completions", **asked, truncation="auto")
    assert done["heedful"]["left_out"] > 0
    assert done["usage"]["total_tokens"] <= 120


def test_the_hubs_client_chats_too(server: Running, talking: Pipeline) -> None:
    client, expected = InferenceClient(server.address, token="none"), talking(TALK, max_new_tokens=8, seed=2)["output"]
    asked: Any = {"messages": TALK, "max_tokens": 8, "seed": 2}
    assert client.chat_completion(**asked).choices[0].message.content == expected
    assert (
        "".join(chunk.choices[0].delta.content or "" for chunk in client.chat_completion(**asked, stream=True))
        == expected
    )


def test_several_prompts_and_answers(client: openai.OpenAI, talking: Pipeline) -> None:
    asked: Any = {"model": "tiny", "prompt": ["the fig", "a saw"], "n": 3, "max_tokens": 12, "seed": 4}
    done = client.completions.create(**asked)
    assert [choice.index for choice in done.choices] == list(range(6))
    found = talking(["the fig", "a saw"], num_return_sequences=3, max_new_tokens=12, seed=4)
    expected = [one["text"] for prediction in found for one in prediction["output"]]
    assert ["the fig" * (i < 3) + "a saw" * (i > 2) + choice.text for i, choice in enumerate(done.choices)] == expected
    texts, _ = joined(client.completions.create(**asked, stream=True))
    assert texts == [choice.text for choice in done.choices]
    assert done.usage is not None
    assert done.usage.completion_tokens == 72


def test_token_ids_as_prompts(client: openai.OpenAI, talking: Pipeline) -> None:
    ids = talking.task.prompt_ids(["the fig", "a saw"])  # type: ignore[attr-defined]
    asked: Any = {"model": "tiny", "max_tokens": 8, "temperature": 0}
    by_text = client.completions.create(**asked, prompt=["the fig", "a saw"])
    by_ids = client.completions.create(**asked, prompt=ids)
    assert [c.text for c in by_ids.choices] == [c.text for c in by_text.choices]
    one = client.completions.create(**asked, prompt=ids[0], echo=True)
    assert one.choices[0].text == "the fig" + by_text.choices[0].text


def test_log_probabilities(client: openai.OpenAI, talking: Pipeline) -> None:
    done = client.completions.create(model="tiny", **GREEDY, max_tokens=10, logprobs=2)  # type: ignore[arg-type]
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    expected = talking("the fig", max_new_tokens=10, do_sample=False, logprobs=True)["logprobs"]
    assert logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)
    assert "".join(logprobs.tokens or []) == done.choices[0].text
    assert logprobs.text_offset == [len("".join((logprobs.tokens or [])[:i])) for i in range(10)]
    for token, logprob, top in zip(
        logprobs.tokens or [], logprobs.token_logprobs or [], logprobs.top_logprobs or [], strict=True
    ):
        assert len(top) == 2
        assert max(top.values()) == top[token] == logprob
    talk: Any = TALK
    chat = client.chat.completions.create(
        model="tiny", messages=talk, max_tokens=4, temperature=0, logprobs=True, top_logprobs=3
    )
    assert chat.choices[0].logprobs is not None
    tokens = chat.choices[0].logprobs.content or []
    assert "".join(token.token for token in tokens) == chat.choices[0].message.content
    assert [len(token.top_logprobs) for token in tokens] == [3] * 4
    assert bytes(tokens[0].bytes or []).decode() == tokens[0].token


@pytest.mark.parametrize("new", [0, 1, 4])
def test_echo_with_log_probabilities_scores_the_prompt(client: openai.OpenAI, talking: Pipeline, new: int) -> None:
    """As evaluation harnesses ask: a context with its continuation, the sum over the continuation's tokens."""
    texts = ["the fig fell and the saw hangs " * 5, "a", "the saw hangs"]  # the first is longer than a chunk
    ids = talking.task.prompt_ids(texts)  # type: ignore[attr-defined]
    asked: Any = {"model": "tiny", "max_tokens": new, "temperature": 0, "echo": True, "logprobs": 3, "seed": 1234}
    by_ids = client.completions.create(**asked, prompt=ids)
    by_text = client.completions.create(**asked, prompt=texts)
    for choice, same, text, row in zip(by_ids.choices, by_text.choices, texts, ids, strict=True):
        found = choice.logprobs
        assert found is not None
        assert_close_logprobs(found, same.logprobs)
        assert found.token_logprobs
        assert found.tokens
        assert found.top_logprobs
        assert found.text_offset
        with torch.no_grad():
            expected = talking.model(torch.tensor([row])).log_softmax(2)[0]
        assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
        chosen = expected[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0]
        assert found.token_logprobs[1 : len(row)] == pytest.approx(chosen.tolist(), abs=1e-4)
        best = expected[:-1].topk(3).values.tolist()
        for top, values in zip(found.top_logprobs[1 : len(row)], best, strict=True):
            assert sorted(top.values(), reverse=True) == pytest.approx(values, abs=1e-4)
        assert len(found.tokens) == len(row) + new == len(found.text_offset)
        assert same.text.startswith(text)
        assert choice.text == same.text
        for token, begin in zip(found.tokens, found.text_offset, strict=True):
            if not token.startswith("<"):  # the name of a special token, which has no text
                assert choice.text[begin : begin + len(token)] == token
        assert choice.finish_reason == "length"
    assert by_ids.usage is not None
    assert (by_ids.usage.prompt_tokens, by_ids.usage.completion_tokens) == (sum(map(len, ids)), 3 * new)
    chunks = list(client.completions.create(**asked, prompt=ids[0], stream=True))
    streamed = [chunk.choices[0] for chunk in chunks]
    assert "".join(one.text for one in streamed) == by_ids.choices[0].text
    numbers = [number for one in streamed for number in one.logprobs.token_logprobs]  # type: ignore[union-attr]
    assert numbers[1:] == approx(by_ids.choices[0].logprobs.token_logprobs[1:])  # type: ignore[union-attr,index]


def assert_close_logprobs(found: Any, same: Any) -> None:
    """Equal tokens and close numbers: the rows of a step may round by how many they are."""
    assert (found.tokens, found.text_offset) == (same.tokens, same.text_offset)
    assert found.token_logprobs[1:] == approx(same.token_logprobs[1:])  # the first token has none
    for own, other in zip(found.top_logprobs[1:], same.top_logprobs[1:], strict=True):
        assert own == approx(other)


def test_a_prompt_as_long_as_the_model_takes_is_scored(server: Running, talking: Pipeline) -> None:
    (row,) = talking.task.prompt_ids(["fig " * 600])  # type: ignore[attr-defined]
    asked = {"echo": True, "logprobs": 0, "max_tokens": 0}
    scored = server.post("/v1/completions", prompt=row[:512], **asked)["choices"][0]["logprobs"]
    assert len(scored["token_logprobs"]) == 512
    assert scored["top_logprobs"] is None
    error = server.refused("/v1/completions", prompt=row[:513], **asked)[1]
    assert error["code"] == "context_length_exceeded"
    assert "the prompt has 513 tokens and none are to be generated, but the server's limit is 512" in error["message"]


def test_stop_strings_are_left_out_at_every_border(client: openai.OpenAI) -> None:
    drawn: Any = {
        "model": "tiny",
        "prompt": "the fig",
        "seed": 3,
        "max_tokens": 30,
        "extra_body": {"min_new_tokens": 30},
    }
    whole = client.completions.create(**drawn).choices[0].text
    assert len(set(whole)) > 9
    stops = dict.fromkeys(whole[start : start + length] for start in range(len(whole) - 3) for length in (1, 3))
    for stop in stops:
        asked = {**drawn, "stop": [stop, "never"]}
        done = client.completions.create(**asked).choices[0]
        assert (done.text, done.finish_reason) == (whole[: whole.index(stop)], "stop")
        (text,), chunks = joined(client.completions.create(**asked, stream=True))
        assert text == done.text
        assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.skipif(compiler() is None, reason="needs g++")
def test_a_stop_string_within_tokens_that_come_together(
    client: openai.OpenAI, server: Running, talking: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    step = SlotDecoder.step

    def counted(decoder: SlotDecoder, most: int) -> Any:
        counts.append(len(tokens := step(decoder, most)))
        return tokens

    monkeypatch.setattr(SlotDecoder, "step", counted)
    monkeypatch.setattr(server.service, "_most_steps", lambda: 8)
    asked: Any = {"model": "tiny", **GREEDY, "max_tokens": 24}
    whole = client.completions.create(**asked)
    expected = talking.predict(["the fig"], do_sample=False, max_new_tokens=24)
    assert whole.choices[0].text == expected[0].output.removeprefix("the fig")
    assert max(counts) == 8
    stop = whole.choices[0].text[4:6]
    place = whole.choices[0].text.index(stop)
    for _ in range(2):  # the slot is free again
        (text,), chunks = joined(client.completions.create(**asked, stop=stop, stream=True))
        assert (text, chunks[-1].choices[0].finish_reason) == (whole.choices[0].text[:place], "stop")


@pytest.mark.parametrize(("seconds", "most"), [(0.0, 1), (0.0005, 40), (0.004, 5), (0.03, 1)])
def test_tokens_that_come_together_take_at_most_a_fiftieth_of_a_second(
    server: Running, seconds: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.service, "_seconds_a_step", seconds)
    assert server.service._most_steps() == most
    monkeypatch.setattr(server.service, "_rows", [object()])  # somebody waits
    assert server.service._most_steps() == 1


def test_a_search_is_answered_too(client: openai.OpenAI, talking: Pipeline) -> None:
    done = client.completions.create(model="tiny", prompt="the fig", max_tokens=6, n=2, extra_body={"num_beams": 3})
    found = talking("the fig", num_beams=3, num_return_sequences=2, max_new_tokens=6)["output"]
    assert ["the fig" + choice.text for choice in done.choices] == [one["text"] for one in found]
    with pytest.raises(openai.BadRequestError, match="stream"):
        client.completions.create(model="tiny", prompt="a", stream=True, extra_body={"num_beams": 3})


def test_the_asynchronous_client(server: Running) -> None:
    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="none") as client:
            asked: Any = {"model": "tiny", **GREEDY, "max_tokens": 20}
            alone = (await client.completions.create(**asked)).choices[0].text
            many = await asyncio.gather(*(client.completions.create(**asked) for _ in range(20)))
            assert {done.choices[0].text for done in many} == {alone}
            stream = await client.completions.create(**asked, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in stream]) == alone

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"user": "me"}, "user"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logprobs": 50}, "logprobs"),
        ({"echo": True, "logprobs": 1, "num_beams": 2}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"other": True}}, "stream_options"),
        ({"max_tokens": 5, "max_new_tokens": 5}, "max_tokens"),
        ({"batch_tokens": 5}, "batch_tokens"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"max_tokens": 511}, "prompt"),
        ({"max_length": 2}, "prompt"),
        ({"do_sample": False, "top_k": 5}, "do_sample"),
        ({"num_beams": 2, "temperature": 0.5}, "num_beams"),
    ],
)
def test_unsupported_fields_are_refused_by_name(server: Running, more: dict[str, Any], param: str) -> None:
    status, error = server.refused("/v1/completions", **{"prompt": "the fig", **more})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"messages": TALK, "tools": []}, "tools"),
        ({"messages": TALK, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": TALK, "top_logprobs": 2}, "top_logprobs"),
        ({"messages": TALK, "max_tokens": 3, "max_completion_tokens": 3}, "max_completion_tokens"),
        ({"messages": TALK, "echo": True}, "echo"),
    ],
)
def test_unsupported_fields_of_a_chat(server: Running, body: dict[str, Any], param: str) -> None:
    status, error = server.refused("/v1/chat/completions", **body)
    assert (status, error["param"]) == (400, param)


def test_other_models_and_broken_bodies(server: Running) -> None:
    status, error = server.refused("/v1/completions", prompt="a", model="gpt-4")
    assert (status, error["code"]) == (404, "model_not_found")
    broken = server.http.post("/v1/completions", content=b"{", headers={"Content-Type": "application/json"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "json")
    plain = server.http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (plain.status_code, plain.json()["error"]["code"]) == (400, "json")
    assert server.http.get("/v1/nothing").status_code == 404
    assert server.http.get("/v1/completions").status_code == 405


def test_embeddings(serving: Callable[..., Running], folder_of: Callable[[str], Path]) -> None:
    pipe = heedful.pipeline(None, folder_of("feature-extraction"))
    server = serving(pipe)
    client = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
    texts = ["the fig", "a saw"]
    expected = np.array([prediction["output"] for prediction in pipe(texts)])
    for encoding in ("float", "base64"):
        done = client.embeddings.create(model="tiny", input=texts, encoding_format=encoding)  # type: ignore[arg-type]
        vectors = [one.embedding for one in done.data]
        if encoding == "base64":
            vectors = [np.frombuffer(base64.b64decode(vector), "<f4") for vector in vectors]  # type: ignore[arg-type]
        assert np.allclose(vectors, expected, atol=1e-6)
    assert np.allclose(
        client.embeddings.create(model="tiny", input="the fig").data[0].embedding, expected[0], atol=1e-6
    )
    assert done.usage.prompt_tokens == sum(pipe.task.token_counts(texts))  # type: ignore[attr-defined]
    assert server.refused("/v1/embeddings", input="a", dimensions=8)[1]["param"] == "dimensions"
    assert server.refused("/v1/embeddings", input=[1, 2])[1]["param"] == "input"
    assert server.refused("/v1/embeddings", input=["a", " "])[1]["param"] == "input"
    assert server.refused("/v1/embeddings", input="fig " * 2000)[0] == 413
    status, error = server.refused("/v1/completions", prompt="a")
    assert (status, "/v1/embeddings" in error["message"]) == (404, True)
    assert "a chat template" in server.refused("/v1/chat/completions", messages=[])[1]["message"]


def test_an_exact_server_gives_the_same_bits_under_load(
    serving: Callable[..., Running], talking: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def decoder(*arguments: Any, **options: Any) -> SlotDecoder:
        made.append(options["exact"])
        return SlotDecoder(*arguments, **options)

    monkeypatch.setattr(service, "SlotDecoder", decoder)
    server = serving(talking, exact=True, slots=8)
    assert made == [True]
    request = {"prompt": "the fig", "max_tokens": 40, "min_new_tokens": 40, "seed": 5, "logprobs": 2}
    alone = server.post("/v1/completions", **request)["choices"][0]
    others = threading.Thread(
        target=lambda: server.post("/v1/completions", prompt=["a saw"] * 6, max_tokens=200, min_new_tokens=200, seed=1)
    )
    others.start()
    server.until(lambda: len(server.service._live) == 6)
    assert server.post("/v1/completions", **request)["choices"][0] == alone
    others.join(60)


# requests to an exact server: those whose answers are compared, and those beside them
HONEST: list[dict[str, Any]] = [
    {"prompt": "the fig", "max_tokens": 60, "min_new_tokens": 60, "seed": 5, "logprobs": 2},
    {"prompt": "a saw and a pear", "max_tokens": 60, "min_new_tokens": 60, "temperature": 0, "logprobs": 2},
    {"prompt": "the drill", "max_tokens": 80, "seed": 7, "top_p": 0.9, "repetition_penalty": 1.2, "logprobs": 2},
]
REFUSED: list[dict[str, Any]] = [
    {"max_tokens": 10**9},
    {"max_tokens": 2**70},
    {"max_tokens": -1},
    {"temperature": -1.0},
    {"temperature": "hot"},
    {"top_p": 2.0},
    {"top_k": -3},
    {"top_k": 10**18},
    {"temperature": 1e-30},
    {"temperature": 1e30},
    {"repetition_penalty": 1e30},
    {"repetition_penalty": 0.0},
    {"stop": [""]},
    {"stop": ["a"] * 17},
    {"stop": "x" * 257},
    {"stop": "\ud800"},
    {"prompt": [10**9]},
    {"prompt": [-1]},
    {"prompt": "fig " * 5000},
    {"n": 129},
    {"unknown": 1},
]
ODD: list[dict[str, Any]] = [
    {"top_p": 1e-300, "max_tokens": 8},
    {"no_repeat_ngram_size": 1, "max_tokens": 30},
    {"stop": ["a", "e", " "], "max_tokens": 30},
    {"stop": ["x" * 256] * 16, "max_tokens": 30},
    {"num_beams": 3, "max_tokens": 8},
    {"prompt": [[0], [0]], "max_tokens": 2},
    {"n": 4, "max_tokens": 20},
]


def test_no_other_request_changes_a_bit_of_an_answer_of_an_exact_server(
    serving: Callable[..., Running], talking: Pipeline
) -> None:
    server = serving(talking, exact=True, slots=6)
    alone = [server.post("/v1/completions", **request)["choices"] for request in HONEST]
    ended, statuses = threading.Event(), dict[int, set[int]]()
    headers = {"Content-Type": "application/json"}

    def disturb() -> None:
        while not ended.is_set():
            for index, more in enumerate((*REFUSED, *ODD)):
                content = json.dumps({"prompt": "the fig", "seed": 1, **more})
                status = httpx.post(f"{server.address}/v1/completions", content=content, headers=headers).status_code
                statuses.setdefault(index, set()).add(status)

    def leave() -> None:
        content = json.dumps({"prompt": "the fig", "stream": True, "max_tokens": 400, "min_new_tokens": 400}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        while not ended.is_set():
            with server.raw(head + b"Content-Length: %d\r\n\r\n" % len(content) + content) as connection:
                connection.recv(100)

    with ThreadPoolExecutor() as pool:
        others = [pool.submit(disturb), pool.submit(leave)]
        try:
            while not ended.is_set():
                together = pool.map(lambda request: server.post("/v1/completions", **request)["choices"], HONEST)
                assert list(together) == alone
                if len(statuses) == len(REFUSED) + len(ODD) or any(other.done() for other in others):
                    ended.set()
        finally:
            ended.set()
        for other in others:
            other.result(60)
    assert all(statuses[index] <= {400, 413} for index in range(len(REFUSED)))
    assert all(200 in statuses[index] for index in range(len(REFUSED), len(statuses)))


def test_exact_is_refused_for_a_model_that_continues_no_texts(tmp_path: Path) -> None:
    pipe = heedful.pipeline(None, saved("text-classification", tmp_path / "labels"))
    with pytest.raises(HeedfulError, match="exact is for models that continue texts, not for text-classification"):
        service.Service(pipe, "tiny", exact=True)
