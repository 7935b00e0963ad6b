"""Heedful: the classic Transformer, all four families from one readable core.

Train on files or Python objects, and use the folder that was written::

    rows = [{"text": f"film {n} is {word}", "label": word} for n in range(50) for word in ("good", "bad")]
    run = heedful.train("text-classification", rows, out="runs/films", max_epochs=20)
    print(run.metrics["accuracy"], run.verdict)

    classify = heedful.pipeline("text-classification", "runs/films")  # a folder, or a name on the Hugging Face Hub
    print(classify("a good day"))  # {"input": ..., "output": ..., "score": ...}

Create a model, or load one with ``heedful.from_pretrained``; generate with it, and record what it computes::

    model = heedful.create("gpt-micro", seed=0)
    ids = torch.tensor([[5, 6, 7]])
    print(model.generate(ids, max_new_tokens=5, do_sample=False))

    with heedful.record(model, "pattern") as recorded:  # attention weights; heedful.intervene changes them
        model(ids)
    print(recorded["decoder.block.0.attention.pattern"].shape)  # (rows, heads, queries, keys)

Rooms, each with a docstring of its own: ``heedful.layers`` (attention, norms, positions, masks), ``stack``, ``cache``
and ``models``; ``config``, ``presets`` and ``settings``; ``pretrained`` (folders in and out), ``adapters``,
``kernels``; ``text``, ``data``, ``metrics``, ``tasks``, ``training``, ``evaluation``, ``inference``; ``generation``,
``inspection``, ``verify``; and ``registration`` (parts of your own, by ``heedful.register``).
``heedful --help`` lists the commands. The documentation is the folder ``docs`` of the source; ``make docs`` builds it.

Public names are loaded when first used: importing heedful, its configurations, presets and list of tasks never imports
torch.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, whose import would take half of the time in which Ctrl-C is not yet handled

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heedful import adapters as adapters
    from heedful import cache as cache
    from heedful import config as config
    from heedful import data as data
    from heedful import evaluation as evaluation
    from heedful import generation as generation
    from heedful import inference as inference
    from heedful import inspection as inspection
    from heedful import kernels as kernels
    from heedful import layers as layers
    from heedful import metrics as metrics
    from heedful import models as models
    from heedful import presets as presets
    from heedful import pretrained as pretrained
    from heedful import registration as registration
    from heedful import settings as settings
    from heedful import stack as stack
    from heedful import tasks as tasks
    from heedful import text as text
    from heedful import training as training
    from heedful import verify as verify
    from heedful.api import evaluate, train
    from heedful.errors import HeedfulError
    from heedful.inference.pipeline import pipeline
    from heedful.inference.score import score
    from heedful.inspection.intervene import intervene
    from heedful.inspection.record import record
    from heedful.inspection.summary import summary
    from heedful.layers.block import Block
    from heedful.models import Decoder, Encoder, EncoderDecoder, VisionTransformer
    from heedful.models.create import create
    from heedful.optimize_model import optimize
    from heedful.pretrained import load as from_pretrained
    from heedful.registration import register
    from heedful.stack import Stack
    from heedful.views.inspect.inspect import inspect

__all__ = [
    "Block",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "HeedfulError",
    "Stack",
    "VisionTransformer",
    "create",
    "evaluate",
    "from_pretrained",
    "inspect",
    "intervene",
    "optimize",
    "pipeline",
    "record",
    "register",
    "score",
    "summary",
    "train",
]

# public name: the room it lives in, and its name there where that is another
_HOMES = {
    "Block": "heedful.layers.block",
    "Decoder": "heedful.models",
    "Encoder": "heedful.models",
    "EncoderDecoder": "heedful.models",
    "HeedfulError": "heedful.errors",
    "Stack": "heedful.stack",
    "VisionTransformer": "heedful.models",
    "create": "heedful.models.create",
    "evaluate": "heedful.api",
    "from_pretrained": "heedful.pretrained:load",
    "inspect": "heedful.views.inspect.inspect",
    "intervene": "heedful.inspection.intervene",
    "optimize": "heedful.optimize_model",
    "pipeline": "heedful.inference.pipeline",
    "record": "heedful.inspection.record",
    "register": "heedful.registration",
    "score": "heedful.inference.score",
    "summary": "heedful.inspection.summary",
    "train": "heedful.api",
}
_ROOMS = (
    *("adapters", "cache", "config", "data", "evaluation", "generation", "inference", "inspection", "kernels"),
    *("layers", "metrics", "models", "presets", "pretrained", "registration", "settings", "stack", "tasks", "text"),
    *("training", "verify"),
)


if not TYPE_CHECKING:  # checkers would accept any name

    def __getattr__(name: str) -> object:
        if name in _HOMES:
            module, _, attribute = _HOMES[name].partition(":")
            return getattr(import_module(module), attribute or name)
        if name in _ROOMS:
            return import_module(f"heedful.{name}")
        raise AttributeError(f"module 'heedful' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
