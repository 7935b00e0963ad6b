"""``heedful doctor``: its facts against the machine's own, its text and JSON, and whatever is broken."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from heedful import __version__, doctor
from heedful.cli import main
from heedful.util import machine

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def parsed(requirements: list[str]) -> dict[str, str]:
    found = [re.fullmatch(r"([\w.-]+)>=([\d.]+)", one) for one in requirements]
    return {one[1]: one[2] for one in found if one}


def test_it_knows_what_pyproject_requires() -> None:
    assert parsed(PROJECT["dependencies"]) == doctor.REQUIRED
    extras = {name: parsed(each) for name, each in PROJECT["optional-dependencies"].items()}
    assert {name: set(doctor.EXTRAS[name]) for name in doctor.EXTRAS} == {
        name: set(extras[name]) for name in doctor.EXTRAS
    }
    assert set(extras) - set(doctor.EXTRAS) == {"all", "dev", "docs"}
    assert set(doctor.PURPOSE) == set(doctor.EXTRAS)
    everything = re.findall(r"[\w-]+", PROJECT["optional-dependencies"]["all"][0].partition("[")[2])
    assert everything == list(doctor.EXTRAS)


def test_extras_that_errors_name_exist() -> None:
    """Every ``heedful[...]`` in the source, the documentation and the README is an extra."""
    places = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {
        name
        for path in places
        for names in re.findall(r"heedful\[([\w,-]+)\]", path.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    assert {"data", "figures", "sentencepiece"} <= named <= set(PROJECT["optional-dependencies"]) | {"extras", "format"}


def test_text_and_json_tell_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["doctor", "--out", str(tmp_path / "runs" / "new"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["ok"] is True
    assert facts["problems"] == []
    assert facts["versions"]["heedful"] == __version__
    assert facts["packages"]["torch"] == metadata.version("torch")
    assert facts["torch"]["version"] == torch.__version__
    assert facts["kernels"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["threads"]["torch"] == torch.get_num_threads()
    assert facts["memory"]["total"] == machine.total_memory()
    assert facts["memory"]["available"] < facts["memory"]["total"]
    assert not [name for name, section in facts.items() if isinstance(section, dict) and "error" in section]
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in (f"heedful      {__version__}", f"torch        {torch.__version__}", "no problem found"):
        assert part in text
    for name in doctor.EXTRAS:
        assert re.search(rf"^extra +{name} .*(installed|missing: pip install 'heedful\[{name}\]')$", text, re.MULTILINE)


def test_the_hub_is_online_only_if_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        status = 200

        def do_HEAD(self) -> None:
            paths.append(self.path)
            self.send_response(self.status)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    def hub() -> Any:
        return doctor.report()["hub"]

    monkeypatch.setattr(doctor, "PATIENCE", 0.5)
    with HTTPServer(("127.0.0.1", 0), Answer) as server, socket.create_server(("127.0.0.1", 0)) as silent:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        for Answer.status, answers in ((200, True), (503, False)):
            found = hub()
            assert found["reachable"] is answers
            assert found["mode"].startswith("online: http" if answers else "http")
        assert len(paths) == 2
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        assert (hub()["reachable"], hub()["mode"]) == (None, "offline: nothing is downloaded")
        assert len(paths) == 2
        server.shutdown()
        thread.join()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert "does not answer" in hub()["mode"]
        assert time.monotonic() - start < 10
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.server_port}")  # now closed
    assert hub()["reachable"] is False


def test_missing_or_old_packages_are_problems_with_the_line_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = metadata.version
    odd = {"babel": None, "rich": "13.6.9", "pyarrow": None}

    def told(name: str) -> str:
        if name in odd and odd[name] is None:
            raise metadata.PackageNotFoundError(name)
        return odd.get(name) or version(name)

    monkeypatch.setattr(metadata, "version", told)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^problem: babel is not installed; pip install 'babel>=2\.14'$", text, re.MULTILINE)
    assert re.search(r"^problem: rich 13\.6\.9 is older than 13\.7; pip install 'rich>=13\.7'$", text, re.MULTILINE)
    assert re.search(r"^extra +data .*pip install 'heedful\[data\]'$", text, re.MULTILINE)
    assert re.search(r"^environment +OMP_NUM_THREADS=1$", text, re.MULTILINE)


def test_little_disk_and_a_busy_machine_are_problems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = type("usage", (), {"total": 10 << 30, "free": 1 << 20})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: usage)
    monkeypatch.setattr(machine, "mean_load", lambda: 12.0)
    monkeypatch.setattr(machine, "cores", lambda: 4)
    facts = doctor.report(tmp_path)
    assert [each["what"] for each in facts["problems"]] == [f"only 0.0 GB of disk space is free in {tmp_path}"]
    assert any("load 12.0 on 4 cores" in note for note in facts["notes"])


BROKEN = {
    "torch": "raise OSError('libgomp.so.1: cannot open shared object file')",
    "numpy": "raise RuntimeError('broken')",
    "huggingface_hub": "import nothing_of_this_name",
}


@pytest.mark.parametrize("arguments", [["-m", "heedful", "doctor"], ["-m", "heedful.doctor"]])
def test_nothing_that_is_broken_gives_a_traceback(tmp_path: Path, arguments: list[str]) -> None:
    for name, source in BROKEN.items():
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    if "heedful.doctor" in arguments:  # nor needs it the command line's own packages
        (tmp_path / "cyclopts.py").write_text("raise ImportError('broken')", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    for json_too in ([], ["--json"]):
        command = [sys.executable, *arguments, *json_too]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
        assert done.stderr == ""
        assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert "libgomp.so.1" in facts["torch"]["error"]
    assert facts["ok"] is False
    assert [each for each in facts["problems"] if "torch" in each["what"] and "pip install" in each["remedy"]]
    assert facts["memory"]["total"] == machine.total_memory()
