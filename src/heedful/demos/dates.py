"""The first minutes: a Transformer learns to write dates in another language, and shows what it looked at."""

from __future__ import annotations

import os
import random
import sys
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from heedful.data import Row, read
from heedful.errors import HeedfulError
from heedful.evaluation.metrics import exact_match
from heedful.evaluation.run import scored
from heedful.files import write
from heedful.inspection.record import record
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings, TrainingSettings
from heedful.tasks.pipeline import Pipeline, pipeline
from heedful.tasks.translation import Translation
from heedful.terminal import program
from heedful.training.run import train
from heedful.views.attention import attention_page, attention_svg
from heedful.views.draw import draw_run
from heedful.views.weights import clearest, merge_words

SHOWN = ("datetime-full", "date-full", "datetime-short", "date-long", "yQQQQ")  # formats of the examples, if there


def demo(
    to: str = "fr", out: str | None = None, say: Callable[[str], None] = print, quiet: bool = False
) -> dict[str, Any]:
    """Train an encoder-decoder on ``builtin:cldr-dates``, score it on dates it never saw, and draw its attention.

    Args:
        to: the language of the answers, as CLDR names it (fr, de, es, ja, ...); the questions are English.
        out: folder of the run; ``runs/demo-en-TO`` by default, where an earlier demo is replaced.
        say: takes the lines for the reader.
        quiet: show no progress.

    Returns:
        ``{"task", "model", "metrics", "by_format", "baseline", "examples", "seconds", "files"}``; ``metrics`` are those
        of the held-out dates, ``baseline`` the exact match of copying the source.
    """
    began = time.monotonic()
    data = f"builtin:cldr-dates/en-{to}"
    rows = read(data, Translation.columns, split="test")
    folder = Path(out or f"runs/demo-en-{to}")
    say(f"An encoder-decoder learns to write English dates in another language ({to}): {len(rows):,} of them, on days")
    say("that occur nowhere in training, are kept for the end.\n")
    train(_settings(data, folder, given=out is not None), say=say, quiet=quiet)
    draw_run(folder, "valid_exact_match")

    pipe = pipeline("translation", folder)
    outputs = [answer.output for answer in pipe.answers([row.values["source"] for row in rows])]
    result = scored(pipe.task, outputs, rows)
    fair = [row for row in rows if row.values["exact"] != "no"]
    copied = exact_match([row.values["source"] for row in fair], [row.values["target"] for row in fair])
    shown = _examples(rows)
    files = _draw(pipe, shown[0], folder)
    examples = [(row.values["source"], outputs[rows.index(row)]) for row in shown]
    for line in _report(result, copied, examples):
        say(line)
    seconds = time.monotonic() - began
    where = folder.as_posix()
    say(f"\nIn {where} after {seconds:.0f} s: the model, curve.svg, and what it looked at:")
    say(f"  {files['page']}  (hover over a word; opens in any browser)")
    say("Next:")
    me = program()
    say(f'  {me} predict {where} "{shown[0].values["source"]}"')
    say(f"  {me} evaluate {where} --data {data} --num-beams 4")
    say(f"  {me} train translation --train mine.en mine.fr --out runs/mine")
    if not quiet and sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform in ("darwin", "win32")):
        webbrowser.open(Path(files["page"]).absolute().as_uri())
    return {
        "task": "translation",
        "model": where,
        **result,
        "baseline": {"copy_exact_match": copied},
        "examples": [{"input": source, "output": target} for source, target in examples],
        "seconds": round(seconds, 1),
        "files": files,
    }


def _settings(data: str, folder: Path, given: bool) -> RunSettings:
    """Small and quick: what two cores learn in about two minutes."""
    if given and folder.exists() and any(folder.iterdir()):
        raise HeedfulError(f"--out {folder} is not empty; name a new folder")
    return RunSettings(
        task="translation",
        train=(data,),
        out=str(folder),
        overwrite=folder.exists(),
        preset="transformer-tiny",
        max_minutes=3.0,
        max_epochs=3,
        tokenizer=TokenizerSettings(size=512),
        model=ModelSettings(depth=2, dropout=0.0),
        training=TrainingSettings(lr=2e-3, warmup=200, batch_tokens=1024, label_smoothing=0.0, log_every=100),
    )


def _examples(rows: list[Row]) -> list[Row]:
    """A few held-out rows of different formats, chosen without looking at the answers."""
    by_format: dict[str, list[Row]] = {}
    for row in rows:
        if row.values["exact"] != "no":
            by_format.setdefault(row.values["format"], []).append(row)
    names = [name for name in SHOWN if name in by_format] or sorted(by_format)[:5]
    return [random.Random(0).choice(by_format[name]) for name in names]


def _draw(pipe: Pipeline, row: Row, folder: Path) -> dict[str, str]:
    """The cross-attention of one translation, as a page and as a picture."""
    task = pipe.task
    assert isinstance(task, Translation)
    source = task.encode([row])[0][0]
    text = pipe.answers([row.values["source"]])[0].output
    target = task.target.encode([text])[0]
    batch = task.collate([(source, target)])
    pipe.model.eval()
    with torch.no_grad(), record(pipe.model, "cross_attention.pattern") as seen:
        pipe.model(batch["source"].to(pipe.model.device), batch["target"].to(pipe.model.device))
    weights = torch.cat(list(seen.values())).float().cpu()  # (layers, heads, target + 1, source)
    pieces = task.source.pieces(source), task.target.pieces([*target, *batch["labels"][0, -1:].tolist()])
    words, said, merged = merge_words(*pieces, weights)
    title = f"What the model looked at: {row.values['source']}"
    page = write(folder / "attention.html", attention_page(words, said, merged, title=title))
    best = merged[clearest(merged)]
    picture = write(folder / "attention.svg", attention_svg(words, said, best.mean(0), title=title))
    return {"page": page.as_posix(), "picture": picture.as_posix(), "curve": (folder / "curve.svg").as_posix()}


def _report(result: dict[str, Any], copied: float, examples: list[tuple[str, str]]) -> list[str]:
    metrics = result["metrics"]
    lines = [
        "",
        f"Held-out dates exactly right: {metrics['exact_match']:.1f} %  (copying the source: {copied:.1f} %; "
        f"BLEU {metrics['bleu']:.1f}, chrF {metrics['chrf']:.1f})",
    ]
    for name, group in result["by_format"].items():
        bar = "█" * round(group["exact_match"] / 5)
        note = "" if group["counted"] else "  the short form hides the century: not counted"
        lines.append(f"  {name:<18}{group['exact_match']:5.1f} %  {bar:<20}{note}")
    lines.append("")
    for source, target in examples:
        lines += [f"  {source}", f"    → {target}"]
    return lines
