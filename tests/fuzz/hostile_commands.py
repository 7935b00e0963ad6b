"""Command lines with options of hostile values, in wrong combinations, on missing and damaged files."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, get_args

from hostile_data import _picture, _rows
from hostile_folders import TASKS, WRITERS, base
from hostile_values import altered, broken_text, damaged, hostile, sentence, shown
from sandbox import Case, Fault

from heedful import cli, presets, recipes
from heedful.errors import MAX_LENGTH, HeedfulError

SMALL = ["--model.dim=16", "--model.heads=2", "--model.depth=1", "--data.max-length=32", "--tokenizer.size=300"]
SMALL += ["--max-steps=1", "--device=cpu"]
COMMANDS = ("train", "train", "train", "predict", "predict", "evaluate", "audit", "compare", "nearest", "inspect")
COMMANDS += ("summary", "verify", "export", "watch", "presets", "tasks", "recipes", "demo", "resume", "config", "none")
NO_FILES = ("train", "audit", "watch", "presets", "tasks", "recipes", "demo", "none")
DATA = ("train", "predict", "evaluate", "audit", "compare", "nearest")
LONG_WORK = ("--max-steps", "--max-epochs", "--max-minutes", "--lr-range-test")  # right values of these take their time
LEFT_OUT = ("--open", "--help", "--version", "--out", "--json", "--port", "--no-open", "--save", *LONG_WORK)
OUTS = ["", " ", ".", "run", "a/b/c", "\udcff", "x\ny", "x" * 300, "/dev/null/x", "/dev/full", "/proc/nothing/x", "-x"]
OUTS += ["run.onnx", "run.html", "run.jsonl", "é", "~nobody/x", "/proc/self/x", "run.zip"]
WRONG = [
    "",
    " ",
    "-1",
    "0",
    "1",
    "2",
    "0.5",
    "1.5",
    "-0.5",
    "1e308",
    "1e999",
    "nan",
    "inf",
    "-inf",
    "1_0",
    "٣",
    "x",
    "true",
]
WRONG += [
    "false",
    "None",
    "1" + "0" * 30,
    "99999999999",
    "1e-320",
    "\udcff",
    "a,b",
    "[]",
    "{}",
    "\n",
    "a=b",
    "-",
    "--",
    "=",
    "é",
]
WRONG += ["x" * 3000, "1 2", "0x10", "bert-tiny", "cpu", "float32", "none", "auto"]
AMOUNTS = ["0", "1", "-1", "2", "3", "8", "17", "1000000", "1" + "0" * 12, "1" + "0" * 30, "-5"]
DEVICES = ["cpu", "cuda", "cuda:99", "meta", "mps", "xpu", "cpu:9", "", "gpu", "tpu", "CPU", "vulkan"]


def prepare(root: Path) -> None:
    """Makes the models, a file of examples for each task, and a run."""
    for task in TASKS:
        base(root, task)
        rows = _rows(Random(task), task, 24)
        if task == "image-classification":
            continue
        if task == "image-to-text":
            (root / "a.png").write_bytes(_picture("PNG"))
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (root / f"{task}.jsonl").write_text(text)
    command = ["train", "text-classification", "--train", str(root / "text-classification.jsonl"), "--preset=bert-tiny"]
    cli.main([*command, *SMALL, "--out", str(root / "run"), "--json", "--max-steps=2", "--training.save-every=1"])


def case(random: Random, root: Path, folder: Path) -> Case:
    """A command line, and what runs it."""
    command = random.choice(COMMANDS)
    tokens, note = _tokens(random, command, root, folder)
    what = " ".join(shown(token)[:90] if not token.isascii() or " " in token else token[:60] for token in tokens)
    return f"{note}{what}", lambda: run(tokens, folder)


def run(tokens: list[str], folder: Path) -> str:
    """Runs a command line as the process would and judges its status and what it printed."""
    os.chdir(folder / "out")
    printed, said = folder / "tmp" / "printed", folder / "tmp" / "errors"
    for number, path in ((1, printed), (2, said)):
        file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
    try:
        status: Any = cli.main(tokens)
    except SystemExit as end:
        status = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    return judged(status or 0, printed.read_bytes(), said.read_bytes(), tokens)


def judged(status: int, printed: bytes, said: bytes, tokens: list[str]) -> str:
    """Returns the outcome of a command in a word. Raises ``HeedfulError`` for one line, else ``Fault``."""
    errors = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    last = errors[-1] if errors else ""
    if "Traceback" in said.decode(errors="replace") or "a bug in heedful" in last:
        where = [line.strip() for line in errors if line.strip().startswith("File ")]
        raise Fault(f"status {status}: {last[:200]} {where[-1] if where else ''}")
    allowed = (0, 1, 2) if tokens[:1] in (["verify"], ["audit"]) else (0, 2)
    if status not in allowed:
        raise Fault(f"status {status}: {last[:200]}")
    if status == 2:
        if not last.startswith("heedful: "):
            raise Fault(f"status 2 without a word of why: {last[:200]}")
        if len(last) > MAX_LENGTH + len("heedful: "):
            raise Fault(f"a message of {len(last)} characters: {last[:100]}")
        raise HeedfulError(last)
    if "--json" in tokens and not {"--help", "-h", "--version"} & set(tokens):
        for line in printed.decode().splitlines():
            try:
                json.loads(line, parse_constant=_no_number)
            except ValueError as error:
                raise Fault(f"--json prints {line[:80]!r} ({error})") from None
    return "done"


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@cache
def options(command: str) -> tuple[tuple[str, Any], ...]:
    """The names and types of a command's options."""
    if command not in cli.app:
        return ()
    arguments = cli.app[command].assemble_argument_collection()
    found = [(one.name, one.hint) for one in arguments if one.name.startswith("--") and one.parse]
    return tuple(
        (name, hint) for name, hint in found if name not in LEFT_OUT and not hasattr(hint, "__dataclass_fields__")
    )


