"""What is measured: four rows of works, their sizes, their inputs, and which programs do them. Nothing imports torch.

Inputs are functions of the work alone, so that every program is asked the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Work:
    """One line of the table: so many inputs of such lengths for one model.

    ``shortest`` < ``longest`` are lengths of inputs that are mixed; a generation adds ``new`` tokens to each.
    """

    name: str
    row: str
    model: str
    batch: int
    shortest: int = 0
    longest: int = 0
    new: int = 0
    beams: int = 1
    vocab: int = 0
    image: int = 0

    @classmethod
    def told(cls, data: dict[str, Any]) -> Work:
        """The work that ``asdict`` wrote."""
        return cls(**data)

    @property
    def unit(self) -> str:
        """What a time is given for."""
        return {"generation": "ms a token", "beam": "ms a batch", "encoder": "ms a batch", "vit": "ms a batch"}[
            self.row
        ]

    @property
    def units(self) -> int:
        """How many of them one run of the work has: a step of a batch of generations makes one token in each row."""
        return self.new if self.row == "generation" else 1

    @property
    def lengths(self) -> np.ndarray:
        """(batch,) tokens of each input: evenly from the shortest to the longest, shuffled."""
        lengths = np.linspace(self.shortest, self.longest, self.batch).round().astype(np.int64)
        return np.random.default_rng(1).permutation(lengths)

    def ids(self) -> np.ndarray:
        """(batch, longest) int64, right-padded with 0; real tokens are never one of the first ten, nor the last."""
        ids = np.random.default_rng(0).integers(10, self.vocab - 1, (self.batch, self.longest))
        return np.where(self.mask(), ids, 0)

    def mask(self) -> np.ndarray:
        """(batch, longest): True for a real token."""
        return np.arange(self.longest) < self.lengths[:, None]

    def pixels(self) -> np.ndarray:
        """(batch, 3, image, image) float32, of mean 0 and deviation 1."""
        shape = (self.batch, 3, self.image, self.image)
        return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """A program under one precision of its weights, and perhaps one of its several ways.

    ``program`` is a file of ``programs/``, whose function of the row's name does the work; ``form`` is what
    ``weights.make`` is to have made for it.
    """

    program: str
    precision: str
    way: str = ""
    form: str = "folder"
    judged: bool = True  # False: it has weights of its own

    @property
    def name(self) -> str:
        """How the table calls it."""
        return f"{self.program} {self.precision}" + (f", {self.way}" if self.way else "")

    @property
    def is_ours(self) -> bool:
        """Whether it is the one that others are compared with."""
        return self.program == "ours" and not self.way


OURS = tuple(Competitor(program="ours", precision=word) for word in ("float32", "bfloat16", "float16", "int8", "int4"))
PLAIN = Competitor(program="ours", precision="float32", way="plain")
THEIRS = tuple(Competitor(program="transformers", precision=word) for word in ("float32", "bfloat16"))
ENGINE = tuple(Competitor(program="ctranslate2", precision=word, form="ctranslate2") for word in ("float32", "int8"))

COMPETITORS: dict[str, tuple[Competitor, ...]] = {
    "generation": (
        *OURS,
        PLAIN,
        *ENGINE,
        *THEIRS,
        *(Competitor(program="transformers", precision=each.precision, way="static cache") for each in THEIRS),
        Competitor(program="nanogpt", precision="float32"),
    ),
    "beam": (*OURS, PLAIN, *ENGINE, *THEIRS),
    "encoder": (
        *OURS[:2],
        OURS[3],
        PLAIN,
        Competitor(program="onnxruntime", precision="float32", form="onnx"),
        Competitor(program="onnxruntime", precision="int8", form="onnx-int8"),
        *(Competitor(program="nested", precision=word) for word in ("float32", "bfloat16")),
        *THEIRS,
        *(Competitor(program="x_transformers", precision=word, judged=False) for word in ("float32", "bfloat16")),
    ),
    "vit": (
        *OURS[:2],
        OURS[3],
        PLAIN,
        *THEIRS,
        *(Competitor(program="timm", precision=word) for word in ("float32", "bfloat16")),
    ),
}
TITLES = {
    "generation": "Generation, GPT-2 124M: prompts of 32 tokens, 64 new ones, greedy",
    "beam": "Beam search, 4 beams, encoder-decoder of width 512, 6 + 6 layers: sources of 30 tokens, 30 new ones",
    "encoder": "Encoder, BERT-base",
    "vit": "Vision, ViT-B/16",
}


def works(row: str, short: bool) -> tuple[Work, ...]:
    """The works of a row; ``short`` ones do the same with models that a test has time for."""
    return tuple((_SHORT if short else _FULL)[row])


def _batches(name: str, batches: tuple[int, ...], **sizes: Any) -> list[Work]:
    return [Work(name=f"{name}, batch {batch}", batch=batch, **sizes) for batch in batches]


def _rows(short: bool) -> dict[str, list[Work]]:
    """Both tables; models are named as ``weights.MODELS`` names them."""
    kind = "tiny" if short else "whole"
    vocab = {"gpt2": (300, 50257), "pair": (300, 32000), "bert": (300, 30522)}
    size = {name: pair[0 if short else 1] for name, pair in vocab.items()}
    prompt, new = (6, 5) if short else (32, 64)
    source, target = (5, 6) if short else (30, 30)
    low, high = (3, 9) if short else (16, 128)
    many = 3 if short else 32
    bert: dict[str, Any] = {"row": "encoder", "model": f"bert-{kind}", "vocab": size["bert"]}
    return {
        "generation": _batches(
            "GPT-2",
            (1, 2 if short else 8),
            row="generation",
            model=f"gpt2-{kind}",
            vocab=size["gpt2"],
            shortest=prompt,
            longest=prompt,
            new=new,
        ),
        "beam": _batches(
            "beam 4",
            (1, many),
            row="beam",
            model=f"pair-{kind}",
            vocab=size["pair"],
            shortest=source,
            longest=source,
            new=target,
            beams=4,
        ),
        "encoder": [
            Work(name=f"BERT, 1 × {high}", batch=1, shortest=high, longest=high, **bert),
            Work(name=f"BERT, {many} × {low}–{high}", batch=many, shortest=low, longest=high, **bert),
        ],
        "vit": _batches("ViT", (1, 2 if short else 8), row="vit", model=f"vit-{kind}", image=32 if short else 224),
    }


_FULL, _SHORT = _rows(False), _rows(True)
ROWS = tuple(_FULL)


def data(work: Work) -> dict[str, Any]:
    """The work as JSON can hold it."""
    return asdict(work)
