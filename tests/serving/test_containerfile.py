"""The Containerfile names what exists: files, an extra, options of ``heedful serve``, a route. Nothing is built."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from heedful.cli.serve import serve

ROOT = Path(__file__).resolve().parents[2]


def instructions() -> list[tuple[str, str]]:
    """Instructions of both stages and their arguments, continued lines joined."""
    lines = [line for line in (ROOT / "Containerfile").read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined) if word]


def stages() -> list[list[tuple[str, str]]]:
    """The instructions of the stage that builds the wheel, and of the image."""
    starts = [number for number, (word, _) in enumerate(instructions()) if word == "FROM"]
    first, second = starts
    return [instructions()[first:second], instructions()[second:]]


def argument(name: str) -> str:
    """The argument of an instruction that the image has once."""
    (found,) = [rest for word, rest in stages()[1] if word == name]
    return found


def copied(stage: list[tuple[str, str]]) -> list[str]:
    """The files of the repository that a stage copies."""
    lines = [rest.split()[:-1] for word, rest in stage if word == "COPY" and not rest.startswith("--from=")]
    return [name for names in lines for name in names]


def test_the_wheel_can_be_built_from_what_is_copied() -> None:
    """All that ``pyproject.toml`` names for a build: readme, licence, build script, package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert "path" not in wheel["hooks"]["custom"], "else its script has another name than Hatch's default"
    needed = {"pyproject.toml", "hatch_build.py", "README.md", *project["project"]["license-files"]}
    assert needed | {path.split("/")[0] for path in wheel["packages"]} == {*copied(stages()[0])}


def test_files_and_the_extra_exist() -> None:
    files = [name for stage in stages() for name in copied(stage)]
    assert len(files) > 5
    assert all((ROOT / name).exists() for name in files)
    (built,) = [rest for word, rest in stages()[0] if word == "RUN"]
    folder = shlex.split(built)[shlex.split(built).index("--wheel-dir") + 1]
    assert ("COPY", f"--from=build {folder} {folder}") in stages()[1]
    words = shlex.split(argument("RUN"))
    assert words[:2] == ["pip", "install"]
    (package,) = [word for word in words if "[" in word]
    assert package.startswith(f"$(echo {folder}/*.whl)")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert package.partition("[")[2].rstrip("]") in extras
    assert words[words.index("--constraint") + 1] == "/constraints.txt"
    assert argument("ARG").startswith(words[words.index("--extra-index-url") + 1].strip("$") + "=https://")


def test_the_build_keeps_the_health_check() -> None:
    """OCI's image format, the default of podman, has none."""
    for name in ("Containerfile", "docs/serving.md"):
        (command,) = re.findall(r"podman build .*", (ROOT / name).read_text(encoding="utf-8"))
        assert "--format docker" in command
    assert argument("HEALTHCHECK")


def test_the_server_is_started_with_its_options_by_a_user() -> None:
    command = json.loads(argument("ENTRYPOINT"))
    assert command[:2] == ["heedful", "serve"]
    options = {name.removeprefix("--").replace("-", "_") for name in command if name.startswith("--")}
    assert {"host", "token_file"} <= options <= set(inspect.signature(serve).parameters)
    order = [word for word, _ in stages()[1]]
    assert order.index("RUN") < order.index("USER") < order.index("ENTRYPOINT")
    assert argument("USER") not in ("root", "0")


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_fails_where_the_route_does(status: int) -> None:
    from heedful.serving.app import OPEN

    paths: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    words = json.loads(argument("HEALTHCHECK").partition("CMD ")[2])
    code = words[-1].replace(":8000", f":{server.server_port}")
    done = subprocess.run([sys.executable, *words[1:-1], code], capture_output=True)
    server.shutdown()
    server.server_close()
    assert (done.returncode == 0) == (status == 200)
    assert paths
    assert set(paths) <= set(OPEN)
