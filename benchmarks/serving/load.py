"""Clients of a server with OpenAI's completions, streamed, over plain sockets: closed loops, and an open one."""

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
    """Outcome of a request: its text, and the arrival of its parts in seconds since it was sent."""

    kind: str  # complete, refused, cancelled, failed
    text: str = ""
    times: list[float] = field(default_factory=list)
    end: float = 0.0
    retry_after: float = 0.0  # seconds, of a refusal
    late: float = 0.0  # seconds after it was due that the request was sent


@dataclass(frozen=True)
class Target:
    """Where requests go: the server's address, the model's name, and whether prompts are messages."""

    url: str
    model: str
    chat: bool = False


async def ask(
    target: Target,
    request: Request,
    leave_after: int | None = None,
    is_streamed: bool = True,
    due: float | None = None,
) -> Answer:
    """Sends one request; after ``leave_after`` parts of the answer the client hangs up.

    If the answer is not streamed, it hangs up after ``leave_after`` hundredths of a second. Times count from when the
    request was ``due`` (``time.perf_counter``), by default now.
    """
    host, _, port = target.url.removeprefix("http://").partition(":")
    prompt = {"messages": [{"role": "user", "content": request.prompt}]} if target.chat else {"prompt": request.prompt}
    body = {"model": target.model, **prompt, "max_tokens": request.new, "temperature": 0, "stream": is_streamed}
    data = json.dumps(body).encode()
    path = "/v1/chat/completions" if target.chat else "/v1/completions"
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    began = time.perf_counter() if due is None else due
    answer, writer = Answer("failed"), None
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head.encode() + data)
        answer.late = time.perf_counter() - began
        hurry = None if is_streamed or leave_after is None else leave_after / 100
        try:
            async with asyncio.timeout(hurry):
                status, chunked, answer.retry_after = await _head(reader)
        except TimeoutError:
            if hurry is None:
                raise
            status, chunked, answer.kind = 0, False, "cancelled"
        if status in (429, 503):
            answer.kind = "refused"
        elif status == 200 and not is_streamed:
            answer.text = _part_of(json.loads(b"".join([line async for line in _lines(reader, chunked)])))[0]
            answer.kind = "complete"
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
    text = first.get("text") or (first.get("delta") or first.get("message") or {}).get("content") or ""
    return str(text), bool(first.get("finish_reason"))


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool, float]:
    """Returns the status, whether the body comes in chunks, and after how many seconds to ask again."""
    async with asyncio.timeout(READ_TIMEOUT):
        line, *headers = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    retry_after = next((float(header.split(b":")[1]) for header in headers if header.startswith(b"retry-after:")), 0.0)
    return int(line.split()[1]), b"transfer-encoding: chunked" in headers, retry_after


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """Yields the lines of a body."""
    rest = b""
    while True:
        async with asyncio.timeout(READ_TIMEOUT):
            part = await _part(reader, chunked)
        if not part:
            if rest:
                yield rest
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
    target: Target,
    requests: Sequence[Request],
    clients: int,
    seconds: float,
    leave: float = 0.0,
    plain: float = 0.0,
    most: int | None = None,
) -> list[Answer]:
    """Lets ``clients`` ask until ``seconds`` have passed, each with its own share of the requests, again and again.

    They stop after about ``most`` answers.

    ``leave`` is the share of requests whose client hangs up after three parts of the answer, and ``plain`` that of
    requests whose answers are not streamed.
    """
    until, answers = time.perf_counter() + seconds, []  # type: tuple[float, list[Answer]]

    async def client(number: int) -> None:
        chance, turn = random.Random(number), number
        while time.perf_counter() < until and (most is None or len(answers) < most):
            hangs_up = 3 if chance.random() < leave else None
            is_streamed = not plain or chance.random() >= plain
            answer = await ask(target, requests[turn % len(requests)], hangs_up, is_streamed)
            answers.append(answer)
            turn += clients
            if answer.kind == "refused":
                await asyncio.sleep(max(0.05, answer.retry_after))  # as the server says

    await asyncio.gather(*(client(number) for number in range(clients)))
    return answers


async def open_loop(
    target: Target, requests: Sequence[Request], rate: float, seconds: float, leave: float = 0.0
) -> list[Answer]:
    """Sends ``rate`` requests a second at random times (a Poisson process), whatever becomes of them; waits for all.

    Unlike in a closed loop, a slow server does not slow the clients down, and its delays do not hide in requests that
    were never sent. ``leave`` is as in ``closed_loops``.
    """
    chance, began, due, asked = random.Random(0), time.perf_counter(), 0.0, list[asyncio.Task[Answer]]()
    while (due := due + chance.expovariate(rate)) < seconds:
        await asyncio.sleep(began + due - time.perf_counter())
        hangs_up = 3 if chance.random() < leave else None
        request = requests[len(asked) % len(requests)]
        asked.append(asyncio.create_task(ask(target, request, hangs_up, due=began + due)))
    return list(await asyncio.gather(*asked))


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
    wholes = [1e3 * answer.end for answer in complete]
    refusals = [1e3 * answer.end for answer in answers if answer.kind == "refused"]
    late = [1e3 * answer.late for answer in answers]
    return {
        "sent": len(answers),
        **{kind: kinds[kind] for kind in ("complete", "refused", "cancelled", "cut", "failed")},
        "tokens_per_second": sum(count(answer.text) for answer in complete) / seconds,
        "first_p50": percentile(firsts, 0.5),
        "first_p99": percentile(firsts, 0.99),
        "whole_p99": percentile(wholes, 0.99),
        "gap_p50": percentile(gaps, 0.5),
        "gap_p99": percentile(gaps, 0.99),
        "refusal_p50": percentile(refusals, 0.5),
        "refusal_p99": percentile(refusals, 0.99),
        "late_p99": percentile(late, 0.99),
    }
