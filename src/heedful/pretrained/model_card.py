"""The model card: README.md of a saved folder, for people and, in the lines at its head, for the Hub. No torch here.

It says what ``heedful.json`` and ``config.json`` say, in plain words. A README.md that a person wrote is left alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from heedful.pretrained.folder import CONFIG, README, read_card, read_json
from heedful.util.files import write

MARK = "<!-- written by heedful, and again with every save; without this line the file is yours and stays -->"
PLACES = ("train", "valid", "out")  # settings that are files and folders
FAMILIES = {"encoder": "encoder", "decoder": "decoder", "encoder-decoder": "encoder-decoder", "vision": "vision"}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@\S+)?")


def is_ours(folder: Path) -> bool:
    """Returns whether a folder has no README.md, or one that was written here."""
    path = folder / README
    return not path.exists() or (path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace"))


def describe(folder: str | Path) -> None:
    """Writes the README.md of a folder anew, where it is ours: after ``heedful.json`` has changed."""
    folder = Path(folder).expanduser()
    if is_ours(folder):
        write(folder / README, card_text(folder.resolve().name, read_card(folder), read_json(folder / CONFIG)))


def shareable(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``heedful.json`` for publishing: paths of this machine are reduced to file names."""
    told = {key: card[key] for key in ("data", "settings", "verification") if key in card}
    return {**card, **_without_folders(told, "")}


def _without_folders(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_folders(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    whole = Path(value).expanduser()
    here = whole.is_absolute() or (whole.name != value and whole.exists())
    return whole.name if here or (key in PLACES and ":" not in value) else value


def card_text(name: str, card: Mapping[str, Any], config: Mapping[str, Any], base: str | None = None) -> str:
    """Returns the model card.

    Args:
        name: of the model.
        card: what ``heedful.json`` says: layout, parameters, and as far as known task, data, metrics, settings,
            verification, license.
        config: ``config.json``.
        base: what the weights were made from, where ``card`` does not say it.
    """
    task, metrics = card.get("task"), _numbers(card.get("metrics"))
    base = _part(card, "settings").get("start_from") or base
    data = _names(_part(card, "data").get("train"))
    sections = [
        _head(task, metrics, data, name, base, card.get("license"), str(card.get("layout"))),
        MARK,
        f"# {name}",
        _what(task, card, config, base),
        _trained(data, _part(card, "data").get("examples")),
        _table("Measured on the validation data", ("metric", "value"), [(k, f"{v:.4g}") for k, v in metrics.items()]),
        _verified(_part(card, "verification")),
        _use(name, task, str(card.get("layout")), config),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(
    task: str | None,
    metrics: Mapping[str, float],
    data: Sequence[str],
    name: str,
    base: str | None,
    license: str | None,
    layout: str,
) -> str:
    """Returns the lines that the Hub reads, in YAML; its strings are written as JSON, which YAML reads."""
    lines = [f"license: {json.dumps(license)}"] if license else []
    lines += ["library_name: heedful"]
    lines += [f"pipeline_tag: {task}"] if task else []
    lines += ["tags:", "- heedful", *([f"- {layout}"] if layout not in ("heedful", "None") else [])]
    lines += [f"base_model: {json.dumps(base.partition('@')[0])}"] if base and _on_hub(base) else []
    lines += ["metrics:", *(f"- {json.dumps(metric)}" for metric in metrics)] if metrics else []
    if task and metrics:
        source = json.dumps(", ".join(data) or "validation data", ensure_ascii=False)
        lines += ["model-index:", f"- name: {json.dumps(name, ensure_ascii=False)}", "  results:", "  - task:"]
        lines += [
            f"      type: {task}",
            "    dataset:",
            f"      name: {source}",
            f"      type: {source}",
            "    metrics:",
        ]
        for metric, value in metrics.items():
            lines += [f"    - type: {json.dumps(metric)}", f"      value: {value!r}"]
    return "\n".join(["---", *lines, "---"])


def _what(task: str | None, card: Mapping[str, Any], config: Mapping[str, Any], base: str | None) -> str:
    classes, count = config.get("architectures"), card.get("parameters")
    if card.get("layout") == "heedful":
        kind = f"A Transformer ({FAMILIES.get(str(config.get('kind')), 'of its own kind')}) in heedful's own layout"
    else:
        kind = f"A Transformer in the layout of `{card.get('layout')}`"
        kind += f" (`{classes[0]}`)" if isinstance(classes, list) and classes else ""
    parts = [kind, f" for {task}" if task else "", f", with {count:,} parameters" if isinstance(count, int) else ""]
    made = f" It was fine-tuned from `{base if _on_hub(base) else PurePath(base).name}`." if base else ""
    labels = card.get("labels")
    told = f" It tells apart: {', '.join(map(str, labels))}." if isinstance(labels, list) and labels else ""
    return f"{''.join(parts)}, written by heedful {card.get('heedful')}.{made}{told}"


def _trained(data: Sequence[str], examples: Any) -> str:
    if not data:
        return ""
    number = f", {examples:,} examples" if isinstance(examples, int) else ""
    return f"## Data\n\nTrained on {', '.join(f'`{name}`' for name in data)}{number}."


def _verified(verification: Mapping[str, Any]) -> str:
    checks = [check for check in verification.get("checks", []) if isinstance(check, Mapping)]
    versions = ", ".join(f"{name} {version}" for name, version in _part(verification, "versions").items())
    rows = [
        (
            str(check.get("name")),
            str(check.get("verdict")),
            _figure(check.get("difference")),
            _figure(check.get("allowed")),
        )
        for check in checks
    ]
    title = f"Checked by `heedful verify` on {verification.get('date')}" + (f" ({versions})" if versions else "")
    return _table(title, ("check", "verdict", "largest difference", "allowed"), rows)


def _use(name: str, task: str | None, layout: str, config: Mapping[str, Any]) -> str:
    here = f'model = heedful.from_pretrained("{name}")'
    if task:
        here = f'answer = heedful.pipeline("{task}", "{name}")'
    lines = ["## Use", "", f"`{name}` is the folder, or its name on the Hub.", ""]
    lines += ["```python", "import heedful", "", here, "```", ""]
    classes = config.get("architectures")
    if layout != "heedful" and isinstance(classes, list) and classes:
        lines += ["The same in `transformers`:", "", "```python", f"from transformers import {classes[0]}", ""]
        lines += [f'model = {classes[0]}.from_pretrained("{name}")', "```"]
    else:
        lines += ["No layout of `transformers` can say what this model computes: heedful alone opens it."]
    return "\n".join(lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return f"## {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numbers(metrics: Any) -> dict[str, float]:
    found = metrics.items() if isinstance(metrics, Mapping) else ()
    return {str(k): v for k, v in found if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}


def _figure(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, int | float) else ""


def _names(sources: Any) -> list[str]:
    """Data files without the folders they lie in; sets that are no files as they are called."""
    found = [str(source) for source in sources] if isinstance(sources, list | tuple) else []
    return [source if ":" in source else PurePath(source).name for source in found]


def _on_hub(name: str | None) -> bool:
    """Returns whether a name is one of the Hub, not of a folder here."""
    return name is not None and bool(_HUB_ID.fullmatch(name)) and not Path(name).expanduser().exists()


def _part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}
