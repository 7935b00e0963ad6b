"""The reference: the folder loaded and run by ``transformers``, which is imported only when a check runs."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from heedful.config import (
    AlibiPosition,
    ContentPosition,
    EncoderConfig,
    ModelConfig,
    NoPosition,
    PooledHead,
    RelativePosition,
    SequenceHead,
    TokenHead,
    VisionConfig,
    patches_of,
)
from heedful.layers.mask import token_positions
from heedful.layers.position import Alibi
from heedful.pretrained.folder import CONFIG, read_required_json
from heedful.pretrained.model_types import model_type_of
from heedful.tasks.model_setup import stacks_of
from heedful.verify.check_report import Skipped
from heedful.verify.inputs import TOKENWISE, ModelCall, Side
from heedful.verify.verified_folder import VerifiedFolder


@contextmanager
def quiet_transformers() -> Iterator[Any]:
    """Context manager that yields ``transformers`` without warnings and progress bars; ``Skipped`` if not installed."""
    if importlib.util.find_spec("transformers") is None:
        raise Skipped("transformers is not installed (pip install transformers)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers

        verbosity, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        try:
            yield transformers
        finally:
            transformers.logging.set_verbosity(verbosity)
            if bars:
                transformers.logging.enable_progress_bar()


def need_published_layout(verified: VerifiedFolder) -> None:
    """Raises ``Skipped`` for a folder in our own layout, and for one that holds an adapter."""
    if verified.stored.adapter is not None:
        raise Skipped("the folder holds an adapter; export the folder with --to hf and verify the export")
    if verified.layout == "heedful":
        raise Skipped("the folder is in heedful's own layout, which transformers cannot load")


def load_reference(transformers: Any, folder: Path, dtype: torch.dtype) -> Any:
    """Returns the folder's model, loaded by ``transformers`` as the class that its configuration names.

    Raises ``ValueError`` for missing or misshapen tensors.
    """
    name = class_of(folder)
    model, info = getattr(transformers, name).from_pretrained(folder, dtype=dtype, output_loading_info=True)
    problems = {key: sorted(map(str, info[key])) for key in ("missing_keys", "mismatched_keys") if info.get(key)}
    if problems:
        raise ValueError(f"transformers does not load all tensors of its {name}: {problems}")
    if getattr(model.config, "pad_token_id", 0) is None:
        model.config.pad_token_id = 0  # some classes need it to find the end of a row
    if dtype == torch.float64:
        model.to(dtype)  # whatever the dtype, XLNet makes its attention's parameters in float32
        for part in model.modules():
            if hasattr(part, "variance_epsilon"):  # their own norms always compute in float32
                part.register_forward_hook(_layer_norm if hasattr(part, "bias") else _rms_norm)
            if hasattr(part, "_norm") and hasattr(part, "eps"):  # so does one whose weight is stored minus 1
                part.register_forward_hook(_offset_rms_norm)
            module: Any = sys.modules[type(part).__module__]
            if hasattr(part, "attn_logit_softcapping"):  # and the softmax of capped scores
                module.eager_attention_forward = _capped_attention  # gives the same bits in float32
            if hasattr(module, "scaled_size_sqrt"):  # DeBERTa's scale of the scores is float32 too
                module.scaled_size_sqrt = _score_scale  # gives the same bits in float32
            if hasattr(module, "_get_alibi_slopes"):  # Bloom: slopes are powers in float32, GELU has 8 digits of √(2/π)
                module._get_alibi_slopes = _slopes
                module.bloom_gelu_forward = partial(F.gelu, approximate="tanh")
            if hasattr(part, "positional_embedding"):  # XLNet: frequencies are powers in float32
                part.positional_embedding = _sinusoids
            if hasattr(part, "make_weights"):  # M2M-100: so are its own
                part.weights = _table(part.weights.shape, part.padding_idx)
            if type(part).__name__.endswith("TopKRouter"):  # Mixtral: the weights of experts are float32
                part.register_forward_hook(_router_weights)
                model.set_experts_implementation("eager")  # whose grouped products have no float64
            if hasattr(part, "expert_capacity"):  # Switch Transformers: its router is float32
                part.dtype = dtype
    return model.eval()


def reference_model(transformers: Any, verified: VerifiedFolder, dtype: torch.dtype) -> Any:
    """Returns the folder's model as ``transformers`` loads it, in a dtype.

    Several checks use it in float32; this model is loaded once.
    """
    references = verified.references
    if dtype not in references:
        model = load_reference(transformers, verified.path, dtype)
        if dtype != torch.float32:
            return model
        references[dtype] = model
    return references[dtype]


def class_of(folder: Path) -> str:
    """Returns the name of the ``transformers`` class of a folder, from its configuration."""
    hub = read_required_json(folder / CONFIG)
    return model_type_of(hub).architecture_of(hub).name


def _rms_norm(part: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    (x,) = inputs
    return part.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part.variance_epsilon)


def _layer_norm(part: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    (x,) = inputs
    return nn.functional.layer_norm(x, x.shape[-1:], part.weight, part.bias, part.variance_epsilon)


def _router_weights(part: Any, inputs: Any, output: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    logits, _, _ = output
    weights, choice = logits.softmax(-1).topk(part.top_k)
    return logits, weights / weights.sum(-1, keepdim=True), choice


def _offset_rms_norm(part: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    (x,) = inputs
    return (1 + part.weight) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + part.eps)


def _capped_attention(
    part: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, scaling: float, softcap: float | None, **_: Any
) -> tuple[Tensor, Tensor]:
    k, v = (x.repeat_interleave(part.num_key_value_groups, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * scaling
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    scores = scores if mask is None else scores + mask
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(q.dtype)
    return (weights @ v).transpose(1, 2).contiguous(), weights


def _score_scale(q: Tensor, terms: int) -> Tensor:
    return torch.tensor(q.size(-1) * terms, dtype=torch.float64).sqrt()


def _slopes(heads: int, device: torch.device) -> Tensor:
    return torch.tensor(Alibi(heads).slopes, device=device).double()


def _sinusoids(positions: Tensor, frequencies: Tensor, rows: int | None = None) -> Tensor:
    dim = 2 * len(frequencies)
    exact = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = positions[:, None] * exact.to(frequencies)
    return torch.cat((angle.sin(), angle.cos()), -1)[:, None].expand(-1, rows or 1, -1)


def _table(shape: Sequence[int], padding: int) -> Tensor:
    rows, dim = shape
    rates = 10000.0 ** (-torch.arange(dim // 2, dtype=torch.float64) / (dim // 2 - 1))
    angle = torch.arange(rows, dtype=torch.float64)[:, None] * rates
    table = torch.cat((angle.sin(), angle.cos()), -1)
    table[padding] = 0
    return table.float().double()


class _ExactAttention(TorchFunctionMode):
    """Attends in float64 where the code of ``transformers`` rounds to float32: Bloom's softmax, GPT-Neo's q and k."""

    def __torch_function__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if function is Tensor.to and args[1:] == (torch.float32,) and args[0].ndim == 4:
            return args[0]
        wide = {"dtype": torch.float64} if function is F.softmax else {}
        return function(*args, **{**(kwargs or {}), **wide})


def comparable_sides(model: Any, config: ModelConfig) -> tuple[list[Side], str]:
    """Returns the sides of padding on which a model can be compared with ``transformers``, and why others are left out.

    Padding on the left needs a model that takes position ids or has relative positions, and that does not pool the
    first column.
    """
    if isinstance(config, VisionConfig):
        return ["none"], ""
    if patches_of(config) is not None:
        return ["none", "right"], ""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    position = stacks_of(config)[0].position
    relative = isinstance(position, RelativePosition | ContentPosition | AlibiPosition | NoPosition)
    if not takes_positions and not relative:
        return ["none", "right"], "without padding on the left, which transformers counts in its positions"
    if not isinstance(config.head, TOKENWISE) and getattr(config.head, "pooling", "first") == "first":
        return ["none", "right"], "without padding on the left, which transformers would pool"
    if isinstance(config.head, SequenceHead) and isinstance(config, EncoderConfig) and config.class_token == "last":
        return ["none", "left"], "without padding on the right, which transformers would pool"
    return ["none", "right", "left"], ""


@torch.no_grad()
def output(model: Any, call: ModelCall, config: ModelConfig) -> Tensor:
    """Returns the output of a ``transformers`` model for one call; raises ``Skipped`` if heedful has no such output."""
    names = inspect.signature(model.forward).parameters
    images = patches_of(config) is not None
    arguments: dict[str, Any] = {"pixel_values": call.ids.to(model.dtype)} if images else {"input_ids": call.ids}
    if call.mask is not None:
        arguments["attention_mask"] = call.mask.long()
        if "position_ids" in names:
            offset = getattr(stacks_of(config)[0].position, "offset", 0)
            if any(hasattr(part, "offset") for part in model.modules()):
                offset = 0  # OPT's table adds it
            arguments["position_ids"] = token_positions(call.mask) + offset
    if call.segments is not None and "token_type_ids" in names:
        arguments["token_type_ids"] = call.segments
    if call.target is not None:
        arguments["decoder_input_ids"] = call.target
    if call.target_mask is not None:
        arguments["decoder_attention_mask"] = call.target_mask.long()
    with _ExactAttention() if model.dtype == torch.float64 else nullcontext():
        output = _tensor(model(**arguments))
    if isinstance(config.head, TokenHead) and output.dim() == 2:  # a discriminator's, without an axis of one logit
        output = output[..., None]
    return _pooled(output, call.mask, config.head) if isinstance(config.head, PooledHead) else output


def _pooled(hidden: Tensor, mask: Tensor | None, head: PooledHead) -> Tensor:
    """Pools rows of the body as sentence-transformers does; no class of ``transformers`` pools."""
    real = torch.ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = [row[is_real] for row, is_real in zip(hidden, real, strict=True)]
    pools = {"first": lambda row: row[0], "last": lambda row: row[-1], "max": lambda row: row.amax(0)}
    vectors = torch.stack([pools.get(head.pooling, lambda row: row.mean(0))(row) for row in rows])
    return vectors / vectors.norm(dim=1, keepdim=True) if head.normalise else vectors


def _tensor(output: Any) -> Tensor:
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), -1)
    for name in ("logits", "prediction_logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    raise Skipped(
        f"cannot compare: transformers returns only {', '.join(output.keys())}, and no head of heedful has this output"
    )
