"""Model card: the README.md of a saved folder, made from ``heedful.json`` and ``config.json``. Imports no torch.

Its YAML head, which the Hub reads, is written by ``huggingface_hub``. A README.md that a person wrote is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from heedful.pretrained.folder import CONFIG, MODEL_CARD, read_card, read_required_json
from heedful.util.files import write

MARK = "<!-- written by heedful, and again with every save; without this line the file is yours and stays -->"
PATH_SETTINGS = ("train", "valid", "out")
FAMILIES = ("encoder", "decoder", "encoder-decoder", "vision")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@\S+)?")


def is_ours(folder: Path) -> bool:
    """Returns True if a folder has no README.md, or a README.md that this module wrote."""
    path = folder / MODEL_CARD
    return not path.exists() or (path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace"))


def update_model_card(folder: str | Path) -> None:
    """Updates the README.md of a folder after ``heedful.json`` has changed, if this module wrote it."""
    folder = Path(folder).expanduser()
    if is_ours(folder):
        write(
            folder / MODEL_CARD,
            card_text(folder.resolve().name, read_card(folder), read_required_json(folder / CONFIG)),
        )


def shareable(card: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``heedful.json`` for publishing: paths of this machine are reduced to file names."""
    with_paths = {key: card[key] for key in ("data", "settings", "verification") if key in card}
    return {**card, **_without_folders(with_paths, "")}


def _without_folders(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_folders(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner, key) for inner in value]
    if not isinstance(value, str):
        return value
    path = Path(value).expanduser()
    is_path = (
        path.is_absolute() or (path.name != value and path.exists()) or (key in PATH_SETTINGS and ":" not in value)
    )
    return path.name if is_path else value


def card_text(name: str, card: Mapping[str, Any], config: Mapping[str, Any], base: str | None = None) -> str:
    """Returns the text of a model card.

    Args:
        name: name of the model.
        card: contents of ``heedful.json``: layout, parameters, and as far as known task, data, metrics, verdict,
            settings, verification, license.
        config: contents of ``config.json``.
        base: model that was fine-tuned, if ``card`` does not name it.
    """
    task, metrics = card.get("task"), _numbers(card.get("metrics"))
    base = _part(card, "settings").get("start_from") or base
    data = _names(_part(card, "data").get("train"))
    sections = [
        _yaml_head(task, metrics, data, name, base, card.get("license"), str(card.get("layout"))),
        MARK,
        f"# {name}",
        _summary(task, card, config, base),
        _training_data(data, _part(card, "data").get("examples")),
        _table("Measured on the validation data", ("metric", "value"), [(k, f"{v:.4g}") for k, v in metrics.items()]),
        _verdict(_part(card, "verdict").get("text")),
        _verification_table(_part(card, "verification")),
        _usage(name, task, str(card.get("layout")), config),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _yaml_head(
    task: str | None,
    metrics: Mapping[str, float],
    data: Sequence[str],
    name: str,
    base: str | None,
    license: str | None,
    layout: str,
) -> str:
    """Returns the YAML block that the Hub reads."""
    from huggingface_hub import EvalResult, ModelCardData

    source = ", ".join(data) or "validation data"
    results = [
        EvalResult(
            task_type=task, dataset_type=source, dataset_name=source, metric_type=metric, metric_value=metrics[metric]
        )
        for metric in metrics
        if task
    ]
    head = ModelCardData(
        license=license,
        library_name="heedful",
        pipeline_tag=task,
        tags=["heedful", *([layout] if layout not in ("heedful", "None") else [])],
        base_model=base.partition("@")[0] if base and _on_hub(base) else None,
        metrics=list(metrics) or None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---"


def _summary(task: str | None, card: Mapping[str, Any], config: Mapping[str, Any], base: str | None) -> str:
    classes, count = config.get("architectures"), card.get("parameters")
    if card.get("layout") == "heedful":
        family = config.get("kind") if config.get("kind") in FAMILIES else "of its own kind"
        kind = f"A Transformer ({family}) in heedful's own layout"
    else:
        kind = f"A Transformer in the layout of `{card.get('layout')}`"
        kind += f" (`{classes[0]}`)" if isinstance(classes, list) and classes else ""
    parts = [kind, f" for {task}" if task else "", f", with {count:,} parameters" if isinstance(count, int) else ""]
    origin = f" It was fine-tuned from `{base if _on_hub(base) else PurePath(base).name}`." if base else ""
    labels = card.get("labels")
    label_names = f" Labels: {', '.join(map(str, labels))}." if isinstance(labels, list) and labels else ""
    return f"{''.join(parts)}, written by heedful {card.get('heedful')}.{origin}{label_names}"


def _training_data(data: Sequence[str], examples: Any) -> str:
    if not data:
        return ""
    number = f", {examples:,} examples" if isinstance(examples, int) else ""
    return f"## Data\n\nTrained on {', '.join(f'`{name}`' for name in data)}{number}."


def _verdict(text: Any) -> str:
    return f"## Verdict\n\nOn the validation data: {text}." if isinstance(text, str) and text else ""


def _verification_table(verification: Mapping[str, Any]) -> str:
    checks = [check for check in verification.get("checks", []) if isinstance(check, Mapping)]
    versions = ", ".join(f"{name} {version}" for name, version in _part(verification, "versions").items())
    rows = [
        (
            str(check.get("name")),
            str(check.get("verdict")),
            _two_digits(check.get("difference")),
            _two_digits(check.get("tolerance", check.get("allowed"))),
        )
        for check in checks
    ]
    title = f"Checked by `heedful verify` on {verification.get('date')}" + (f" ({versions})" if versions else "")
    return _table(title, ("check", "verdict", "largest difference", "tolerance"), rows)


def _usage(name: str, task: str | None, layout: str, config: Mapping[str, Any]) -> str:
    call = f'model = heedful.from_pretrained("{name}")'
    if task:
        call = f'predict = heedful.pipeline("{task}", "{name}")'
    lines = ["## Use", "", f"`{name}` is the folder, or its name on the Hub.", ""]
    lines += ["```python", "import heedful", "", call, "```", ""]
    classes = config.get("architectures")
    if layout != "heedful" and isinstance(classes, list) and classes:
        lines += ["The same in `transformers`:", "", "```python", f"from transformers import {classes[0]}", ""]
        lines += [f'model = {classes[0]}.from_pretrained("{name}")', "```"]
    else:
        lines += ["No layout of `transformers` expresses this model; only heedful loads it."]
    return "\n".join(lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return f"## {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numbers(metrics: Any) -> dict[str, float]:
    values = metrics.items() if isinstance(metrics, Mapping) else ()
    return {str(k): v for k, v in values if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300}


def _two_digits(value: Any) -> str:
    return f"{value:.2g}" if isinstance(value, int | float) else ""


def _names(sources: Any) -> list[str]:
    """Returns names of data: file names without folders, and names such as ``builtin:digits`` as they are."""
    names = [str(source) for source in sources] if isinstance(sources, list | tuple) else []
    return [name if ":" in name else PurePath(name).name for name in names]


def _on_hub(name: str | None) -> bool:
    """Returns True if a name is a model id on the Hub, not a local folder."""
    return name is not None and bool(_HUB_ID.fullmatch(name)) and not Path(name).expanduser().exists()


def _part(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = values.get(key)
    return value if isinstance(value, Mapping) else {}
