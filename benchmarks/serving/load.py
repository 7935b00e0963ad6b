"""Clients of a server with OpenAI's completions, streamed: closed loops over plain sockets."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

READ_TIMEOUT = 120.0  # seconds without a byte after which a request has failed


@dataclass(frozen=True)
class Request:
    """A prompt, and the most tokens of its answer."""

    prompt: str
    new: int


@dataclass
class Answer:
    """What became of a request: its text, and when its parts came, in seconds since it was sent."""

    kind: str  # complete, refused, cancelled, failed
    text: str = ""
    times: list[float] = field(default_factory=list)
    end: float = 0.0


@dataclass(frozen=True)
class Target:
    """Where requests go: the server's address, the model's name, and whether prompts are messages."""

    url: str
    model: str
    chat: bool = False


async def ask(target: Target, request: Request, leave_after: int | None = None) -> Answer:
    """Sends one request; after ``leave_after`` parts of the answer the client hangs up."""
    host, _, port = target.url.removeprefix("http://").partition(":")
    prompt = {"messages": [{"role": "user", "content": request.prompt}]} if target.chat else {"prompt": request.prompt}
    body = {"model": target.model, **prompt, "max_tokens": request.new, "temperature": 0, "stream": True}
    data = json.dumps(body).encode()
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    answer, began = Answer("failed"), time.perf_counter()
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + data)
        status, chunked = await _head(reader)
        if status in (429, 503):
            answer.kind = "refused"
        elif status == 200:
            answer.kind = "cut"
            async for line in _lines(reader, chunked):
                if not line.startswith(b"data:"):
                    continue
                if line[5:].strip() == b"[DONE]":
                    answer.kind = "complete"
                    break
                text, is_last = _part_of(json.loads(line[5:]))
                if is_last:  # some servers leave [DONE] out
                    answer.kind = "complete"
                if text:
                    answer.text += text
                    answer.times.append(time.perf_counter() - began)
                if answer.kind == "cut" and leave_after is not None and len(answer.times) >= leave_after:
                    answer.kind = "cancelled"
                    break
    except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError, IndexError):
        answer.kind = "failed"
    finally:
        if writer is not None:
            writer.transport.abort() if answer.kind == "cancelled" else writer.close()
    answer.end = time.perf_counter() - began
    return answer


def _part_of(event: dict[str, Any]) -> tuple[str, bool]:
    """Returns the text of an event, and whether the answer ends with it."""
    first = next(iter(event.get("choices") or []), {})
    text = first.get("text") or (first.get("delta") or {}).get("content") or ""
    return str(text), bool(first.get("finish_reason"))


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Returns the status, and whether the body comes in chunks."""
    line = await asyncio.wait_for(reader.readline(), READ_TIMEOUT)
    chunked = False
    while (header := (await reader.readline()).strip().lower()) != b"":
        chunked = chunked or header == b"transfer-encoding: chunked"
    return int(line.split()[1]), chunked


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """Yields the lines of a body."""
    rest = b""
    while True:
        part = await asyncio.wait_for(_part(reader, chunked), READ_TIMEOUT)
        if not part:
            return
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line


async def _part(reader: asyncio.StreamReader, chunked: bool) -> bytes:
    if not chunked:
        return await reader.read(65536)
    size = int((await reader.readline()).split(b";")[0] or b"0", 16)
    part = await reader.readexactly(size)
    await reader.readline()
    return part


async def closed_loops(
    target: Target, requests: Sequence[Request], clients: int, seconds: float, leave: float = 0.0
) -> list[Answer]:
    """Lets ``clients`` ask until ``seconds`` have passed, each with its own share of the requests, again and again.

    ``leave`` is the share of requests whose client hangs up after three parts of the answer.
    """
    until, answers = time.perf_counter() + seconds, []  # type: tuple[float, list[Answer]]

    async def client(number: int) -> None:
        chance, turn = random.Random(number), number
        while time.perf_counter() < until:
            hangs_up = 3 if chance.random() < leave else None
            answer = await ask(target, requests[turn % len(requests)], hangs_up)
            answers.append(answer)
            turn += clients
            if answer.kind == "refused":
                await asyncio.sleep(0.05)  # a client that is refused waits; servers say how long, these are impatient

    await asyncio.gather(*(client(number) for number in range(clients)))
    return answers


def percentile(values: Sequence[float], share: float) -> float | None:
    """Returns a percentile by nearest rank; None of no values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))] if ranked else None


def figures(answers: Sequence[Answer], seconds: float, count: Callable[[str], int]) -> dict[str, float | int | None]:
    """Returns the figures of a load: answers by what became of them, tokens a second, and times in milliseconds."""
    kinds = Counter(answer.kind for answer in answers)
    complete = [answer for answer in answers if answer.kind == "complete"]
    firsts = [1e3 * answer.times[0] for answer in complete if answer.times]
    gaps = [1e3 * (b - a) for answer in complete for a, b in zip(answer.times, answer.times[1:], strict=False)]
    refusals = [1e3 * answer.end for answer in answers if answer.kind == "refused"]
    return {
        "sent": len(answers),
        **{kind: kinds[kind] for kind in ("complete", "refused", "cancelled", "cut", "failed")},
        "tokens_per_second": sum(count(answer.text) for answer in complete) / seconds,
        "first_p50": percentile(firsts, 0.5),
        "first_p99": percentile(firsts, 0.99),
        "gap_p50": percentile(gaps, 0.5),
        "gap_p99": percentile(gaps, 0.99),
        "refusal_p99": percentile(refusals, 0.99),
    }
