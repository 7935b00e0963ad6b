"""The summary's bytes and kernels against PyTorch's own: saved-tensor hooks, its profiler, real caches, its kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import heedful
from heedful import presets
from heedful.cache import Cache
from heedful.config import AlibiPosition, DecoderConfig, DropoutRates, ModelConfig, RelativePosition, StackConfig
from heedful.errors import HeedfulError
from heedful.inspection.summary.table import Summary
from heedful.models import Model


def changed(name: str, **changes: object) -> ModelConfig:
    """A preset with the changes in each of its stacks."""
    config = presets.get(name)
    stacks = {part: value for part, value in vars(config).items() if isinstance(value, StackConfig)}
    return replace(config, **{part: replace(stack, **changes) for part, stack in stacks.items()})


CONFIGS = {
    "pre-norm decoder": changed("gpt-micro"),
    "dropout everywhere": changed("gpt-micro", dropout=DropoutRates.everywhere(0.1, attention=0.1)),
    "grouped queries, rotary": presets.get("stories260k"),
    "window": changed("stories260k", window=5),
    "windows": changed("stories260k", window=(None, 5)),
    "ALiBi": changed("gpt-micro", position=AlibiPosition()),
    "learned bias": changed("gpt-micro", position=RelativePosition()),
    "batch norm encoder": changed("bert-tiny", norm="batch"),
    "encoder with a pooler": presets.get("bert-tiny"),
    "encoder-decoder": presets.get("transformer-tiny"),
    "images": presets.get("vit-micro"),
}


@cache
def summary_of(name: str, length: int | None = None) -> Summary:
    """The summary of two rows."""
    return heedful.summary(CONFIGS[name], batch=2, length=length)


def real(config: ModelConfig, info: Summary, dtype: torch.dtype):
    model = heedful.create(config, seed=0).to(dtype)
    kind = dtype if len(info.input[0]) == 4 else torch.long
    return model, [torch.zeros(shape, dtype=kind) for shape in info.input[:1]] * len(info.input)


def saved(model: nn.Module, inputs: list[Tensor]) -> int:
    """Bytes that autograd saves in a forward pass, through PyTorch's hooks, without the model's own tensors."""
    own = {tensor.data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: list[Tensor] = []
    with saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        out = model.train()(*inputs)
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    del out
    return sum(size for place, size in sizes.items() if place not in own)


def peak(model: nn.Module, inputs: list[Tensor]) -> int:
    """The most bytes that a forward without gradients allocates, by PyTorch's profiler, and its inputs."""
    model.eval()
    with torch.no_grad():
        model(*inputs)  # tables of positions are made once
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
            model(*inputs)
    now = most = 0
    for event in profiler.profiler.kineto_results.events():
        now += event.nbytes() if event.name() == "[memory]" else 0
        most = max(most, now)
    return most + inputs[0].nbytes


