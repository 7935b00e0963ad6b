"""Rows: name, part, time limit, and the function that measures them with its sizes. Imports no torch.

Each size is written as (full, short); ``Row.sizes`` chooses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A line of the results.

    Attributes:
        name: key in the JSON.
        part: 1 to 3, or 0 for ceilings, which every part measures first.
        function: "module.function" in this package: given the settings and the sizes, it returns the figures.
        limit: seconds after which the row is given up.
        options: arguments of the function; a tuple is (full, short).
    """

    name: str
    part: int
    function: str
    limit: float
    options: dict[str, Any] = field(default_factory=dict)

    def sizes(self, short: bool) -> dict[str, Any]:
        """Returns the arguments of the function, of the full or the short run."""
        return {key: value[short] if isinstance(value, tuple) else value for key, value in self.options.items()}


def _ceilings() -> list[Row]:
    side, megabytes = (8192, 64), (4096, 1)
    products = [
        Row(f"ceiling, {dtype} product", 0, "measure.product", 40, {"dtype": dtype, "side": side})
        for dtype in ("bfloat16", "tf32", "float32")
    ]
    return [*products, Row("ceiling, copy", 0, "measure.copy", 40, {"megabytes": megabytes})]


def _gpt2() -> list[Row]:
    sizes = {"batch": (16, 2), "context": (1024, 16), "steps": (20, 2)}
    programs = {
        "ours": 60,
        "ours, blocks compiled": 120,
        "ours, whole model compiled": 150,
        "nanoGPT": 60,
        "nanoGPT, compiled": 150,
        "nanoGPT without biases, compiled": 150,
        "transformers": 90,
    }
    return [
        Row(f"train GPT-2 124M, {program}", 1, "training.gpt2", limit, {"program": program, **sizes})
        for program, limit in programs.items()
    ]


def _characters(*programs: str) -> list[Row]:
    sizes = {"batch": (64, 2), "context": (256, 16), "steps": (5000, 6), "every": (250, 3)}
    return [
        Row(f"characters 6 x 384, {program}", 2, "training.characters", 240, {"program": program, **sizes})
        for program in programs
    ]


def _encoders() -> list[Row]:
    bert = {"batch": (64, 4), "shortest": (16, 2), "longest": (512, 12)}
    return [
        *(
            Row(f"BERT-base 64 x 16-512, {program}", 2, "inference.bert", 60, {"program": program, **bert})
            for program in ("ours", "ours, compiled", "transformers")
        ),
        *(
            Row(f"ViT-B/16 x 128, {program}", 2, "inference.vit", 60, {"program": program, "batch": (128, 2)})
            for program in ("ours", "ours, compiled", "transformers")
        ),
        *(
            Row(
                f"translation, 4 beams x 64, {program}",
                2,
                "inference.translation",
                60,
                {"program": program, "batch": (64, 2), "length": (30, 5)},
            )
            for program in ("ours", "ours, captured", "transformers")
        ),
    ]


def _decoding() -> list[Row]:
    parts = {"124M": 2, "1.1B": 3, "7B": 3}
    programs = {"ours": 60, "ours, captured": 60, "transformers, static cache": 150}
    return [
        Row(
            f"decode {model} x {batch}, {program}",
            part,
            "inference.decoding",
            limit,
            {"program": program, "model": model, "batch": (batch, min(batch, 3)), "new": (128, 4)},
        )
        for program, limit in programs.items()
        for batch in (1, 8, 64)
        for model, part in parts.items()
    ]


# A part measures its rows in this order, and may run out of time: first ours, then what it is compared with.
ROWS = {
    row.name: row
    for row in (
        *_ceilings(),
        *_gpt2(),
        *_characters("ours"),
        *_encoders(),
        *_decoding(),
        *_characters("ours, whole model compiled", "nanoGPT, compiled"),
    )
}
