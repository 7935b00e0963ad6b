"""The folder as ``transformers`` opens and runs it: the reference of the numbers. Never imported with the package."""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heedful.cache import token_positions
from heedful.config import AlibiPosition, ModelConfig, NoPosition, PooledHead, RelativePosition, VisionConfig
from heedful.pretrained.folder import CONFIG, read_json
from heedful.tasks.model_setup import stacks_of
from heedful.verify.check_report import Skipped
from heedful.verify.inputs import TOKENWISE, ModelCall, Side
from heedful.verify.verified_folder import VerifiedFolder


@contextmanager
def quiet() -> Iterator[Any]:
    """``transformers``, without its warnings and progress bars while this lasts. Raises ``Skipped`` where absent."""
    if importlib.util.find_spec("transformers") is None:
        raise Skipped("transformers is not installed (pip install transformers)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        said, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            transformers.logging.set_verbosity(said)
            if bars:
                transformers.logging.enable_progress_bar()


def need_their_layout(verified: VerifiedFolder) -> None:
    """Raises ``Skipped`` for a folder in our own layout, which only we open, and for one that holds an adapter."""
    if verified.stored.adapter is not None:
        raise Skipped("the folder holds an adapter; export it --to hf, which merges it, and verify that")
    if verified.layout == "heedful":
        raise Skipped("the folder is in heedful's own layout, which transformers does not open")


def opened(transformers: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Returns the class that the folder names, with its weights; raises where a tensor is missing or left over."""
    name = class_of(folder)
    model, info = getattr(transformers, name).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    wrong = {what: sorted(map(str, info[what])) for what in ("missing_keys", "mismatched_keys") if info.get(what)}
    if wrong:
        raise ValueError(f"transformers does not fill its {name}: {wrong}")
    if getattr(model.config, "pad_token_id", 0) is None:
        model.config.pad_token_id = 0  # a class of theirs may read off the ids where a row ends
    if dtype == torch.float64:
        for part in model.modules():
            if hasattr(part, "variance_epsilon"):  # an RMS norm of theirs computes in float32, whatever the type
                part.register_forward_hook(_rms_norm)
    return model.eval()


def reference_model(transformers: Any, verified: VerifiedFolder, dtype: torch.dtype) -> Any:
    """Returns the folder's own model in a type; in float32, which several checks take, it is opened once."""
    kept = verified.references
    if dtype not in kept:
        model = opened(transformers, verified.path, dtype)
        if dtype != torch.float32:
            return model
        kept[dtype] = model
    return kept[dtype]


def class_of(folder: Path) -> str:
    """Returns the class that a folder's configuration names."""
    names = read_json(folder / CONFIG).get("architectures") or [""]
    return str(names[0])


def _rms_norm(part: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    (x,) = inputs
    return part.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part.variance_epsilon)


def sides(model: Any, config: ModelConfig) -> tuple[list[Side], str]:
    """Returns the paddings that a model of theirs can be compared on, and why others are left out.

    Padding on the left needs positions that are told, or none; and a pooled first token of theirs is then padding.
    """
    if isinstance(config, VisionConfig):
        return ["none"], ""
    told = "position_ids" in inspect.signature(model.forward).parameters
    relative = isinstance(stacks_of(config)[0].position, RelativePosition | AlibiPosition | NoPosition)
    if not told and not relative:
        return ["none", "right"], "not left-padded: transformers counts padding in its positions there"
    if not isinstance(config.head, TOKENWISE) and getattr(config.head, "pooling", "first") == "first":
        return ["none", "right"], "not left-padded: transformers pools the first column there"
    return ["none", "right", "left"], ""


@torch.no_grad()
def output(model: Any, call: ModelCall, config: ModelConfig) -> Tensor:
    """Returns the output of a ``transformers`` model."""
    names = inspect.signature(model.forward).parameters
    if isinstance(config, VisionConfig):
        return _tensor(model(pixel_values=call.ids.to(model.dtype)))
    given: dict[str, Any] = {"input_ids": call.ids}
    if call.mask is not None:
        given["attention_mask"] = call.mask.long()
        if "position_ids" in names:
            given["position_ids"] = token_positions(call.mask) + getattr(stacks_of(config)[0].position, "offset", 0)
    if call.segments is not None and "token_type_ids" in names:
        given["token_type_ids"] = call.segments
    if call.target is not None:
        given["decoder_input_ids"] = call.target
    if call.target_mask is not None:
        given["decoder_attention_mask"] = call.target_mask.long()
    made = _tensor(model(**given))
    return _pooled(made, call.mask, config.head) if isinstance(config.head, PooledHead) else made


def _pooled(hidden: Tensor, mask: Tensor | None, head: PooledHead) -> Tensor:
    """Pools rows of the body as sentence-transformers does; no class of ``transformers`` pools."""
    real = torch.ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
    kept = [row[own] for row, own in zip(hidden, real, strict=True)]
    how = {"first": lambda row: row[0], "last": lambda row: row[-1], "max": lambda row: row.amax(0)}
    made = torch.stack([how.get(head.pooling, lambda row: row.mean(0))(row) for row in kept])
    return made / made.norm(dim=1, keepdim=True) if head.normalise else made


def _tensor(answer: Any) -> Tensor:
    if hasattr(answer, "start_logits"):
        return torch.stack((answer.start_logits, answer.end_logits), -1)
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if getattr(answer, name, None) is not None:
            return getattr(answer, name)
    raise Skipped(f"transformers answers with {', '.join(answer.keys())}, which no head of ours gives")