def _tokens(random: Random, command: str, root: Path, folder: Path) -> tuple[list[str], str]:
    task, note = random.choice(TASKS), ""
    data = "builtin:digits" if task == "image-classification" else str(root / f"{task}.jsonl")
    limit = ["--data.limit=40"] if task == "image-classification" and command in ("train", "audit") else []
    model = str(root / task)
    text = "the <mask> is a tool" if task == "fill-mask" else sentence(random)
    small = [*SMALL, *([] if task in WRITERS else ["--preset=bert-tiny"])]
    if task == "image-classification":
        small = ["--preset=vit-micro", "--max-steps=1", "--device=cpu"]
    if command not in NO_FILES and random.random() < 0.15:
        model, note = _damaged_folder(random, root / task, folder)
    if command in DATA and random.random() < 0.15:
        data, note = _damaged_file(random, data, folder)
    tokens = {
        "train": ["train", task, "--train", data, *limit, *small, "--out=run"],
        "predict": [
            "predict",
            model,
            *random.choice([[text], [text, text], ["--in", data], ["--in", data, "--out=a.jsonl"]]),
        ],
        "evaluate": ["evaluate", model, "--data", data],
        "audit": ["audit", task, "--train", data, *limit],
        "compare": ["compare", model, str(root / random.choice(TASKS)), "--data", data],
        "nearest": ["nearest", str(root / "feature-extraction"), text, "--among", data],
        "inspect": ["inspect", model, text, f"--out=look{random.choice(['.html', '.svg', '.png', '.pdf', '.x', ''])}"],
        "summary": ["summary", random.choice([model, random.choice(presets.names())])],
        "verify": ["verify", model],
        "export": ["export", model, "--to", random.choice(["hf", "hf", "HF", "gguf", ""]), "--out=exported"],
        "watch": ["watch", str(root), "--json"],
        "presets": ["presets"],
        "tasks": ["tasks"],
        "recipes": ["recipes"],
        "demo": [
            "demo",
            random.choice(["dat", "", "dates", "--all"]),
            "--to",
            random.choice(["xx", "", "\udcff", "e n"]),
        ],
        "none": [
            random.choice(["", "-", "--", "trian", "--json", "-h", "--version", "\udcff", "help", "train=x", "@x"])
        ],
    }
    if command in ("resume", "config"):
        made, note = _run(random, command, root, folder)
        return made, note
    made = tokens[command]
    known = options(command)
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        if known:
            made += _option(random, *random.choice(known))
    if random.random() < 0.25:
        made += [f"--out={random.choice(OUTS)}"]
    if random.random() < 0.3:
        made += ["--json"]
    if random.random() < 0.1 and command == "train":
        made += [f"{random.choice(LONG_WORK[:3])}={random.choice(['0', '-1', 'nan', 'x', '', '1_0', '-inf', '1e-9'])}"]
    if random.random() < 0.12:
        del made[random.randrange(len(made))]
    if random.random() < 0.1:
        made.insert(
            random.randrange(len(made) + 1), random.choice([*WRONG, "--", "--x", "-x", "--data.x=1", "--json=3"])
        )
    if command == "train" and not any(token.startswith("--max-steps") for token in made):
        made += ["--max-steps=1"]
    if made[:1] == ["watch"]:
        made += ["--json"]  # the page would be shown without end
    return made, note + (": " if note else "")


