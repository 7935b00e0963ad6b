"""Compares this tree with the commit BASE on one machine: python tests/same_as_base.py [--tolerance 1e-5] [PART ...]

Both trees run the same short programs, each in its own process: logits of every preset family, greedy, beam and sampled
texts, a short training run of every task with the hashes of its weights, and the ``--json`` output of the commands that
use the trained folder. Moved code must be equal to the bit (the default); kernels may differ by ``--tolerance``.

It takes about a minute on two cores, exits with status 1 where something differs, and is removed together with the
restructuring that it guards. The programs use public names only, so that they run on both trees.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BASE = "8f9bfc5"  # the last commit before the restructuring

FRUIT = ["apple", "pear", "plum", "quince", "fig", "grape"]
TOOLS = ["hammer", "saw", "chisel", "drill", "pliers", "file"]
SMALL = [
    "--model.dim=16",
    "--model.heads=2",
    "--model.depth=1",
    "--training.log-every=1",
    "--training.evaluate-every=2",
]
SMALL += ["--training.schedule=constant", "--training.warmup=1", "--max-steps=6"]

# what differs between two runs of one tree: times, speeds, memory, versions and paths
UNEQUAL = re.compile(r"second|time|_per_|share_of_ceiling|version|memory|created|peak|path|digest_of_code|^kernels$")


# ------------------------------------------------------------------------------------------------------------- programs


def presets() -> Iterator[tuple[str, Any]]:
    """Logits and gradients of a small model of each preset; hidden states; padding on either side."""
    import torch

    import heedful

    for name in SMALL_PRESETS:
        model = heedful.create(name, seed=3)
        vocabulary = 60
        random = torch.Generator().manual_seed(5)
        ids = torch.randint(5, vocabulary, (2, 12), generator=random)
        mask = torch.ones(2, 12, dtype=torch.bool)
        mask[1, 9:] = False
        kind = type(model).__name__
        pixels = None
        if kind == "VisionTransformer":
            pixels = torch.rand(2, 1, 28, 28, generator=random)
        for mode in ("eval", "train"):
            getattr(model, mode)()
            torch.manual_seed(7)
            model.zero_grad()
            if pixels is not None:
                out = model(pixels)
            elif kind == "EncoderDecoder":
                out = model(ids, ids[:, :7], source_mask=mask)
            else:
                out = model(ids, mask=mask)
            yield f"{name} {mode} logits", out.detach().clone()
            out.float().square().mean().backward()
            first = next(p for p in model.parameters() if p.grad is not None)
            yield f"{name} {mode} gradient", first.grad.clone()
        model.eval()
        if pixels is None and kind != "EncoderDecoder":
            yield f"{name} left-padded", model(ids, mask=mask.flip(1)).detach()
        if kind in ("Decoder", "EncoderDecoder"):
            for options in (
                {},
                {"num_beams": 3},
                {"do_sample": True, "top_k": 9, "seed": 4},
                {"no_repeat_ngram_size": 2},
            ):
                made = model.generate(ids, mask=mask, max_new_tokens=12, **options)
                yield f"{name} generate {options}", made
        fast = optimised(heedful.create(name, seed=3).eval())
        with torch.inference_mode():
            if pixels is not None:
                yield f"{name} inference mode", fast(pixels).clone()
            elif kind != "EncoderDecoder":
                yield f"{name} inference mode", fast(ids, mask=mask).clone()


def optimised(model: Any) -> Any:
    """The model optimised for inference, by whichever room of the tree does so."""
    for room in ("heedful.kernels", "heedful.inference"):
        with contextlib.suppress(ImportError):
            for name in ("optimize", "prepare"):
                if callable(optimize := getattr(importlib.import_module(room), name, None)):
                    return optimize(model)
    raise AssertionError("neither heedful.kernels nor heedful.inference optimises a model")


SMALL_PRESETS = ("transformer-tiny", "gpt-micro", "stories260k", "bert-tiny", "vit-micro")


def tasks() -> Iterator[tuple[str, Any]]:
    """A short run of each task with its outputs, and the commands that use its folder."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, more, inputs) in MADE.items():
            data = str(make(Path(folder)))
            out = str(Path(folder, name))
            yield from command(name, "train", name, "--train", data, "--out", out, *SMALL, *more)
            for kept in ("", "last"):
                yield f"{name} weights {kept}", weights(Path(out, kept))
            lines = [json.loads(line) for line in Path(out, "metrics.jsonl").read_text("utf-8").splitlines()]
            yield f"{name} metrics.jsonl", clean(lines)
            yield f"{name} config.json", json.loads(Path(out, "config.json").read_text("utf-8"))
            yield from command(name, "evaluate", out, "--data", data, "--baseline")
            yield from command(name, "audit", name, "--train", data)
            yield from command(name, "verify", out)
            if inputs:
                yield from command(name, "predict", out, *inputs)
            if name in ("translation", "text-generation"):
                for options in (["--num-beams=3"], ["--do-sample", "--seed=3", "--top-k=5"]):
                    yield from command(name, "predict", out, *inputs[:1], *options)
            if name == "translation":
                half = ["--max-steps=3", "--overwrite"]
                again = ["train", name, "--train", data, "--out", out + "2", *SMALL, *more]
                yield from command("stopped", *again, *half)
                yield from command("resumed", *again[: -len(more)], *more, "--resume")
                yield "resumed weights", weights(Path(out + "2", "last"))
                extra = [*SMALL, *more, "--training.optimiser=muon", "--training.precision=bf16", "--model.dropout=0.1"]
                yield from command("muon", "train", name, "--train", data, "--out", out + "3", *extra)
                yield "muon weights", weights(Path(out + "3", "last"))
                page = Path(folder, "page.html")
                yield from command(name, "inspect", out, inputs[0], "--out", str(page))
                yield f"{name} inspect page", hashlib.sha256(page.read_bytes()).hexdigest()
            if name == "text-classification":
                tuned = ["train", name, "--train", data, "--from", out, "--out", out + "-tuned", "--max-steps=4"]
                yield from command("fine-tuned", *tuned, "--lora.rank=2", "--training.evaluate-every=2")
                yield "adapter weights", weights(Path(out + "-tuned", "last"))