@pytest.mark.parametrize("name", CONFIGS)
def test_the_memory_of_training_is_what_autograd_saves(name: str) -> None:
    info = summary_of(name)
    assert saved(*real(CONFIGS[name], info, torch.float32)) == info.memory["float32"].backward
    # kernels on the CPU keep a norm's statistics in the half type too, those on the meta device in float32
    assert saved(*real(CONFIGS[name], info, torch.bfloat16)) == pytest.approx(
        info.memory["bfloat16"].backward, rel=0.01
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_the_peak_is_what_the_profiler_sees(name: str) -> None:
    info = summary_of(name)
    found = peak(*real(CONFIGS[name], info, torch.float32))
    assert info.memory["float32"].forward == pytest.approx(found, rel=0.02)  # kernels have memory of their own


def test_a_longer_input_holds_more() -> None:
    short, long = (heedful.summary("gpt-micro", length=length).memory["float32"] for length in (32, 64))
    assert long.forward > short.forward
    assert long.backward > 1.9 * short.backward
    assert long.weights == short.weights == 4 * heedful.create("gpt-micro", seed=0).num_parameters()


@pytest.mark.parametrize(
    "name", ["pre-norm decoder", "grouped queries, rotary", "window", "windows", "encoder-decoder"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cache_bytes_are_those_of_a_filled_cache(name: str, dtype: torch.dtype) -> None:
    config = CONFIGS[name]
    info = summary_of(name, length=12)
    told = info.memory[str(dtype).removeprefix("torch.")].cache
    assert told is not None
    model, inputs = real(config, info, dtype)
    stack = config.decoder
    cache = Cache(stack.depth, window=stack.windows)
    with torch.no_grad():
        if isinstance(config, DecoderConfig):
            model.hidden(inputs[0], cache=cache)
        else:
            model.decode(inputs[1], model.encode(inputs[0]), cache=cache)
    held = [tensor for pair in cache.pairs for one in pair if one.pair is not None for tensor in one.pair]
    assert sum(tensor.nbytes for tensor in held) == told.total
    assert told.window == stack.window == {"window": 5, "windows": (None, 5)}.get(name)
    assert (told.source_token > 0) == (name == "encoder-decoder")
    heads, size = stack.kv_heads or stack.heads, stack.head_dim or stack.dim // stack.heads
    assert told.token == 2 * heads * size * stack.depth * dtype.itemsize


def test_encoders_and_images_have_no_cache() -> None:
    for name in ("bert-tiny", "vit-micro"):
        info = heedful.summary(name)
        assert [one.cache for one in info.memory.values()] == [None, None]
        assert "cache" not in str(info)


def runs_fused(model: Model, inputs: list[Tensor]) -> bool:
    """True if a real forward pass runs with fused kernels alone."""
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            model(*inputs)
    except RuntimeError as error:
        if "No available kernel" not in str(error):
            raise
        return False
    return True


@pytest.mark.filterwarnings("ignore:.*attention:UserWarning")  # PyTorch says why there is no kernel
@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_are_missing_where_pytorch_says_so(name: str) -> None:
    info = summary_of(name)
    without = {(one.mode, one.dtype): one.because for one in info.unfused}
    for dtype in (torch.float32, torch.bfloat16):
        model, inputs = real(CONFIGS[name], info, dtype)
        words = str(dtype).removeprefix("torch.")
        assert runs_fused(model.train(), inputs) == (("training", words) not in without)
        with torch.no_grad():
            assert runs_fused(model.eval(), inputs) == (("prediction", words) not in without)
    dropped = name in ("dropout everywhere", "encoder with a pooler", "batch norm encoder")
    expected = {"dropout 0.1 on the weights"} if dropped else {"a learned bias"} if name == "learned bias" else set()
    assert set(without.values()) == expected


def test_layers_without_a_kernel_are_named() -> None:
    info = heedful.summary("t5-small", length=8)
    paths = {one.path for one in info.unfused if one.because.endswith("and a learned bias")}
    assert paths == {f"{side}.block.{i}.attention" for side in ("encoder", "decoder") for i in range(6)}
    crossed = {one.path for one in info.unfused if one.because == "dropout 0.1 on the weights"}
    assert crossed == {f"decoder.block.{i}.cross_attention" for i in range(6)}
    assert {one.mode for one in info.unfused} == {"training"}
    assert "no fused kernel in training for dropout 0.1 on the weights and a learned bias (12 layers" in str(info)
    assert "fused kernels everywhere" in str(heedful.summary("vit-micro"))


def test_capped_attention_is_named() -> None:
    info = heedful.summary(changed("gpt-micro", score_cap=2.0), length=8)
    assert {(one.mode, one.because) for one in info.unfused} == {
        ("prediction", "a soft cap of the scores"),
        ("training", "a soft cap of the scores"),
    }
    assert "no fused kernel in prediction for a soft cap of the scores (4 layers" in str(info)


def test_other_modules_in_their_own_type() -> None:
    layer = nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.1, dtype=torch.float64)
    info = heedful.summary(layer, input_shape=(2, 5, 32))
    assert list(info.memory) == ["float64"]
    assert info.memory["float64"].weights == 8 * info.parameters
    assert info.memory["float64"].backward > 0
    assert next(layer.parameters()).dtype == torch.float64
    assert {(one.path, one.mode) for one in info.unfused} == {("self_attn", "training")}


def test_a_frozen_model_keeps_less() -> None:
    model = heedful.create("gpt-micro", seed=0)
    whole = heedful.summary(model).memory["float32"].backward
    model.requires_grad_(False)
    model.decoder.norm.requires_grad_(True)
    assert 0 < heedful.summary(model).memory["float32"].backward < whole / 2
    assert heedful.summary(model).trainable == sum(p.numel() for p in model.decoder.norm.parameters())


def test_bytes_are_printed_and_are_json() -> None:
    info = heedful.summary("transformer-tiny", length=10, batch=3)
    data = json.loads(json.dumps(info.as_dict()))
    held = data["memory"]["float32"]
    assert held["weights"] == 4 * data["parameters"]
    assert held["cache"]["total"] == 3 * 10 * (held["cache"]["token"] + held["cache"]["source_token"])
    lines = {line.split("  ")[0]: line.split()[-4:] for line in str(info).splitlines() if "B" in line}
    assert lines["cache per token"][-2:] == [f"{held['cache']['token'] / 2000:.1f}", "kB"]
    assert "cache for 3 rows of 10 tokens and 10 source tokens" in str(info)


def test_a_notebook_gets_tables_and_no_markup_of_others() -> None:
    evil = type("<script>", (nn.Linear,), {})
    info = heedful.summary(nn.Sequential(evil(4, 4)), input_shape=(1, 4))
    html = info._repr_html_()
    assert html.count("<table>") == 2
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "20 parameters" in html


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gpt2", {"length": 1025}, "1025 tokens, but the model has 1024 positions"),
        ("gpt2", {"input_shape": (1, 2000)}, "2000 tokens, but the model has 1024 positions"),
        ("gpt2", {"input_shape": (1, 8), "batch": 2}, "leave length and batch out"),
        ("gpt2", {"batch": 0}, "batch is 0"),
        ("gpt2", {"batch": 10**30}, "batch is 10{30}; give a whole number from 1 to"),
        ("t5-small", {"length": 10**30}, "length is 10{30}; give a whole number from 1 to"),
        ("t5-small", {"length": 2**31 - 1}, "too large for counting operations; give a smaller length"),
        (
            "deit-ti",
            {"batch": 10**9, "image_size": 10**5 * 16},
            "too large for counting operations; give a smaller length",
        ),
        ("gpt2", {"image_size": 32}, "image_size"),
        ("vit-micro", {"length": 3}, "an image has no length"),
    ],
)
def test_inputs_that_cannot_be(name: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(HeedfulError, match=words):
        heedful.summary(name, **options)


def test_images_of_another_size() -> None:
    info = heedful.summary("vit-b/16", image_size=384, batch=2)
    assert info.input == ((2, 3, 384, 384),)
    assert info.parameters == 86_567_656 + (576 - 196) * 768
