"""Attention maps of fixed inputs, recorded at each evaluation of a run."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig, VisionConfig, patches_of
from heedful.data import LazyImage, Row, Rows
from heedful.errors import HeedfulError
from heedful.inspection.image_patches import patch_grid, tokens
from heedful.inspection.record import record
from heedful.models import Model
from heedful.tasks.model_setup import start_of
from heedful.tasks.task import Task, short
from heedful.tasks.token_batches import IGNORED
from heedful.training.series import MAX_WEIGHTS, MIN_SNAPSHOTS, RecordedMaps, Series, fit_maps
from heedful.util.sharding import ALONE, among

GENERATED = 64  # maximum tokens of a target that the model generates itself
CROSS = "cross_attention"


class AttentionRecorder:
    """Recorder of a model's attention maps for fixed inputs, in ``watch.jsonl`` of a run's folder.

    An input is a text for the task's first column, several texts with tabs between them for its first columns, or the
    path of an image. If a task that generates text gets no target, each snapshot decodes a target greedily. For an
    image, the queries are the tokens before the patches, or the mean over all patches if there are no such tokens.

    Args:
        task: turns inputs into batches.
        model: the model in training; recording changes neither it nor the random state.
        inputs: texts or image paths, as given by ``--training.record-attention``.
        out: the folder of the run.
        on_save: called with ``out`` after each snapshot is stored.

    Raises:
        HeedfulError: an input that the task cannot take.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        inputs: Sequence[str],
        out: Path,
        on_save: Callable[[Path], object] | None = None,
    ) -> None:
        self.task, self.model, self.inputs, self.out, self.on_save = task, model, inputs, out, on_save
        self.series: Series | None = None
        self.images = [self._image(text) for text in inputs]
        self.untrained = self.maps()  # here, so that wrong inputs are refused before the run starts

    def begin(self, *, fresh: bool) -> None:
        """Opens the series of snapshots, or resumes it; a ``fresh`` series starts with the model before training."""
        entries = [
            {"text": text} | ({} if image is None else {"image": image})
            for text, image in zip(self.inputs, self.images, strict=True)
        ]
        self.series = Series(self.out, entries)
        if fresh:
            self._save(0, None, self.untrained)

    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Stores the maps of all inputs at ``step``, with the value of the main metric in ``metrics``."""
        value = metrics.get(self.task.main_metric)
        self._save(step, value if value is not None and math.isfinite(value) else None, self.maps())

    def _save(self, step: int, value: float | None, maps: Sequence[Sequence[RecordedMaps]]) -> None:
        assert self.series is not None, "begin() opens it"
        self.series.add(step, self.task.main_metric, value, maps)
        if self.on_save is not None:
            self.on_save(self.out)

    # ------------------------------------------------------------------------------------------------------------- maps

    def maps(self) -> list[list[RecordedMaps]]:
        """Returns the attention maps of each input with the model's current weights."""
        training, device = self.model.training, self.model.device
        self.model.eval()
        try:
            own_random_state = torch.random.fork_rng([device] if device.type == "cuda" else [])
            with torch.no_grad(), own_random_state, among(ALONE):  # other ranks take no part
                return [self._maps(text) for text in self.inputs]
        finally:
            self.model.train(training)

    def _maps(self, text: str) -> list[RecordedMaps]:
        try:
            return self._record(text)
        except HeedfulError as error:
            raise HeedfulError(f"--training.record-attention {short(text)!r}: {error}") from None

    def _record(self, text: str) -> list[RecordedMaps]:
        batch = {name: tensor.to(self.model.device) for name, tensor in self._batch(text).items()}
        config = self.model.config
        prefix = config.patches.prefix_tokens if isinstance(config, VisionConfig) else 0
        with record(self.model, "pattern", queries=range(prefix) if prefix else None) as patterns:
            if "text.ids" in batch:  # the first of the texts that are compared
                batch = {name: batch[f"text.{name}"] for name in ("ids", "mask")}
                self.model(batch["ids"], batch["mask"])
            else:
                self.task.objective(self.model, batch)
        groups: dict[tuple[str, str], list[Tensor]] = {}
        for path, weights in patterns.items():
            stack, *_, part, _ = path.split(".")
            groups.setdefault((stack, part), []).append(weights[0])
        pieces = self._pieces(batch)
        maps = [self._labelled(*key, torch.stack(weights), pieces) for key, weights in groups.items()]
        return fit_maps(maps, MAX_WEIGHTS // MIN_SNAPSHOTS // len(self.inputs))

    def _labelled(self, stack: str, part: str, weights: Tensor, pieces: Mapping[str, list[str]]) -> RecordedMaps:
        """Returns a stack's self- or cross-attention (L, H, T, S) with the tokens of its queries and keys."""
        config = self.model.config
        name, note = "cross-attention" if part == CROSS else "self-attention", ""
        queries, keys = pieces[stack], pieces["encoder" if part == CROSS else stack]
        if part == CROSS:
            queries = pieces["written"]
        elif isinstance(config, EncoderDecoderConfig):
            name = f"{stack} {name}"
        if isinstance(config, VisionConfig):
            queries = queries[: config.patches.prefix_tokens]
            if not queries:
                queries, note, weights = ["[patches]"], "the mean over all patches", weights.mean(2, keepdim=True)
        return RecordedMaps(
            name=name,
            queries=queries,
            keys=keys,
            layers=range(weights.size(0)),
            heads=range(weights.size(1)),
            weights=weights.float().clamp(0, 1).cpu().numpy(),
            note=note,
        )

    # ------------------------------------------------------------------------------------------ inputs and their tokens

    def _batch(self, text: str) -> dict[str, Tensor]:
        """Returns the input as a batch of one example."""
        encoded = self.task.encode(Rows([self._row(text)]))
        if len(encoded.examples) != 1 or encoded.lost:
            raise HeedfulError("the text is longer than the model's context; give a shorter one")
        batch = self.task.collate(encoded.examples)
        if isinstance(self.model.config, DecoderConfig) and "labels" in batch and batch["labels"].dtype == torch.long:
            last = batch["labels"][:, -1:]
            if int(last) != self.task.end:  # type: ignore[attr-defined]  # tasks of documents have an end
                batch["ids"] = torch.cat((batch["ids"], last), 1)  # in training it is a label only
                batch["labels"] = torch.cat((batch["labels"], torch.full_like(last, IGNORED)), 1)
        return batch

    def _row(self, text: str) -> Row:
        """Returns a row of the task's columns: the texts in their order, and the first label where a label is
        needed.
        """
        columns = self.task.columns
        texts = [name for name, kind in columns.items() if kind in ("text", "text?")]
        parts = text.split("\t") if texts else []
        if not all(part.strip() for part in parts):
            raise HeedfulError("a text has no words; give at least one word")
        if len(parts) > max(1, len(texts)):
            raise HeedfulError(
                f"{len(parts)} texts, separated by tabs, but {self.task.name} takes {max(1, len(texts))}; remove "
                "the others"
            )
        values: dict[str, Any] = dict(zip(texts, parts, strict=False))
        for name, kind in columns.items():
            if kind == "image":
                values[name] = LazyImage.of(text)
            elif kind == "texts":
                values[name] = self._generated(text)
            elif kind == "document":
                values[name] = text
            elif kind == "label":
                values[name] = self.task.labels[0]  # type: ignore[attr-defined]  # tasks that have the column have labels
            elif kind == "number":
                values[name] = 0.0
            elif kind == "words":
                values[name] = tuple(text.split())
            elif kind == "tags":
                values[name] = (self.task.labels[0],) * len(text.split())  # type: ignore[attr-defined]  # as above
            elif kind == "answers":
                values[name] = ()
            elif kind == "references":
                values[name] = (self._generated(dict(values)),)
            elif name == "text_pair" and "negative" in columns and name not in values:
                values[name] = parts[0]  # not recorded
            elif kind == "text" and name not in values:
                values[name] = self._generated(parts[0])
        return Row(values, "--training.record-attention", 1)

    def _generated(self, source: str | Mapping[str, str]) -> str:
        """Returns the model's output for ``source``, a text or the texts of its columns, greedily decoded."""
        if "max_new_tokens" not in self.task.options:
            raise HeedfulError("the task takes two texts; separate them by a tab")
        min_new_tokens = int(self.model.generation.get("min_new_tokens") or 0)
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": max(GENERATED, min_new_tokens)}
        return str(self.task.predict(self.model, [source], **options)[0].output)

    def _pieces(self, batch: Mapping[str, Tensor]) -> dict[str, list[str]]:
        """Returns the tokens at each position of a stack; for an encoder-decoder also the decoder's targets."""
        task: Any = self.task  # tasks with the same kind of batch name their tokenizers alike
        if "pixels" in batch:
            return {"encoder": tokens(self.model)}
        if "source" in batch:
            images = patches_of(self.model.config) is not None
            return {
                "encoder": tokens(self.model) if images else task.source.pieces(batch["source"][0].tolist()),
                "decoder": task.target.pieces(batch["target"][0].tolist()),
                "written": task.target.pieces(batch["labels"][0].tolist()),
            }
        config, ids = self.model.config, batch["ids"][0].tolist()
        pieces = task.tokenizer.pieces(ids)
        if isinstance(config, EncoderDecoderConfig):  # a classifier's decoder reads the text again, shifted right
            shifted = task.tokenizer.pieces([start_of(config), *ids[:-1]])
            return {"encoder": pieces, "decoder": shifted, "written": pieces}
        return {"encoder": pieces, "decoder": pieces}

    def _image(self, text: str) -> dict[str, Any] | None:
        """Returns the pixels that the model reads of an image, (H, W, C) in base64; None for a text."""
        if patches_of(self.model.config) is None:
            return None
        task: Any = self.task  # a vision model's task has preprocessing
        channels = task.preprocessing.channels
        pixels = task.preprocessing.fitted(LazyImage.of(text).pixels(channels)).transpose(1, 2, 0)
        encoded = base64.b64encode(pixels.tobytes()).decode("ascii")
        return {"shape": list(pixels.shape), "pixels": encoded, "grid": list(patch_grid(self.model))}