def lists() -> Iterator[tuple[str, Any]]:
    """What the commands list, and summaries without weights."""
    for words in (
        ["tasks"],
        ["presets"],
        ["recipes"],
        ["summary", "gpt2"],
        ["summary", "bert-base"],
        ["summary", "t5-small"],
    ):
        yield from command(" ".join(words), *words)
    yield from command("summary vit", "summary", "vit-b/16")


PROGRAMS: dict[str, Callable[[], Iterator[tuple[str, Any]]]] = {"lists": lists, "presets": presets, "tasks": tasks}


def command(title: str, *tokens: str) -> Iterator[tuple[str, Any]]:
    """The exit status and the ``--json`` output of a command run in this process."""
    from heedful import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main([*tokens, "--json"])
    if status:
        print(f"\n{' '.join(tokens)}: {err.getvalue()}", file=sys.__stderr__, flush=True)
    options = " ".join(token for token in tokens[1:] if token.startswith("--"))
    title = f"{title}: {tokens[0]} {options}".strip()
    yield f"{title} status", (status, None if status == 0 else err.getvalue())
    values = []
    for line in out.getvalue().splitlines() or []:
        with contextlib.suppress(json.JSONDecodeError):
            values.append(json.loads(line))
    if not values:
        with contextlib.suppress(json.JSONDecodeError):
            values = [json.loads(out.getvalue())]
    yield f"{title} output", clean(values)


def clean(value: Any) -> Any:
    """Values without times, speeds, memory, versions and temporary paths."""
    if isinstance(value, dict):
        return {key: clean(item) for key, item in value.items() if not UNEQUAL.search(str(key))}
    if isinstance(value, list):
        return [clean(item) for item in value]
    if isinstance(value, str):
        value = re.sub(re.escape(tempfile.gettempdir()) + r"/[\w-]+", "TEMP", value)
        return re.sub(r"\d+(\.\d+)? s\b", "N s", value)
    return value


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    files = sorted([*folder.glob("model*.safetensors"), *folder.glob("adapter*.safetensors")])
    assert files, f"no weights in {folder}"
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}


# ----------------------------------------------------------------------------------------------------------------- data


def table(folder: Path, name: str, header: str, lines: list[str]) -> Path:
    file = folder / f"{name}.tsv"
    file.write_text("\n".join([header.replace(" ", "\t"), *lines]) + "\n", encoding="utf-8")
    return file


def pairs(header: str) -> Callable[[Path], Path]:
    lines = [f"the {a} and a {b}\t{b} {a}" for a in FRUIT for b in TOOLS]
    return lambda folder: table(folder, header.replace(" ", "-"), header, lines)


def labels(folder: Path) -> Path:
    sets = {"fruit": FRUIT, "tool": TOOLS}
    lines = [f"one {word} {n}\t{label}" for label, words in sets.items() for word in words for n in range(4)]
    return table(folder, "labels", "text label", lines)


def plain(folder: Path) -> Path:
    file = folder / "book.txt"
    file.write_text("".join(f"the {a} fell on the {b} .\n" for a in FRUIT for b in TOOLS), encoding="utf-8")
    return file


def tags(folder: Path) -> Path:
    file = folder / "set.conll"
    sentences = [f"take\tO\nthe\tO\n{a}\tB-fruit\n{a}\tI-fruit\nor\tO\n{b}\tB-tool\n" for a in FRUIT for b in TOOLS]
    file.write_text("\n".join(sentences), encoding="utf-8")
    return file


