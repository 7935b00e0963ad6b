"""docs/serving.md: its requests are answered, its options and metrics exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from running_server import Running

import heedful
from heedful import cli
from heedful.cli.chat import Conversation
from heedful.inference.pipeline import Pipeline
from heedful.serving.admission import TOKENS, ServiceLimits

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8000"


def blocks(kind: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", page, re.S | re.M)


@pytest.fixture(scope="module")
def server(serving: Callable[..., Running], talking: Pipeline) -> Running:
    return serving(talking)


def test_the_commands_are_answered(server: Running, tmp_path: Path) -> None:
    for command in blocks("sh"):
        done = subprocess.run(
            ["bash", "-c", command.replace(ADDRESS, server.address)],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        if command.startswith("curl"):
            assert {"output", "choices"} & set(json.loads(done.stdout))
    assert len((tmp_path / "token").read_text("ascii")) > 40


def test_the_python_is_answered(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    for code in blocks("python"):
        exec(compile(code.replace(ADDRESS, server.address), "docs/serving.md", "exec"), {})
        assert capsys.readouterr().out.strip()


def test_its_options_metrics_and_numbers_exist(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "--help"]) == 0
    known = capsys.readouterr().out + "--to"
    benchmark = (ROOT / "benchmarks" / "serving" / "__main__.py").read_text(encoding="utf-8")
    serving, _, measuring = re.sub(r"--data-binary|podman .*|lm_eval .*", "", PAGE).partition("## Measure it")
    for text, options in ((serving, known), (measuring, benchmark)):
        for option in re.findall(r"(?<![\w<-])--[a-z][\w-]+", text):
            assert option in options, option
    metrics = server.http.get("/metrics").text
    for name in re.findall(r"`(heedful_\w+)`", PAGE):
        assert f"\n# TYPE {name} " in metrics, name
    limits = ServiceLimits()
    for number in (limits.slots, limits.queue, limits.max_tokens, int(limits.timeout), int(limits.drain), TOKENS):
        assert f" {number:,} " in PAGE, number
    assert limits.body == 16 << 20
    assert f"{limits.pixels / 1e6:.1f} million pixels" in PAGE
    paths = set(server.http.get("/openapi.json").json()["paths"])
    assert {"/predict", "/v1/completions", "/v1/chat/completions", "/metrics", "/health", "/ready"} <= paths


def test_the_assistant_of_the_docs_is_trained_and_talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = (ROOT / "docs" / "tasks" / "text-generation.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    (code,) = (block for block in blocks("python", tasks) if "talks.jsonl" in block)
    exec(compile(code, "docs/tasks/text-generation.md", "exec"), {})
    (command,) = re.findall(r"^ +heedful (train text-generation --train talks.jsonl .*)$", tasks, re.M)
    assert "--max-steps 200 " in command
    assert cli.main([*shlex.split(command.replace("--max-steps 200 ", "--max-steps 2 ")), "--json"]) == 0
    conversation = Conversation(heedful.pipeline(None, "runs/assistant"), "assistant", {"max_new_tokens": 5})
    for text in ("What comes after June?", "And before that?"):
        assert "".join(conversation.answer(text))
    assert "runs/assistant" in PAGE
    assert "(tasks/text-generation.md)" in PAGE
