"""The Hub: a small server that speaks what ``huggingface_hub`` asks for, and a fresh process that asks it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fresh_process
import heedful
from heedful import cli, presets
from heedful.pretrained import load, push, read_card, save
from tolerances import assert_close

IDS = torch.tensor([[1, 2, 3, 4]])
FIND = "import sys; from heedful.pretrained.folder import find; print(find(*sys.argv[1:]))"
FIND_EACH = """
import sys
from heedful.errors import HeedfulError
from heedful.pretrained.folder import find
for name in sys.argv[1:]:
    try:
        print(find(name))
    except HeedfulError as error:
        print(error)
"""
LOAD = """
import sys, heedful
print(sum(p.double().sum().item() for p in heedful.from_pretrained(sys.argv[1]).parameters()))
"""
READ = """
import json, sys
from heedful.data import read, splits
kinds = {"text": "text", "label": "label"}
texts = [[row.values["text"] for row in read(sys.argv[1], kinds, split=part)] for part in ("train", "valid")]
print(json.dumps([splits(sys.argv[1]), *texts]))
"""
PUSH = """
import sys, heedful
model = heedful.create("gpt-micro", seed=0)
print(model.push_to_hub(sys.argv[1], private=True, revision=sys.argv[2] if len(sys.argv) > 2 else None))
"""

Files = dict[str, bytes]


class Hub(ThreadingHTTPServer):
    """Repositories by name and revision; what was asked for; what was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, Files]] = {}
        self.gated: set[str] = set()
        self.asked: list[str] = []
        self.sent: list[tuple[str, Any]] = []
        self.token = "hf_right"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[str]:
        """Files that were downloaded."""
        return sorted(path.rpartition("/")[2] for path in self.asked if "/resolve/" in path)


def assert_same(loaded: Any, model: Any) -> None:
    """The same weights to the bit; where they lie in memory may change the last bits of what they compute."""
    weights = loaded.state_dict()
    assert weights.keys() == model.state_dict().keys()
    for name, one in model.state_dict().items():
        assert torch.equal(weights[name], one), name
    assert_close(loaded(IDS), model(IDS))


def commit(files: Files) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str) -> None:
        self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if self.command == "GET":
            self.server.asked.append(path)
        api, kind = path.startswith("/api/"), "datasets/" if path.startswith(("/api/datasets/", "/datasets/")) else ""
        parts = path.removeprefix("/api").removeprefix("/models").removeprefix("/datasets").strip("/").split("/")
        size = 2 if len(parts) > 1 and parts[1] not in ("revision", "tree", "resolve") else 1
        name, (what, revision, *rest) = kind + "/".join(parts[:size]), [*parts[size:], "", ""][:2] + parts[size + 2 :]
        if name in self.server.gated:
            return self.refuse(403, "GatedRepo")
        if name not in self.server.repositories:
            return self.refuse(401, "RepoNotFound")
        revisions = self.server.repositories[name]
        named = revisions | {commit(files): files for files in revisions.values()}
        if revision not in named:
            return self.refuse(404, "RevisionNotFound")
        files = named[revision]
        if api and what == "revision":
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "sha": commit(files), "siblings": siblings, "tags": [], "private": False})
        if api and what == "tree":
            entries = [{"type": "file", "path": f, "size": len(c), "oid": oid(c)} for f, c in files.items()]
            return self.answer(entries)
        file = "/".join(rest)
        if file not in files:
            return self.refuse(404, "EntryNotFound")
        return self.answer(files[file], ETag=f'"{oid(files[file])}"', X_Repo_Commit=commit(files))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self.refuse(401, "Unauthorized")
        path = self.path.partition("?")[0]
        if path.endswith("/commit/main") or "/commit/" in path:
            self.server.sent.append((path, [json.loads(line) for line in body.splitlines()]))
            url = f"{self.server.address}/org/name/commit/{'0' * 40}"
            return self.answer({"success": True, "commitOid": "0" * 40, "commitUrl": url})
        asked = json.loads(body)
        if "/preupload/" in path:
            files = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in asked["files"]]
            return self.answer({"files": files})
        self.server.sent.append((path, asked))
        if path == "/api/repos/create":
            if asked["name"] == "taken":
                return self.refuse(403, "Forbidden: not yours")
            name = f"{asked.get('organization') or 'me'}/{asked['name']}"
            return self.answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        return self.answer({"errors": [], "warnings": []})


def oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(hub: Hub | str, home: Path, code: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    address = hub if isinstance(hub, str) else hub.address
    env = {"HF_HOME": str(home), "HF_ENDPOINT": address, "HF_HUB_DISABLE_PROGRESS_BARS": "1", "NO_PROXY": "127.0.0.1"}
    env |= {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", **more}
    return fresh_process.run(code, *arguments, env=env)


def found(run: subprocess.CompletedProcess[str]) -> Path:
    assert run.returncode == 0, run.stderr
    return Path(run.stdout.strip())


def found_each(run: subprocess.CompletedProcess[str]) -> list[str]:
    """A line for each name: its folder, or the error's one line."""
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def said(run: subprocess.CompletedProcess[str]) -> str:
    """The error's one line."""
    last = run.stderr.strip().splitlines()[-1]
    kind, _, line = last.partition(": ")
    assert (run.returncode, kind) == (1, "heedful.errors.HeedfulError"), run.stderr
    return line


def files_of(folder: Path) -> Files:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def model(tmp_path: Path) -> Any:
    made = heedful.create(presets.get("gpt-micro"), seed=0).eval()
    save(made, tmp_path / "model")
    return made


def test_a_model_of_the_hub(hub: Hub, model: Any, tmp_path: Path) -> None:
    old = files_of(tmp_path / "model") | {"chat_template.jinja": b"{{ messages }}"}
    new = old | {"config.json": old["config.json"].replace(b'"attn_pdrop"', b'"attn_pdrop_"')}
    others = {"pytorch_model.bin": b"x", "tf_model.h5": b"x", "model.onnx": b"x", "rust_model.ot": b"x"}
    others["modeling.py"] = b"raise SystemExit('code of the folder ran')"
    new["config.json"] = new["config.json"].replace(b"{", b'{"auto_map": {"AutoModel": "modeling.Model"},', 1)
    hub.repositories["org/name"] = {"main": new | others, "v1": old | others}
    home = tmp_path / "home"
    run = ask(hub, home, LOAD, "org/name")
    assert float(found(run).name) == pytest.approx(sum(p.double().sum().item() for p in model.parameters()))
    assert hub.files() == sorted({*old} - {"README.md"})  # no pickle, no code, no file of another framework
    by_option = found(ask(hub, home, FIND, "org/name", "v1"))
    by_id, newest = map(Path, found_each(ask(hub, home, FIND_EACH, "org/name@v1", "org/name")))
    assert by_id == by_option != newest
    assert home in by_id.parents
    assert_same(load(by_id), model)
    seen = len(hub.asked)
    offline = {"HF_HUB_OFFLINE": "1"}
    names = ("org/name@v1", f"org/name@{commit(old | others)}", "org/name@v2")
    *same, refusal = found_each(ask(hub, home, FIND_EACH, *names, **offline))
    assert same == [str(by_id)] * 2
    assert "HF_HUB_OFFLINE is set" in refusal
    assert len(hub.asked) == seen
    assert found(ask("http://127.0.0.1:9", home, FIND, "org/name@v1")) == by_id  # no network: what is cached


def test_shards_pickles_and_names_without_an_owner(hub: Hub, model: Any, tmp_path: Path) -> None:
    save(model, tmp_path / "shards", max_shard_size="1MB")
    shards = files_of(tmp_path / "shards")
    assert len(shards) > 5
    torch.save(load_file(tmp_path / "model" / "model.safetensors"), tmp_path / "w.bin")
    pickle = {"config.json": shards["config.json"], "pytorch_model.bin": (tmp_path / "w.bin").read_bytes()}
    hub.repositories = {
        "org/shards": {"main": {**shards, "model.fp16.safetensors": b"x", "onnx/model.safetensors": b"x"}},
        "micro": {"main": pickle},
    }
    for name, files in (("org/shards", shards), ("micro", pickle)):
        hub.asked.clear()
        folder = found(ask(hub, tmp_path / "home", FIND, name))
        assert hub.files() == sorted({*files} - {"README.md"})
        assert_same(load(folder), model)
        assert found(ask(hub, tmp_path / "home", FIND, name, HF_HUB_OFFLINE="1")) == folder


def test_refusals_of_the_hub_are_one_line(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/name"] = {"main": {"config.json": b"{}"}}
    hub.gated.add("org/gated")
    home = tmp_path / "home"
    nothing, gated, revision = found_each(ask(hub, home, FIND_EACH, "org/nothing", "org/gated", "org/name@v9"))
    assert nothing.startswith("no folder org/nothing here, and the Hub has no such repository")
    assert "and the Hub requires a login" in gated
    assert "and the Hub does not have the revision 'v9'; check" in revision
    assert "and the Hub cannot be reached (LocalEntryNotFoundError)" in said(
        ask("http://127.0.0.1:9", tmp_path / "away", FIND, "org/name")
    )
    assert "model_type None is not supported" in said(ask(hub, home, LOAD, "org/name"))


def test_a_data_set_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    rows = {"train-00000-of-00002": "ab", "train-00001-of-00002": "cd", "validation-00000-of-00001": "ef"}
    files = {
        f"data/{name}.jsonl": "".join(json.dumps({"text": text * 3, "label": text}) + "\n" for text in texts).encode()
        for name, texts in rows.items()
    }
    hub.repositories["datasets/org/set"] = {"main": files | {"README.md": b"# A set", "scripts/make.py": b"x"}}
    home = tmp_path / "home"
    run = ask(hub, home, READ, "hub:org/set")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [["train", "valid"], ["aaa", "bbb", "ccc", "ddd"], ["eee", "fff"]]
    assert hub.files() == sorted(name.rpartition("/")[2] for name in files)
    offline = ask("http://127.0.0.1:9", home, READ, "hub:org/set", HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, run.stdout)
    assert said(ask(hub, home, READ, "hub:org/other")).startswith(
        "cannot get the data set org/other: the Hub has no such repository"
    )
    assert "does not have the revision 'v9'" in said(ask(hub, home, READ, "hub:org/set@v9"))


def test_names_and_revisions_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for name, revision, line in (
        ("org/name@v1", "v2", "org/name@v1 names a revision, and revision='v2' names another"),
        ("org/name@", None, "no folder org/name@ here; give"),
        ("a/b/c", None, "no folder a/b/c here; give"),
        (str(tmp_path / "here"), "v1", "revision is 'v1', but .*here is a local folder; leave it out"),
    ):
        with pytest.raises(heedful.HeedfulError, match=line):
            load(name, revision=revision)


def test_a_folder_with_a_name_like_a_revision(model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").rename(tmp_path / "model@v1")
    monkeypatch.chdir(tmp_path)
    assert_same(load("model@v1"), model)


# ------------------------------------------------------------------------------------------------------------ pushing


def uploaded(hub: Hub) -> tuple[str, Files]:
    path, lines = next((path, lines) for path, lines in hub.sent if "/commit/" in path)
    return path, {
        line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
    }


@pytest.mark.parametrize("revision", [None, "v1"])
def test_a_model_is_pushed(revision: str | None, hub: Hub, model: Any, tmp_path: Path) -> None:
    arguments = ["org/name", *([revision] if revision else [])]
    run = ask(hub, tmp_path / "home", PUSH, *arguments, HF_TOKEN="hf_right")
    assert run.stdout.strip() == f"{hub.address}/org/name", run.stderr
    create = next(asked for path, asked in hub.sent if path == "/api/repos/create")
    assert (create["organization"], create["name"]) == ("org", "name")
    assert create.get("private") or create.get("visibility") == "private"
    path, files = uploaded(hub)
    assert path == f"/api/models/org/name/commit/{revision or 'main'}"
    assert any(path == "/api/models/org/name/branch/v1" for path, _ in hub.sent) == (revision is not None)
    assert sorted(files) == ["README.md", "config.json", "generation_config.json", "heedful.json", "model.safetensors"]
    card = files["README.md"].decode()
    assert 'heedful.from_pretrained("org/name")' in card  # the code loads it from the Hub
    assert str(tmp_path) not in card
    folder = tmp_path / "back"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    assert_same(load(folder), model)


def test_a_folder_is_pushed_without_other_files(hub: Hub, model: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    extra = read_card(folder) | {"files": ["ranks.txt", "../outside.txt", "lost.txt", 7]}
    (folder / "heedful.json").write_text(json.dumps(extra))  # of a task of one's own, which saves ranks.txt
    for inner in ("last", "1_Pooling", "member-0"):  # the last is of an ensemble before it, which no model reads
        (folder / inner).mkdir()
    model_files = ("tokenizer.json", "spiece.model", "chat_template.jinja", "1_Pooling/config.json", "modules.json")
    others = ("last/config.json", "member-0/config.json", "checkpoint.pt", "run.toml", "metrics.jsonl", ".x")
    strangers = ("train.txt", "notes.md", "predictions.json", "my.model", "../outside.txt")
    for name in (*model_files, "LICENSE", "NOTICE.txt", "ranks.txt", *others, *strangers):
        (folder / name).write_text("{}")
    code = "import sys; from heedful.pretrained import push; print(push(*sys.argv[1:]))"
    run = ask(hub, tmp_path / "home", code, str(folder), "name", HF_TOKEN="hf_right")
    assert run.stdout.strip() == f"{hub.address}/me/name", run.stderr
    _, files = uploaded(hub)
    saved = {"README.md", "config.json", "generation_config.json", "heedful.json", "model.safetensors"}
    assert files.keys() == {*saved, *model_files, "LICENSE", "NOTICE.txt", "ranks.txt"}


def test_a_persons_own_card_is_uploaded_as_it_is(hub: Hub, model: Any, tmp_path: Path) -> None:
    (tmp_path / "model" / "README.md").write_text("# Mine\n")
    code = "import sys; from heedful.pretrained import push; print(push(*sys.argv[1:]))"
    run = ask(hub, tmp_path / "home", code, str(tmp_path / "model"), "org/name", HF_TOKEN="hf_right")
    assert run.returncode == 0, run.stderr
    assert uploaded(hub)[1]["README.md"] == b"# Mine\n"


def test_local_paths_are_not_uploaded(hub: Hub, model: Any, tmp_path: Path) -> None:
    train = [str(tmp_path / "secret" / "fr.tsv"), "in/here.tsv", "dates:1000"]
    start, verified = str(tmp_path / "base"), {"model": str(tmp_path / "model"), "checks": [{"name": "logits"}]}
    settings = {"train": train, "valid": None, "out": "runs/mine", "preset": "vit-b/16", "model": {"dropout": 0.1}}
    card = {"task": "translation", "data": {"train": train, "examples": 3}, "verification": verified}
    save(model, tmp_path / "model", extra={**card, "settings": {**settings, "start_from": start}})
    before = (tmp_path / "model" / "heedful.json").read_text()
    code = "import sys; from heedful.pretrained import push; print(push(*sys.argv[1:]))"
    run = ask(hub, tmp_path / "home", code, str(tmp_path / "model"), "name", HF_TOKEN="hf_right")
    assert run.stdout.strip() == f"{hub.address}/me/name", run.stderr
    _, files = uploaded(hub)
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    sent, named = json.loads(files["heedful.json"]), ["fr.tsv", "here.tsv", "dates:1000"]
    assert sent["settings"] == {**settings, "train": named, "out": "mine", "start_from": "base"}
    assert sent["data"] == {"train": named, "examples": 3}
    assert sent["verification"] == {**verified, "model": "model"}
    assert (tmp_path / "model" / "heedful.json").read_text() == before  # here it says all


def test_a_folder_without_a_model_is_not_pushed(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(heedful.HeedfulError, match=r"is not a model folder: config\.json is missing"):
            push(folder, "org/name")


@pytest.mark.full
def test_wrong_uploads_are_errors_of_one_line(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert (
        said(ask(hub, home, PUSH, "org/name"))
        == "cannot upload org/name to the Hub: you are not logged in; run hf auth login"
    )
    right = {"HF_TOKEN": "hf_right"}
    assert "cannot upload org/taken to the Hub: the Hub refuses it (" in said(
        ask(hub, home, PUSH, "org/taken", **right)
    )
    assert "is not a valid model name; use 'org/name'" in said(ask(hub, home, PUSH, "a/b/c", **right))
    assert "HF_HUB_OFFLINE is set; unset it" in said(ask(hub, home, PUSH, "a/b", HF_HUB_OFFLINE="1", **right))
    assert "the Hub cannot be reached (ConnectError); try" in said(
        ask("http://127.0.0.1:9", home, PUSH, "a/b", **right)
    )
    assert not [path for path, _ in hub.sent if "/commit/" in path]


# --------------------------------------------------------------------------------------------- at the end of a training


TRAIN = "import sys; from heedful import cli; sys.exit(cli.main(sys.argv[1:]))"
TRAIN_IN_PYTHON = """
import sys, heedful
run = heedful.train(
    "text-classification", [{"text": f"one {w} {n}", "label": w} for w in ("fig", "saw") for n in range(10)],
    out=sys.argv[1], push=sys.argv[2], max_steps=2, preset="bert-tiny",
    model_settings={"dim": 16, "heads": 2, "depth": 1}, training={"evaluate_every": 2},
)
print(run.metrics["accuracy"])
"""
IGNORED = ("checkpoint.pt", "run.toml", "metrics.jsonl", "curve.svg", "trained_on.bin")


def arguments(folder: Path, name: str) -> list[str]:
    """Arguments of a run of two small steps that is uploaded."""
    lines = [f"one {word} {n}\t{word}" for word in ("fig", "saw") for n in range(10)]
    (folder / "set.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    small = [
        "--preset=bert-tiny",
        "--model.dim=16",
        "--model.heads=2",
        "--model.depth=1",
        "--training.evaluate-every=2",
    ]
    command = ["train", "text-classification", "--train", str(folder / "set.tsv"), "--max-steps=2", *small]
    return [*command, "--out", str(folder / "run"), "--push", name]


def test_a_run_is_uploaded_at_its_end(hub: Hub, tmp_path: Path) -> None:
    home, right = tmp_path / "home", {"HF_TOKEN": "hf_right"}
    run = ask(hub, home, TRAIN, *arguments(tmp_path, "org/name"), **right)
    assert run.returncode == 0, run.stderr
    assert f"hub: {hub.address}/org/name" in run.stdout.splitlines()
    _, files = uploaded(hub)
    assert {"README.md", "config.json", "heedful.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert not files.keys() & set(IGNORED)
    assert 'heedful.pipeline("text-classification", "org/name")' in files["README.md"].decode()
    assert json.loads(files["heedful.json"])["metrics"].keys() >= {"accuracy"}  # of the run that has ended
    assert json.loads(files["heedful.json"])["verdict"]["text"]
    assert 'push = "org/name"' in (tmp_path / "run" / "run.toml").read_text()

    hub.sent.clear()
    again = ["train", "text-classification", "--train", str(tmp_path / "set.tsv"), "--out", str(tmp_path / "run")]
    run = ask(hub, home, TRAIN, *again, "--resume", "--json", **right)  # the name is one of the run's settings
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["hub"] == f"{hub.address}/org/name"
    assert uploaded(hub)[1].keys() == files.keys()


@pytest.mark.parametrize(
    ("name", "environment", "message"),
    [
        ("a/b/c", {"HF_TOKEN": "hf_right"}, "--push 'a/b/c' is not a valid model name; use 'org/name'"),
        ("org/name", {}, "--push org/name uploads to the Hub, but you are not logged in; run hf auth login"),
        ("org/name", {"HF_TOKEN": "hf_right", "HF_HUB_OFFLINE": "1"}, "but HF_HUB_OFFLINE is set; unset it"),
    ],
)
def test_an_upload_that_cannot_be_is_refused_before_the_run(
    name: str, environment: dict[str, str], message: str, hub: Hub, tmp_path: Path
) -> None:
    run = ask(hub, tmp_path / "home", TRAIN, *arguments(tmp_path, name), **environment)
    assert run.returncode == 2
    assert run.stderr.splitlines()[-1].startswith("heedful: ")
    assert message in run.stderr.splitlines()[-1]
    assert "data       " not in run.stderr  # the first line of a run
    assert not (tmp_path / "run").exists()
    assert (hub.asked, hub.sent) == ([], [])


def test_a_run_stays_whole_where_the_upload_fails(hub: Hub, tmp_path: Path) -> None:
    home, right, folder = tmp_path / "home", {"HF_TOKEN": "hf_right"}, tmp_path / "run"
    run = ask(hub, home, TRAIN, *arguments(tmp_path, "org/taken"), **right)
    assert run.returncode == 2
    message = run.stderr.splitlines()[-1]
    assert message.startswith("heedful: cannot upload org/taken to the Hub: the Hub refuses it (")
    assert "accuracy" in run.stdout  # the result of the run comes first
    assert type(load(folder)) is heedful.models.Encoder
    assert json.loads((folder / "heedful.json").read_text())["verdict"]["text"]
    command = message.partition("is complete, upload it with: ")[2]
    assert shlex.split(command) == ["heedful", "push", str(folder), "org/taken"]
    run = ask(hub, home, TRAIN, "push", str(folder), "org/name", **right)  # as if the person had changed the name
    assert (run.returncode, run.stdout) == (0, f"{hub.address}/org/name\n"), run.stderr
    assert "model.safetensors" in uploaded(hub)[1]
    run = ask(hub, home, TRAIN, "push", str(folder), "org/name")
    assert (run.returncode, run.stderr.splitlines()[-1]) == (
        2,
        "heedful: push org/name uploads to the Hub, but you are not logged in; run hf auth login",
    )


def test_a_run_from_python_is_uploaded(hub: Hub, tmp_path: Path) -> None:
    home, right, folder = tmp_path / "home", {"HF_TOKEN": "hf_right"}, tmp_path / "run"
    run = ask(hub, home, TRAIN_IN_PYTHON, str(folder), "org/name")
    assert said(run) == "push org/name uploads to the Hub, but you are not logged in; run hf auth login"
    assert not folder.exists()
    run = ask(hub, home, TRAIN_IN_PYTHON, str(folder), "org/taken", **right)
    assert said(run).startswith("cannot upload org/taken to the Hub: the Hub refuses it (")
    assert type(load(folder)) is heedful.models.Encoder
    run = ask(hub, home, TRAIN_IN_PYTHON, str(tmp_path / "second"), "org/name", **right)
    assert run.returncode == 0, run.stderr
    assert f"hub: {hub.address}/org/name" in run.stdout + run.stderr
    assert "model.safetensors" in uploaded(hub)[1]


def test_of_several_processes_the_first_uploads(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.address, "NO_PROXY": "127.0.0.1"}
    for name, value in {**values, "HF_TOKEN": "hf_right"}.items():
        monkeypatch.setenv(name, value)
    ended = fresh_process.run_ranks(2, "-m", "heedful", *arguments(tmp_path, "org/name"))
    assert [run.returncode for run in ended] == [0, 0], ended
    assert [f"hub: {hub.address}/org/name" in run.stdout for run in ended] == [True, False]
    assert len([path for path, _ in hub.sent if "/commit/" in path]) == 1


@pytest.mark.parametrize("command", [["train"], ["verify", "resume"]])
def test_what_trains_no_model_uploads_none(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (_, *more) = arguments(tmp_path, "org/name")
    more += ["--lr-range-test"] if command == ["train"] else ["--kills=1"]
    assert cli.main([*command, *more]) == 2
    assert "leave --push out" in capsys.readouterr().err
