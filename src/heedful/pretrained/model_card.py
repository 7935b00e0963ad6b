"""Model card: the README.md of a saved folder, made from ``heedful.json`` and ``config.json``. Imports no torch.

Its YAML head, which the Hub reads, is written by ``huggingface_hub``. A README.md that a person wrote is not replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from heedful.pretrained.folder import ADAPTER_CONFIG, CONFIG, MODEL_CARD, read_card, read_required_json
from heedful.pretrained.snippets import heedful_code, transformers_code
from heedful.util.files import write

MARK = "<!-- written by heedful, and again with every save; without this line the file is yours and stays -->"
PATH_SETTINGS = ("train", "valid", "out")
FAMILIES = ("encoder", "decoder", "encoder-decoder", "vision")
NO_HUB_LAYOUT = (None, "None", "heedful")  # layouts in heedful.json that transformers has no class for
SHOWN_LABELS = 20
LICENSE = (
    "## License\n\nThis card names no license. Choose one that your data and the base model allow, add it to the head "
    "of this file (`license: ...`), and remove the comment below the head, so that no save replaces the file."
)
# tasks of ours: the Hub's
HUB_TASKS = {
    **{name: name for name in ("translation", "summarization", "text-generation", "text-classification")},
    **{name: name for name in ("token-classification", "question-answering", "fill-mask", "feature-extraction")},
    **{name: name for name in ("image-classification", "image-to-text")},
    "generative-question-answering": "question-answering",
}


@dataclass(frozen=True)
class HubMetric:
    """A metric of the package ``evaluate``, by whose names the Hub lists the results of models."""

    name: str
    scale: float = 100  # our value is so many times that of ``evaluate``
    average: str | None = None  # its argument ``average``


# metrics of ours: the Hub's, which has no name for the others. Cards of translators there give BLEU, chrF and TER from
# 0 to 100, as sacrebleu.
HUB_METRICS = {
    **{name: HubMetric(name) for name in ("accuracy", "f1", "precision", "recall", "exact_match")},
    "macro_f1": HubMetric("f1", average="macro"),
    "micro_f1": HubMetric("f1", average="micro"),
    "matthews": HubMetric("matthews_correlation"),
    **{name: HubMetric("rouge") for name in ("rouge1", "rouge2", "rougeL", "rougeLsum")},
    **{name: HubMetric(name, scale=1) for name in ("bleu", "chrf", "ter", "mae", "perplexity")},
    "r2": HubMetric("r_squared"),
    "pearson": HubMetric("pearsonr"),
    "spearman": HubMetric("spearmanr"),
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(@\S+)?")


def is_ours(folder: Path) -> bool:
    """Returns True if a folder has no README.md, or a README.md that this module wrote."""
    path = folder / MODEL_CARD
    return not path.exists() or (path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace"))


def update_model_card(folder: str | Path) -> None:
    """Updates the README.md of a folder after ``heedful.json`` has changed, if this module wrote it."""
    folder = Path(folder).expanduser()
    if is_ours(folder):
        write(folder / MODEL_CARD, card_of_folder(folder, folder.resolve().name))


def card_of_folder(folder: Path, name: str) -> str:
    """Returns the text of the model card of a folder for a model of this name, on the Hub "org/name"."""
    adapter = read_required_json(folder / ADAPTER_CONFIG) if (folder / ADAPTER_CONFIG).is_file() else None
    return card_text(name, read_card(folder), read_required_json(folder / CONFIG), adapter)


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


def card_text(
    name: str, card: Mapping[str, Any], config: Mapping[str, Any], adapter: Mapping[str, Any] | None = None
) -> str:
    """Returns the text of a model card.

    Args:
        name: name of the model: of its folder, or on the Hub.
        card: contents of ``heedful.json``: layout, parameters, and as far as known task, data, metrics, verdict,
            settings, verification, license.
        config: contents of ``config.json``.
        adapter: contents of ``adapter_config.json``, which names the base; None for a whole model.
    """
    task, metrics = card.get("task"), _numbers(card.get("metrics"))
    base = _part(card, "settings").get("start_from") or (adapter or {}).get("base_model_name_or_path")
    sections = [
        _yaml_head(name, card, metrics, base, is_adapter=adapter is not None),
        MARK,
        f"# {name}",
        _summary(task, card, config, base),
        _training_data(card, config),
        _table("Measured on the validation data", ("metric", "value"), [(k, f"{v:.4g}") for k, v in metrics.items()]),
        _limits(card, config),
        _verification_table(_part(card, "verification")),
        _usage(name, card, config, is_adapter=adapter is not None),
        "" if card.get("license") else LICENSE,
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _yaml_head(
    name: str, card: Mapping[str, Any], metrics: Mapping[str, float], base: str | None, *, is_adapter: bool
) -> str:
    """Returns the YAML block that the Hub reads, with the Hub's names of libraries, tasks and metrics."""
    from huggingface_hub import EvalResult, ModelCardData

    task, layout = card.get("task"), str(card.get("layout"))
    source = ", ".join(_names(_part(card, "data").get("train"))) or "validation data"
    results = []
    for metric in metrics if task else ():
        if (entry := HUB_METRICS.get(metric)) is not None:
            results.append(
                EvalResult(
                    task_type=HUB_TASKS.get(str(task), str(task)),
                    dataset_type=source,
                    dataset_name=source,
                    metric_type=entry.name,
                    metric_name=metric if metric != entry.name else None,
                    metric_value=metrics[metric] if entry.scale == 1 else round(metrics[metric] / entry.scale, 6),
                    metric_args={"average": entry.average} if entry.average else None,
                )
            )
    head = ModelCardData(
        language=_languages(card) or None,
        license=card.get("license"),
        library_name="heedful" if layout in NO_HUB_LAYOUT else "peft" if is_adapter else "transformers",
        pipeline_tag=HUB_TASKS.get(str(task)),
        tags=["heedful", *([layout] if layout not in NO_HUB_LAYOUT else [])],
        base_model=base.partition("@")[0] if base and _on_hub(base) else None,
        metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
        model_name=name.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return f"---\n{head.to_yaml()}\n---"


def _summary(task: str | None, card: Mapping[str, Any], config: Mapping[str, Any], base: str | None) -> str:
    classes, count = config.get("architectures"), card.get("parameters")
    members = config.get("members")
    if config.get("kind") == "ensemble" and isinstance(members, list):
        kind = f"An ensemble of {len(members)} Transformers (encoder), the folders `member-0` to "
        kind += f"`member-{len(members) - 1}`, in heedful's own layout"
    elif card.get("layout") == "heedful":
        family = config.get("kind") if config.get("kind") in FAMILIES else "of its own kind"
        kind = f"A Transformer ({family}) in heedful's own layout"
    else:
        kind = f"A Transformer in the layout of `{card.get('layout')}`"
        kind += f" (`{classes[0]}`)" if isinstance(classes, list) and classes else ""
    parts = [kind, f" for {task}" if task else "", f", with {count:,} parameters" if isinstance(count, int) else ""]
    origin = f" It was fine-tuned from `{base if _on_hub(base) else PurePath(base).name}`." if base else ""
    return f"{''.join(parts)}, written by heedful {card.get('heedful')}.{origin}"


def _training_data(card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    names = _names(_part(card, "data").get("train"))
    is_ensemble = config.get("kind") == "ensemble"  # perhaps the teacher itself, which the run has kept
    teacher = None if is_ensemble else _part(card, "settings").get("teacher")
    taught = f" It learned the probabilities of the classifier `{PurePath(teacher).name}`." if teacher else ""
    return f"## Data\n\nTrained on {', '.join(f'`{name}`' for name in names)}.{taught}" if names else ""


def _limits(card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns the section of what the run knows of the model's limits; "" for a model without a task."""
    if not card.get("task"):
        return ""
    examples, length = _part(card, "data").get("examples"), _part(_part(card, "settings"), "data").get("max_length")
    verdict, labels, languages = _part(card, "verdict").get("text"), _labels(card, config), _languages(card)
    more = f" and {len(labels) - SHOWN_LABELS:,} more" if len(labels) > SHOWN_LABELS else ""
    lines = [
        f"On the validation data: {verdict}." if isinstance(verdict, str) and verdict else "",
        f"Training examples: {examples:,}." if isinstance(examples, int) else "",
        f"Maximum length in training: {length:,} tokens." if isinstance(length, int) else "",
        f"Labels: {', '.join(labels[:SHOWN_LABELS])}{more}." if labels else "",
        f"Languages: {', '.join(languages)}." if languages else "",
        "The language of the texts is not recorded; add `language` to the head of this file."
        if not languages and card["task"] in HUB_TASKS and card["task"] != "image-classification"
        else "",
    ]
    return "## Limits\n\n" + "\n".join(f"- {line}" for line in lines if line) if any(lines) else ""


def _labels(card: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Returns the names of the labels; [] for a single output, which is a number."""
    names = card.get("labels") or list(_part(config, "id2label").values())
    return [str(name) for name in names] if isinstance(names, list) and len(names) > 1 else []


def _languages(card: Mapping[str, Any]) -> list[str]:
    """Returns the languages of a run: those of built-in sets, if all data are such sets, and those of language tags."""
    from heedful.data.builtin import languages_of

    sources, tagged = _part(card, "data").get("train"), card.get("languages")
    by_source = [languages_of(str(source)) for source in sources] if isinstance(sources, list) else []
    known = [code for codes in by_source for code in codes] if all(by_source) else []
    return list(dict.fromkeys([*known, *(map(str, tagged) if isinstance(tagged, list) else ())]))


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


def _usage(name: str, card: Mapping[str, Any], config: Mapping[str, Any], *, is_adapter: bool) -> str:
    task, has_class = card.get("task"), card.get("layout") not in NO_HUB_LAYOUT and not is_adapter
    code = transformers_code(name, task, card, config) if has_class else ""
    lines = ["## Use", f"`{name}` is the folder, or its name on the Hub."]
    lines += [f"```python\n{heedful_code(name, task, card, config)}\n```"]
    if code:
        lines += ["In `transformers`:", f"```python\n{code}\n```"]
        if card.get("head") == "pooled":
            lines += ["This is a vector a token; `modules.json` says how heedful and sentence-transformers pool them."]
    elif is_adapter:
        lines += [
            "This is an adapter in the format of `peft`. `heedful export` with `--to hf` merges it into its base, and "
            "writes a folder that `transformers` opens without `peft`."
        ]
    elif config.get("kind") == "ensemble":
        lines += ["Only heedful loads an ensemble, which averages the probabilities of its members."]
    else:
        lines += ["No layout of `transformers` expresses this model; only heedful loads it."]
    return "\n\n".join(lines)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [columns, ["---"] * len(columns), *rows]
    return f"## {title}\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numbers(metrics: Any) -> dict[str, float]:
    values = metrics.items() if isinstance(metrics, Mapping) else ()
    numbers = {str(k): v for k, v in values if isinstance(v, int | float) and not isinstance(v, bool)}
    return {name: float(value) for name, value in numbers.items() if abs(value) < 1e300}  # YAML has no numbers of NumPy


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
