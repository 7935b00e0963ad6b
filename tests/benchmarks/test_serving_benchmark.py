"""The benchmark of servers: every server that is installed does a short load, and every request is accounted for."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.serving.__main__ import served  # noqa: E402
from benchmarks.serving.load import Answer, Request, Target, ask, figures, open_loop, percentile  # noqa: E402
from benchmarks.serving.servers import SERVERS  # noqa: E402
from benchmarks.speed import machine, page  # noqa: E402


@pytest.mark.parametrize("name", ["ours", "llama_cpp", "ctranslate2", "naive", "transformers"])
@pytest.mark.full(keep=1)
def test_a_short_load(name: str, tmp_path: Path) -> None:
    for package in SERVERS[name].needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-m", "benchmarks.serving", "--short", "--threads", "1", "--servers", name]
    done = subprocess.run([*command, "--out", str(tmp_path / "out.json")], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    told = json.loads((tmp_path / "out.json").read_text())[0][name]
    assert "absent" not in told, told
    for row in (told["2"], told["overload"]):
        assert row["sent"] == sum(row[kind] for kind in ("complete", "refused", "cancelled", "cut", "failed")), row
        # ours loses no request; another program may, at ten times as many as it answers
        assert (row["cut"], row["failed"]) == (0, 0) or (name != "ours" and row is told["overload"]), row
        assert row["complete"] > 0
        assert row["tokens_per_second"] > 0
        assert row["memory"] > 20
    assert told["2"]["refused"] == 0


def test_figures() -> None:
    answers = [
        Answer("complete", "a b", [0.1, 0.3], 0.3),
        Answer("complete", "a b c", [0.2, 0.3, 0.8], 0.8),
        Answer("refused", end=0.01),
        Answer("cancelled", "a", [0.1], 0.1),
    ]
    told = figures(answers, 2.0, lambda text: len(text.split()))
    assert told["tokens_per_second"] == 2.5
    assert (told["sent"], told["complete"], told["refused"], told["cancelled"], told["failed"]) == (4, 2, 1, 1, 0)
    assert told["first_p99"] == pytest.approx(200)
    assert told["gap_p99"] == pytest.approx(500)
    assert told["refusal_p99"] == pytest.approx(10)
    assert percentile([], 0.5) is None


def test_the_page_has_the_loads_of_all_rounds(tmp_path: Path) -> None:
    def one(ours: float, other: float) -> dict[str, Any]:
        loads = {"ours": ours, "llama_cpp": other}
        told = {
            name: {"2": {"tokens_per_second": speed, "first_p99": 1e4 / speed}, "1": {}}
            for name, speed in loads.items()
        }
        return {**told, "naive": {"absent": "it is not there"}}

    rounds = [one(100.0, 50.0), one(200.0, 50.0), one(400.0, 25.0)]
    told = served("small", rounds, ("ours", "llama_cpp", "naive"), (2,), "float32")
    settings = {"rounds": 3, "threads": 2, "device": "cpu", "short": False, "seconds": 6.0}
    run = {"date": "2026-01-01", "machine": machine.described(), "settings": settings, "ceilings": {}, "minutes": 1.0}
    page.add({**told, "runs": [run]}, tmp_path / "benchmarks.md")
    text = (tmp_path / "benchmarks.md").read_text(encoding="utf-8")
    assert "| | small served, 2 clients, ms a token | first token, ms | ours is |\n" in text
    assert "| ours float32 | 5.00 | 50.0 |  |\n| llama_cpp float32 | 20.0 | 200 | 4.00 × |\n" in text
    assert "| small served, 2 clients, ms a token | 5.00 | float32 | 20.0 | llama_cpp float32 | 4.00 × |" in text
    assert "- naive float32: it is not there" in text
    asked = "--dtype float32 --rounds 3 --seconds 6 --overload 0 --docs docs/benchmarks.md"
    assert f"    python -m benchmarks.serving FOLDER/small {asked}\n" in text
    assert "python -m benchmarks.speed" not in text


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\ndata: [DONE]\n\n', "complete"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"choices": [{"text": "a"}]}\n\n', "cut"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(b'data: {"choices"', b': [{"text": "a"}]}\n\nd', b"ata: [", b"DONE]\n\n", b""),
            "complete",
        ),
        (b"HTTP/1.1 429 Too Many Requests\r\n\r\n", "refused"),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "failed"),
        (b"", "failed"),
    ],
)
def test_outcomes_of_a_request(reply: bytes, kind: str) -> None:
    async def run() -> Answer:
        async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        answer = await ask(Target(f"http://127.0.0.1:{port}", "model"), Request("a", 3))
        server.close()
        await server.wait_closed()
        return answer

    answer = asyncio.run(run())
    assert answer.kind == kind
    assert answer.text == ("a" if kind in ("complete", "cut") else "")


def test_an_open_loop_neither_waits_for_answers_nor_hides_delays() -> None:
    async def run() -> tuple[list[Answer], int]:
        open_now = most = 0

        async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal open_now, most
            open_now += 1
            most = max(most, open_now)
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 9\r\n\r\n")
            writer.close()
            open_now -= 1

        async def busy() -> None:
            await asyncio.sleep(0.1)
            time.sleep(0.3)  # the load generator itself is held up

        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        target = Target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "model")
        answers, _ = await asyncio.gather(open_loop(target, [Request("a", 3)], 100, 0.6), busy())
        server.close()
        await server.wait_closed()
        return answers, most

    answers, most = asyncio.run(run())
    assert 30 < len(answers) < 100
    assert {(answer.kind, answer.retry_after) for answer in answers} == {("refused", 9.0)}
    assert most > 10
    assert max(answer.late for answer in answers) > 0.2
    assert max(answer.end for answer in answers) > 0.4
