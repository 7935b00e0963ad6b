"""The measured works: rows of works, their sizes, their inputs, and which programs do them. Nothing imports torch.

Rows whose names begin with "train-" train, the others answer. Those that begin with "busy-" are the same works of batch
1 while another process keeps all cores busy. Inputs are functions of the work alone, so that every program is asked the
same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

LABELS, IGNORED = 10, -100
BUSY = "busy-"
LOADING = "loading"  # the row whose programs are opened in each call
SERVING = "serving"  # the row that ``benchmarks.serving`` measures
QUIET_ALONE = ("small", "context", "deberta", LOADING)  # rows without a busy one
ACTIONS = {"small": "generation", "context": "generation", LOADING: "generation", "deberta": "encoder"}
TEXTS = ("bert", "deberta")  # families of encoders


@dataclass(frozen=True, kw_only=True)
class Work:
    """One line of the table: so many inputs of such lengths for one model.

    ``shortest`` < ``longest`` are lengths of inputs that are mixed, evenly where ``skew`` is 1, with more short ones
    than long ones where it is above; a generation adds ``new`` tokens to each. A training takes ``steps`` of
    optimisation in one call.
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
    skew: float = 1.0
    steps: int = 0

    @classmethod
    def told(cls, data: dict[str, Any]) -> Work:
        """The work that ``asdict`` wrote."""
        return cls(**data)

    @property
    def unit(self) -> str:
        """The unit of work that a time is given for."""
        if self.steps:
            return "ms a step"
        if self.row == LOADING:
            return "ms"
        return "ms a token" if self.action == "generation" else "ms a batch"

    @property
    def units(self) -> int:
        """The number of them in one run of the work: a step of a batch of generations makes one token in each row."""
        return self.new if self.action == "generation" else self.steps or 1

    @property
    def action(self) -> str:
        """The function of a program's file that does it."""
        return action(self.row)

    @property
    def is_busy(self) -> bool:
        """True if another process keeps all cores busy meanwhile."""
        return self.row.startswith(BUSY)

    @property
    def family(self) -> str:
        """The kind of model it is for: "gpt2", "llama", "pair", "bert", "deberta" or "vit"."""
        return self.model.partition("-")[0]

    @property
    def lengths(self) -> np.ndarray:
        """(batch,) tokens of each input, from the shortest to the longest, shuffled."""
        share = np.linspace(0, 1, self.batch) ** self.skew
        lengths = (self.shortest + (self.longest - self.shortest) * share).round().astype(np.int64)
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

    def examples(self) -> dict[str, np.ndarray]:
        """The batch that is trained on, by the names that our tasks give its parts; labels of padding are -100."""
        random = np.random.default_rng(2)
        if self.family == "vit":
            return {"pixels": self.pixels(), "labels": random.integers(0, LABELS, self.batch)}
        if self.family == "gpt2":
            ids = random.integers(10, self.vocab - 1, (self.batch, self.longest + 1))
            return {"ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy()}
        ids, mask = self.ids(), self.mask()
        if self.family in TEXTS:
            labels = random.integers(0, LABELS, self.batch)
            segments = {"segments": np.zeros_like(ids)} if self.family == "bert" else {}
            return {"ids": ids, "mask": mask, **segments, "labels": labels}
        said = random.integers(10, self.vocab - 1, ids.shape)  # each target as long as its source
        first = np.ones((self.batch, 1), dtype=np.int64)  # the start token
        target = np.where(mask, np.concatenate((first, said[:, :-1]), 1), 0)
        return {"source": ids, "source_mask": mask, "target": target, "labels": np.where(mask, said, IGNORED)}


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """A program under one precision of its weights, and perhaps one of its several ways.

    ``program`` is a file of ``programs/``, whose function of the row's ``action`` does the work; ``form`` is what
    ``weights.make`` is to have made for it.
    """

    program: str
    precision: str
    way: str = ""
    form: str = "folder"
    judged: bool = True  # False: it has weights of its own

    @property
    def name(self) -> str:
        """The name in the table."""
        return f"{self.program} {self.precision}" + (f", {self.way}" if self.way else "")

    @property
    def is_ours(self) -> bool:
        """True for the one that others are compared with."""
        return self.program == "ours" and not self.way


PRECISIONS = ("float32", "bfloat16", "int8")  # that all kinds of models are measured in
OURS = tuple(Competitor(program="ours", precision=word) for word in ("float32", "bfloat16", "float16", "int8", "int4"))
UNCOMPILED = tuple(replace(each, way="uncompiled") for each in OURS)
PLAIN = Competitor(program="ours", precision="float32", way="plain")
THEIRS = tuple(Competitor(program="transformers", precision=word) for word in ("float32", "bfloat16"))
ENGINE = tuple(Competitor(program="ctranslate2", precision=word, form="ctranslate2") for word in ("float32", "int8"))
OPENVINO = (
    *(Competitor(program="openvino", precision=word, form="openvino") for word in ("float32", "bfloat16")),
    *(Competitor(program="openvino", precision=word, form=f"openvino-{word}") for word in ("int8", "int4")),
)
LLAMA_CPP = tuple(
    Competitor(program="llama_cpp", precision=word, form=f"gguf-{word}")
    for word in ("float32", "float16", "int8", "int4")
)
BARE = Competitor(program="ours", precision="float32", way="bare loop")
NANOGPT = tuple(Competitor(program="nanogpt", precision=each.precision) for each in THEIRS)
TIMM = tuple(Competitor(program="timm", precision=each.precision) for each in THEIRS)
MODULE = tuple(Competitor(program="nn_transformer", precision=each.precision) for each in THEIRS)
CHARACTERS = (OURS[0], BARE, NANOGPT[0], THEIRS[0])

GENERATION = (
    *OURS,
    *UNCOMPILED,
    PLAIN,
    *ENGINE,
    *OPENVINO,
    *LLAMA_CPP,
    *THEIRS,
    *(replace(each, way="static cache") for each in THEIRS),
)
_ANSWERING = {
    "generation": (*GENERATION, NANOGPT[0]),
    "small": GENERATION,
    "context": GENERATION,  # nanoGPT, without a cache, would take minutes
    "beam": (*OURS, *(each for each in UNCOMPILED if each.precision in PRECISIONS), PLAIN, *ENGINE, *THEIRS),
    "encoder": (
        *OURS[:2],
        OURS[3],
        PLAIN,
        Competitor(program="onnxruntime", precision="float32", form="onnx"),
        Competitor(program="onnxruntime", precision="int8", form="onnx-int8"),
        *OPENVINO[:3],
        *(Competitor(program="nested", precision=word) for word in ("float32", "bfloat16")),
        *THEIRS,
        *(Competitor(program="x_transformers", precision=word, judged=False) for word in ("float32", "bfloat16")),
    ),
    LOADING: (*OURS, PLAIN, *ENGINE, *OPENVINO, *LLAMA_CPP, *THEIRS),
    "deberta": (*OURS[:2], PLAIN, *THEIRS),
    "vit": (
        *OURS[:2],
        OURS[3],
        PLAIN,
        *OPENVINO[:3],
        *THEIRS,
        *TIMM,
    ),
}
COMPETITORS: dict[str, tuple[Competitor, ...]] = {
    **_ANSWERING,
    **{f"{BUSY}{row}": programs for row, programs in _ANSWERING.items() if row not in QUIET_ALONE},
    "train-characters": CHARACTERS,
    "train-dropout": tuple(replace(each, judged=False) for each in CHARACTERS),  # each draws its own
    "train-gpt2": (*OURS[:2], *NANOGPT, *THEIRS),
    "train-pair": (*OURS[:2], *MODULE, *THEIRS),
    "train-bert": (*OURS[:2], *THEIRS),
    "train-deberta": (*OURS[:2], *THEIRS),
    "train-vit": (*OURS[:2], *THEIRS, *TIMM),
}
TITLES = {
    "generation": "Generation, GPT-2 124M: prompts of 32 tokens, 64 new ones, greedy",
    "small": "Generation, a Llama of 15M: prompts of 32 tokens, 64 new ones, greedy",
    "context": "Generation after long prompts, GPT-2 124M: 900 tokens, 100 new ones, greedy",
    "beam": "Beam search, 4 beams, encoder-decoder of width 512, 6 + 6 layers: sources of 30 tokens, 30 new ones",
    LOADING: "Opening a model, GPT-2 124M: from the files to the first token after a prompt of 32",
    SERVING: "Serving: prompts of 16 to 128 tokens, answers of 32 to 128, streamed, each client asks again at once",
    "encoder": "Encoder, BERT-base",
    "deberta": "Encoder, DeBERTa v3 base",
    "vit": "Vision, ViT-B/16",
    "train-characters": "Training, a character model of 4 layers, width 128: 12 windows of 64",
    "train-dropout": "Training, a character model of 6 layers, width 384, dropout 0.2: 64 windows of 256",
    "train-gpt2": "Training, GPT-2 124M: 2 windows of 512",
    "train-pair": "Training, encoder-decoder of width 512, 6 + 6 layers: 64 pairs of 5 to 45 tokens",
    "train-bert": "Training, BERT-base, classification: 8 texts of 16 to 128 tokens",
    "train-deberta": "Training, DeBERTa v3 base, classification: 8 texts of 16 to 128 tokens",
    "train-vit": "Training, ViT-B/16: 4 images",
}


def title(row: str) -> str:
    """The title of a row on the page."""
    busy = ", while another process keeps all cores busy" if row.startswith(BUSY) else ""
    return f"{TITLES[row.removeprefix(BUSY)]}{busy}"


def action(row: str) -> str:
    """The function of a program's file that does the works of a row."""
    if row.startswith("train-"):
        return "training"
    row = row.removeprefix(BUSY)
    return ACTIONS.get(row, row)


def works(row: str, short: bool) -> tuple[Work, ...]:
    """The works of a row; ``short`` ones do the same with models that a test has time for."""
    return tuple((_SHORT if short else _FULL)[row])


def _batches(name: str, batches: tuple[int, ...], **sizes: Any) -> list[Work]:
    return [Work(name=f"{name}, batch {batch}", batch=batch, **sizes) for batch in batches]


def _rows(short: bool) -> dict[str, list[Work]]:
    """Both tables; models are named as ``weights.MODELS`` names them."""
    kind = "tiny" if short else "whole"
    vocab = {"gpt2": (300, 50257), "pair": (300, 32000), "bert": (300, 30522), "deberta": (300, 128100)}
    size = {name: pair[0 if short else 1] for name, pair in vocab.items()}
    prompt, new = (6, 5) if short else (32, 64)
    source, target = (5, 6) if short else (30, 30)
    low, high = (3, 9) if short else (16, 128)
    many = 3 if short else 32
    gpt2: dict[str, Any] = {"model": f"gpt2-{kind}", "vocab": size["gpt2"]}
    bert: dict[str, Any] = {"row": "encoder", "model": f"bert-{kind}", "vocab": size["bert"]}
    deberta: dict[str, Any] = {"row": "deberta", "model": f"deberta-{kind}", "vocab": size["deberta"]}
    context, after = (40, 5) if short else (900, 100)
    answering = {
        "generation": _batches(
            "GPT-2",
            (1, 2) if short else (1, 8, 32),
            row="generation",
            shortest=prompt,
            longest=prompt,
            new=new,
            **gpt2,
        ),
        "small": _batches(
            "Llama",
            (1, 2) if short else (1, 8),
            row="small",
            model=f"llama-{kind}",
            vocab=300 if short else 32000,
            shortest=prompt,
            longest=prompt,
            new=new,
        ),
        "context": _batches(
            f"GPT-2 after {context}", (1,), row="context", shortest=context, longest=context, new=after, **gpt2
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
        LOADING: [
            Work(name="GPT-2 opened", row=LOADING, batch=1, shortest=prompt, longest=prompt, new=1, **gpt2),
        ],
        "encoder": [
            Work(name=f"BERT, 1 × {high}", batch=1, shortest=high, longest=high, **bert),
            Work(name=f"BERT, {many} × {low}–{high}", batch=many, shortest=low, longest=high, **bert),
        ],
        "deberta": [
            Work(name=f"DeBERTa, 1 × {high}", batch=1, shortest=high, longest=high, **deberta),
            Work(name=f"DeBERTa, {many} × {low}–{high}", batch=many, shortest=low, longest=high, **deberta),
        ],
        "vit": _batches("ViT", (1, 2 if short else 8), row="vit", model=f"vit-{kind}", image=32 if short else 224),
    }
    busy = {
        f"{BUSY}{name}": [replace(row[0], row=f"{BUSY}{name}", name=f"{row[0].name}, cores busy")]
        for name, row in answering.items()
        if name not in QUIET_ALONE
    }
    return {**answering, **busy, **_training(short, kind, size)}


def _training(short: bool, kind: str, size: dict[str, int]) -> dict[str, list[Work]]:
    """One work a row, since a model that has learned is another one."""

    def work(row: str, model: str, batch: tuple[int, int], longest: tuple[int, int], **sizes: Any) -> list[Work]:
        told = {"row": f"train-{row}", "model": f"{model}-{kind}-train", "batch": batch[not short], "steps": 1}
        most = longest[not short]
        return [Work(**{"longest": most, "shortest": most, **told, **sizes})]

    def encoder(row: str, name: str) -> list[Work]:
        sizes = {"vocab": size[row], "shortest": 3 if short else 16}
        return work(row, row, (3, 8), (9, 128), name=f"{name} trained", **sizes)

    few = 2 if short else 20  # steps at a time, where one takes milliseconds
    return {
        "train-characters": work(
            "characters", "gpt2-4x128", (2, 12), (6, 64), vocab=65, steps=few, name="4 × 128 trained"
        ),
        "train-dropout": work("dropout", "gpt2-6x384", (2, 64), (6, 256), vocab=65, name="6 × 384 trained"),
        "train-gpt2": work("gpt2", "gpt2", (2, 2), (6, 512), vocab=size["gpt2"], name="GPT-2 trained"),
        "train-pair": work(
            "pair",
            "pair",
            (5, 64),
            (9, 45),
            vocab=size["pair"],
            shortest=3 if short else 5,
            skew=5 / 3,
            name="pairs trained",
        ),
        "train-bert": encoder("bert", "BERT"),
        "train-deberta": encoder("deberta", "DeBERTa"),
        "train-vit": work("vit", "vit", (2, 4), (0, 0), image=32 if short else 224, name="ViT trained"),
    }


_FULL, _SHORT = _rows(False), _rows(True)
ROWS = tuple(_FULL)


def data(work: Work) -> dict[str, Any]:
    """The work as JSON can hold it."""
    return asdict(work)
