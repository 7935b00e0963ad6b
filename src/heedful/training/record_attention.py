"""Attention maps of fixed inputs, recorded at each evaluation of a run."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.config import DecoderConfig, EncoderDecoderConfig, VisionConfig
from heedful.data import LazyImage, Row, Rows
from heedful.errors import HeedfulError
from heedful.inspection.image_patches import grid, tokens
from heedful.inspection.record import record
from heedful.models import Model
from heedful.tasks.model_setup import IGNORED, start_of
from heedful.tasks.task import Task, short
from heedful.training.series import FEWEST, ROOM, Seen, Series, fitted
from heedful.util.sharding import ALONE, among

LONGEST = 64  # tokens of the model's own answer that are looked at
CROSS = "cross_attention"


class AttentionRecorder:
    """Looks at ``inputs`` through the eyes of a model, and keeps what it sees in ``out``.

    A text stands for the task's first column, texts with tabs between them for its first columns; an image is a file.
    Where a task that writes is given no target, the target is what the model writes itself, greedily, at each look.
    Of an image the looks of the tokens before the patches are kept, or where there is none the mean over all patches.

    Args:
        task: turns inputs into batches.
        model: what is looked into; a look draws nothing at random and changes nothing.
        inputs: as ``--training.record-attention`` names them.
        out: the folder of the run.
        kept: called with ``out`` whenever a look was kept.

    Raises:
        HeedfulError: an input that the task cannot take.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        inputs: Sequence[str],
        out: Path,
        kept: Callable[[Path], object] | None = None,
    ) -> None:
        self.task, self.model, self.inputs, self.out, self.kept = task, model, inputs, out, kept
        self.series: Series | None = None
        self.images = [self._image(text) for text in inputs]
        self.first = self.looks()  # of the untouched model: what cannot be looked at is refused before the run begins

    def begin(self, *, fresh: bool) -> None:
        """Open the series, which a resumed run goes on with; a ``fresh`` one begins with the untrained model."""
        told = [
            {"text": text} | ({} if image is None else {"image": image})
            for text, image in zip(self.inputs, self.images, strict=True)
        ]
        self.series = Series(self.out, told)
        if fresh:
            self._keep(0, None, self.first)

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the maps of all inputs at ``step``, whose evaluation said ``metrics``."""
        value = metrics.get(self.task.main_metric)
        self._keep(step, value if value is not None and math.isfinite(value) else None, self.looks())

    def _keep(self, step: int, value: float | None, looks: Sequence[Sequence[Seen]]) -> None:
        assert self.series is not None, "begin() opens it"
        self.series.add(step, self.task.main_metric, value, looks)
        if self.kept is not None:
            self.kept(self.out)

    # ---------------------------------------------------------------------------------------------------------- looking

    def looks(self) -> list[list[Seen]]:
        """The maps of each input, as the model is now."""
        training, device = self.model.training, self.model.device
        self.model.eval()
        try:
            drawn = torch.random.fork_rng([device] if device.type == "cuda" else [])
            with torch.no_grad(), drawn, among(ALONE):  # the others are not asked
                return [self._maps(text) for text in self.inputs]
        finally:
            self.model.train(training)

    def _maps(self, text: str) -> list[Seen]:
        try:
            return self._looked_at(text)
        except HeedfulError as error:
            raise HeedfulError(f"--training.record-attention {short(text)!r}: {error}") from None

    def _looked_at(self, text: str) -> list[Seen]:
        batch = {name: tensor.to(self.model.device) for name, tensor in self._batch(text).items()}
        config = self.model.config
        prefix = config.patches.prefix_tokens if isinstance(config, VisionConfig) else 0
        with record(self.model, "pattern", queries=range(prefix) if prefix else None) as seen:
            if "text.ids" in batch:  # of texts that are compared the first
                batch = {name: batch[f"text.{name}"] for name in ("ids", "mask")}
                self.model(batch["ids"], batch["mask"])
            else:
                self.task.objective(self.model, batch)
        groups: dict[tuple[str, str], list[Tensor]] = {}
        for path, weights in seen.items():
            stack, *_, part, _ = path.split(".")
            groups.setdefault((stack, part), []).append(weights[0])
        named = self._pieces(batch)
        maps = [self._seen(*place, torch.stack(weights), named) for place, weights in groups.items()]
        return fitted(maps, ROOM // FEWEST // len(self.inputs))

    def _seen(self, stack: str, part: str, weights: Tensor, named: Mapping[str, list[str]]) -> Seen:
        """One stack's own attention, or its look at the other's: (L, H, T, S) with the names of both sides."""
        config = self.model.config
        name, note = "cross-attention" if part == CROSS else "self-attention", ""
        queries, keys = named[stack], named["encoder" if part == CROSS else stack]
        if part == CROSS:
            queries = named["written"]
        elif isinstance(config, EncoderDecoderConfig):
            name = f"{stack} {name}"
        if isinstance(config, VisionConfig):
            queries = queries[: config.patches.prefix_tokens]
            if not queries:
                queries, note, weights = ["[patches]"], "the mean over all patches", weights.mean(2, keepdim=True)
        return Seen(
            name=name,
            queries=queries,
            keys=keys,
            layers=range(weights.size(0)),
            heads=range(weights.size(1)),
            weights=weights.float().clamp(0, 1).cpu().numpy(),
            note=note,
        )

    # ------------------------------------------------------------------------------------------ inputs and their names

    def _batch(self, text: str) -> dict[str, Tensor]:
        """The input as a batch of one."""
        encoded = self.task.encode(Rows([self._row(text)]))
        if len(encoded.examples) != 1 or encoded.lost:
            raise HeedfulError("longer than the model reads; give a shorter one")
        batch = self.task.collate(encoded.examples)
        if isinstance(self.model.config, DecoderConfig) and "labels" in batch and batch["labels"].dtype == torch.long:
            last = batch["labels"][:, -1:]
            if int(last) != self.task.end:  # type: ignore[attr-defined]  # tasks of documents have an end
                batch["ids"] = torch.cat((batch["ids"], last), 1)  # it is only predicted there, and is to be seen here
                batch["labels"] = torch.cat((batch["labels"], torch.full_like(last, IGNORED)), 1)
        return batch

    def _row(self, text: str) -> Row:
        """A row of the task's columns: the texts one after the other, any label where there must be one."""
        columns = self.task.columns
        texts = [name for name, kind in columns.items() if kind in ("text", "text?")]
        parts = text.split("\t") if texts else []
        if not all(part.strip() for part in parts):
            raise HeedfulError("a text is blank; give a word at least")
        if len(parts) > max(1, len(texts)):
            raise HeedfulError(
                f"{len(parts)} texts with tabs between them; {self.task.name} takes {max(1, len(texts))}"
            )
        values: dict[str, Any] = dict(zip(texts, parts, strict=False))
        for name, kind in columns.items():
            if kind == "image":
                values[name] = LazyImage.of(text)
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
            elif name == "text_pair" and "negative" in columns and name not in values:
                values[name] = parts[0]  # it is not looked at
            elif kind == "text" and name not in values:
                values[name] = self._own(parts[0])
        return Row(values, "--training.record-attention", 1)

    def _own(self, source: str) -> str:
        """Returns the model's own output for ``source``, greedily decoded."""
        if "max_new_tokens" not in self.task.options:
            raise HeedfulError("two texts are wanted, with a tab between them")
        least = int(self.model.generation.get("min_new_tokens") or 0)
        options = {"num_beams": 1, "do_sample": False, "max_new_tokens": max(LONGEST, least)}
        return str(self.task.predict(self.model, [source], **options)[0].output)

    def _pieces(self, batch: Mapping[str, Tensor]) -> dict[str, list[str]]:
        """Returns the tokens at each position of a stack, and those that a decoder with an encoder writes at each."""
        task: Any = self.task  # tasks of one kind of batch have tokenizers of one name
        if "pixels" in batch:
            return {"encoder": tokens(self.model)}
        if "source" in batch:
            return {
                "encoder": task.source.pieces(batch["source"][0].tolist()),
                "decoder": task.target.pieces(batch["target"][0].tolist()),
                "written": task.target.pieces(batch["labels"][0].tolist()),
            }
        config, ids = self.model.config, batch["ids"][0].tolist()
        pieces = task.tokenizer.pieces(ids)
        if isinstance(config, EncoderDecoderConfig):  # the decoder of a classifier reads the text again, one place on
            again = task.tokenizer.pieces([start_of(config), *ids[:-1]])
            return {"encoder": pieces, "decoder": again, "written": pieces}
        return {"encoder": pieces, "decoder": pieces}

    def _image(self, text: str) -> dict[str, Any] | None:
        """The pixels that the model is given of an image, (H, W, C) in base64; None of a text."""
        if not isinstance(self.model.config, VisionConfig):
            return None
        how: Any = self.task
        pixels = how.preprocessing.fitted(LazyImage.of(text).pixels(how.preprocessing.channels)).transpose(1, 2, 0)
        coded = base64.b64encode(pixels.tobytes()).decode("ascii")
        return {"shape": list(pixels.shape), "pixels": coded, "grid": list(grid(self.model))}