def questions(folder: Path) -> Path:
    paragraphs = []
    for number, (a, b) in enumerate((a, b) for a in FRUIT for b in TOOLS):
        context = f"The {a} lies in the box. The {b} hangs on the wall."
        answers = {"What hangs?": (b, context.index(b)), "What lies?": (a, 4)}
        qas = [
            {"id": f"{number}{n}", "question": q, "answers": [{"text": text, "answer_start": start}]}
            for n, (q, (text, start)) in enumerate(answers.items())
        ]
        paragraphs.append({"context": context, "qas": qas})
    file = folder / "set.json"
    file.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")
    return file


TINY = ["--preset=bert-tiny", "--tokenizer.size=200"]
MADE: dict[str, tuple[Callable[[Path], Any], list[str], list[str]]] = {
    "translation": (pairs("source target"), ["--tokenizer.size=300"], ["the fig", "a saw"]),
    "summarization": (pairs("text summary"), ["--tokenizer.size=300"], ["the fig", "a saw"]),
    "text-generation": (plain, ["--data.max-length=16"], ["the fig", "the saw fell"]),
    "text-classification": (labels, TINY, ["one fig 1", "one saw"]),
    "token-classification": (tags, TINY, ["take the fig", "or the saw"]),
    "question-answering": (questions, TINY, ["What hangs?\tThe saw hangs."]),
    "fill-mask": (plain, ["--preset=bert-tiny", "--tokenizer.size=300", "--data.max-length=16"], ["the <mask> fell"]),
    "feature-extraction": (pairs("text text_pair"), TINY, ["fig", "a saw"]),
    "image-classification": (lambda folder: "builtin:digits", ["--data.limit=60"], []),
}


# ----------------------------------------------------------------------------------------------------------- comparison


def record(file: str, parts: list[str]) -> None:
    """Run the programs with the package that this process finds, and write their values to ``file``."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for part in parts:
        for name, value in PROGRAMS[part]():
            while name in found:
                name += " again"
            found[name] = value
            print(".", end="", file=sys.__stderr__, flush=True)
    Path(file).write_bytes(pickle.dumps(found))


def differences(name: str, base: Any, head: Any, tolerance: float) -> Iterator[str]:
    """Where two values differ, a line each."""
    import torch

    if isinstance(base, torch.Tensor) and isinstance(head, torch.Tensor):
        if base.shape != head.shape or base.dtype != head.dtype:
            yield f"{name}: {tuple(base.shape)} {base.dtype}, now {tuple(head.shape)} {head.dtype}"
        elif not torch.equal(base, head):
            far = float((base.double() - head.double()).abs().max())
            if not far <= tolerance:
                yield f"{name}: {far:.3g} apart"
    elif isinstance(base, dict) and isinstance(head, dict):
        for key in sorted({*base, *head}, key=str):
            if key not in base or key not in head:
                yield f"{name}.{key}: only in {'base' if key in base else 'head'}"
            else:
                yield from differences(f"{name}.{key}", base[key], head[key], tolerance)
    elif isinstance(base, list | tuple) and isinstance(head, list | tuple) and len(base) == len(head):
        for number, (one, other) in enumerate(zip(base, head, strict=True)):
            yield from differences(f"{name}[{number}]", one, other, tolerance)
    elif isinstance(base, float) and isinstance(head, float):
        if base != head and not abs(base - head) <= tolerance * max(1.0, abs(base)):
            yield f"{name}: {base!r}, now {head!r}"
    elif base != head:
        yield f"{name}: {str(base)[:200]!r}, now {str(head)[:200]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PROGRAMS)} (all of them)")
    parser.add_argument("--base", default=BASE, help="commit to compare with")
    parser.add_argument("--tolerance", type=float, default=0.0, help="largest difference of two numbers")
    parser.add_argument("--cache", help="file in which the values of the base are kept")
    parser.add_argument("--record", help=argparse.SUPPRESS)
    options = parser.parse_args()
    parts = options.parts or list(PROGRAMS)
    if options.record:
        record(options.record, parts)
        return 0
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        worktree = Path(folder, "base")
        kept = Path(options.cache) if options.cache else None
        for name, tree in (("base", worktree), ("head", ROOT)):
            file = Path(folder, name + ".pickle")
            if name == "base" and kept is not None and kept.is_file():
                found[name] = pickle.loads(kept.read_bytes())
                continue
            if name == "base":
                git = ["git", "-C", str(ROOT), "worktree"]
                subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), options.base], check=True)
            try:
                environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
                run = [sys.executable, __file__, "--record", str(file), *parts]
                subprocess.run(run, check=True, cwd=folder, env=environ)
            finally:
                if name == "base":
                    subprocess.run([*git, "remove", "--force", str(worktree)], check=True)
            found[name] = pickle.loads(file.read_bytes())
            if name == "base" and kept is not None:
                kept.write_bytes(file.read_bytes())
            print(f" {name}: {len(found[name])} values", flush=True)
    wanted = found["head"].keys() if kept is not None else {*found["base"], *found["head"]}
    wrong = [
        line
        for name in sorted(wanted)
        for line in differences(name, found["base"].get(name), found["head"].get(name), options.tolerance)
    ]
    print("\n".join(wrong) or f"equal: {len(wanted)} values")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