def _option(random: Random, name: str, hint: Any) -> list[str]:
    """An option with a value: of its type, near it, or of another."""
    if name == "--device":
        return [f"--device={random.choice(DEVICES)}"]
    if hint is bool and random.random() < 0.7:
        return [name]
    number = int in (hint, *get_args(hint)) or float in (hint, *get_args(hint))
    value = random.choice(AMOUNTS if number and random.random() < 0.8 else WRONG)
    if "Literal" in str(hint) and random.random() < 0.6:
        words = str(hint).replace("'", '"').split('"')[1::2]
        value = random.choice(words or WRONG)
    elif name in ("--recipe",):
        value = random.choice([*recipes.names(), "x"])
    return [f"{name}={value}"] if random.random() < 0.8 else [name, value]


def _damaged_folder(random: Random, model: Path, folder: Path) -> tuple[str, str]:
    made = folder / "model"
    shutil.copytree(model, made)
    path = random.choice(sorted(path for path in made.iterdir() if path.is_file()))
    how, content = damaged(random, path.read_bytes())
    path.write_bytes(content)
    return str(made), f"({path.name} {how}) "


def _damaged_file(random: Random, data: str, folder: Path) -> tuple[str, str]:
    path = folder / "set.jsonl"
    if random.random() < 0.3:
        return random.choice(["", "nowhere.tsv", "builtin:x", ".", "/dev/zero", "-"]), ""
    how, content = damaged(random, Path(data).read_bytes() if Path(data).is_file() else b"x\ty\n")
    path.write_bytes(content)
    return str(path), f"(data {how}) "


def _run(random: Random, command: str, root: Path, folder: Path) -> tuple[list[str], str]:
    """A run that is resumed from a damaged folder, or begun with a damaged ``--config``."""
    run = folder / "out" / "run"
    tokens = [
        "train",
        "text-classification",
        "--train",
        str(root / "text-classification.jsonl"),
        "--preset=bert-tiny",
        *SMALL,
    ]
    if command == "config":
        text = (root / "run" / "run.toml").read_text()
        path = folder / "given.toml"
        how, content = _toml(random, text)
        path.write_bytes(content)
        return ["train", "--config", str(path), "--out=other", "--max-steps=1"], f"(given.toml {how}) "
    shutil.copytree(root / "run", run)
    path = random.choice(sorted(path for path in run.rglob("*") if path.is_file()))
    how, content = _toml(random, path.read_text()) if path.suffix == ".toml" else damaged(random, path.read_bytes())
    if path.suffix == ".json" and random.random() < 0.5:
        how, content = broken_text(random, path.read_text())
    path.write_bytes(content)
    return [*tokens, "--max-steps=3", "--out=run", "--resume"], f"({path.relative_to(run)} {how}) "


def _toml(random: Random, text: str) -> tuple[str, bytes]:
    lines = text.splitlines()
    at = random.randrange(max(1, len(lines)))
    ways: dict[str, Callable[[], bytes]] = {
        "deep": lambda: b"a = " + b"[" * 900,
        "very deep": lambda: b"a = " + b"[" * 100_000,
        "deep keys": lambda: b".".join([b"a"] * 2000) + b" = 1",
        "empty": lambda: b"",
        "a line left out": lambda: "\n".join(lines[:at] + lines[at + 1 :]).encode(),
        "a line twice": lambda: "\n".join([*lines[: at + 1], *lines[at:]]).encode(),
        "a value": lambda: "\n".join([*lines[:at], _assigned(random, lines[at]), *lines[at + 1 :]]).encode(
            errors="replace"
        ),
        "a table for a value": lambda: b"task = {a = 1}\n" + text.encode(),
        "400 digits": lambda: b"seed = 1" + b"0" * 400 + b"\n" + text.encode(),
        "5,000 digits": lambda: b"seed = 1" + b"0" * 5000 + b"\n" + text.encode(),
        "no TOML": lambda: json.dumps(hostile(random)).encode(),
        "not UTF-8": lambda: text.encode() + b"\xff",
    }
    how = random.choice(sorted(ways))
    return how, ways[how]()


def _assigned(random: Random, line: str) -> str:
    name, equals, _ = line.partition("=")
    if not equals:
        return "[x]"
    value = altered(random, 1) if random.random() < 0.5 else hostile(random)
    return f"{name}= {json.dumps(value)}"
