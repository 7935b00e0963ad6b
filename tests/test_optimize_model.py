"""Models optimised for inference give what they gave before, and refuse what they can no longer do."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fresh_process
import heedful
from heedful import optimize_model
from heedful.adapters import LoraConfig, add_adapter, merge
from heedful.config import SequenceHead, SpecialTokens
from heedful.errors import HeedfulError
from heedful.inspection.pruning import prune
from heedful.kernels import few_rows, prepacked_linear
from heedful.kernels import onednn_linear as onednn
from heedful.kernels.fused_projections import FusedAttention
from heedful.kernels.onednn_linear import FEW, onednn_linear
from heedful.kernels.plan import decoding_kernels
from heedful.kernels.prepacked_linear import FloatLinear, Int4Linear, Int8Linear, PrepackedLinear, int8_weight_levels
from heedful.layers.attention import Attention
from heedful.layers.linear import Linear
from heedful.models import Model
from heedful.optimize_model import LINEAR_CLASSES, optimize
from tolerances import assert_close

SMALL = {"dim": 32, "depth": 2, "heads": 4, "ff_dim": 64}


def small(name: str) -> Any:
    """A preset's shape in a small size, with the head after a colon."""
    name, _, wanted = name.partition(":")
    config: Any = heedful.presets.get(name)
    stacks = {}
    for name in ("encoder", "decoder"):
        if (old := getattr(config, name, None)) is not None:
            sizes = SMALL | ({"kv_heads": 2} if old.kv_heads not in (None, old.heads) else {})
            stacks[name] = replace(old, **{"head_dim": None, **sizes})
    config = replace(config, **stacks)
    if getattr(config, "patches", None) is not None and config.patches.image_size != (224, 224):
        patches = replace(config.patches, image_size=(224, 224))
        position = replace(config.encoder.position, length=patches.tokens)
        config = replace(config, patches=patches, encoder=replace(config.encoder, position=position))
    for table in ("embedding", "source"):
        if hasattr(getattr(config, table, None), "vocab_size"):
            config = replace(config, **{table: replace(getattr(config, table), vocab_size=101)})
    if hasattr(config, "special"):
        config = replace(config, special=SpecialTokens(pad=0, start=1, end=(2,)))
    return heedful.create(config, head=wanted or None, seed=0).eval()


HEADED = ("bert-base:sequence", "bert-base:pooled", "bert-base:token", "gpt2:sequence")
SHAPES = (
    *HEADED,
    "gpt2",
    "openai-gpt",
    "opt-125m",
    "bloom-560m",
    "tinyllama-1.1b",
    "olmo2-32b",
    "gemma2-2b",
    "bert-base",
    "electra-small",
    "mpnet-base",
    "albert-base",
    "marian",
    "t5-small",
    "t5-v1.1-small",
    "bart-base",
    "vit-b/16",
    "dinov2-g/14",
)


def asked(model: Model) -> Callable[[], Tensor]:
    """A call with a batch of the model's kind of input, lengths mixed."""
    random = torch.Generator().manual_seed(1)
    if model.config.kind == "vision":
        pixels = torch.randn(2, 3, 224, 224, generator=random)
        return lambda: model(pixels.to(model.dtype))
    ids, mask = torch.randint(3, 101, (3, 9), generator=random), torch.arange(9) < torch.tensor([[9], [4], [7]])
    if model.config.kind == "encoder-decoder":
        return lambda: model(ids, ids[:, :5], mask)
    if isinstance(model.config.head, SequenceHead):
        return lambda: model(ids, mask)
    return lambda: model(ids, mask)[mask] if model.config.kind == "decoder" else model(ids, mask)[:, 0]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-12), ("float32", 2e-6)])
def test_a_prepared_model_says_the_same(name: str, dtype: str, near: float) -> None:
    plain, fast = small(name).to(getattr(torch, dtype)), optimize(small(name), dtype, compiled_decoding=False)
    with torch.inference_mode():
        wanted, given = asked(plain)(), asked(fast)()
    assert given.dtype is wanted.dtype
    assert float((wanted - given).abs().max()) <= near * float(wanted.abs().max())


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(("dtype", "near"), [("bfloat16", 3e-2), ("float16", 2e-3), ("int8", 4e-2), ("int4", 0.5)])
def test_fewer_bits_stay_near(name: str, dtype: str, near: float) -> None:
    plain, fast = small(name), optimize(small(name), dtype, compiled_decoding=False)
    with torch.inference_mode():
        wanted, given = asked(plain)(), asked(fast)().float()
    error = (wanted - given).norm() / wanted.norm()
    assert 0 < error <= near


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int8", "int4"])
@torch.inference_mode()
def test_rows_of_positions_are_projected_once(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, also after texts of other lengths, and after a change of the table of positions or of its norm."""
    model, calls = optimize(small("deberta-v3-base"), dtype), [0]
    ids = torch.randint(3, 101, (3, 9), generator=torch.Generator().manual_seed(1))

    def counted(rows: Tensor) -> int:
        calls[0] = 0
        model(rows)
        return calls[0]

    def fresh() -> Tensor:
        """Outputs of a model that has projected nothing yet."""
        for part in model.modules():
            if isinstance(part, FusedAttention):
                part.projected = None
        return model(ids)

    def counting(part: Any, x: Tensor) -> Tensor:
        calls[0] += 1
        return product(part, x)

    kind = type(model.encoder.block[0].attention.projections)
    product = kind.forward
    expected = model(ids)
    monkeypatch.setattr(kind, "forward", counting)
    again, packed = counted(ids), issubclass(kind, PrepackedLinear)
    assert counted(ids[:, :5]) == again + 2 * packed, "one in each block"
    assert counted(ids[:1, :5]) == again
    assert torch.equal(model(ids), expected)
    for parameter in (model.encoder.position.table.weight, model.encoder.position.norm.weight):
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        changed = model(ids)
        assert torch.equal(changed, fresh())
        assert not torch.equal(changed, expected)
        expected = changed
    state = {name: tensor * 0.5 for name, tensor in model.state_dict().items() if ".position." in name}
    model.load_state_dict(state, strict=False)
    assert torch.equal(model(ids), fresh())
    assert not torch.equal(model(ids), expected)


def can_pack(dtype: str) -> None:
    """``prepare`` leaves bfloat16 as it is where this CPU cannot pack it."""
    if dtype == "bfloat16" and not onednn.has_onednn(torch.bfloat16):
        pytest.skip("this CPU has no instructions for bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("activation", [None, F.relu, F.gelu, F.silu, torch.tanh])
def test_a_packed_map_multiplies_by_the_weights_it_shows(dtype: str, activation: Any) -> None:
    can_pack(dtype)
    kind = LINEAR_CLASSES[dtype][0]
    assert kind is not None
    random = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(70, 64, generator=random) * 0.1, torch.randn(70, generator=random)
    x, number = torch.randn(2, 3, 64, generator=random), torch.bfloat16 if dtype == "bfloat16" else torch.float32
    packed = kind(weight.to(number), bias.to(number), activation)
    shown = packed.weight.double()
    exact = F.linear(x.to(number).double(), shown, bias.to(number).double())
    exact = exact if activation is None else activation(exact)
    # rounding of the inputs (bfloat16, a row's bytes) and of the outputs is all that may differ
    allowed = {"float32": 1e-6, "float16": 1e-6, "bfloat16": 8e-3, "int4": 1.2e-2, "int8": 1e-2}[dtype]
    assert float((packed(x.to(number)).double() - exact).abs().max()) <= allowed * float(exact.abs().max() + 1)
    # and the weights shown are the given ones, to the type's own rounding
    step = weight.abs().amax(1, keepdim=True)
    most = {
        "float32": 0.0,
        "bfloat16": 2.0**-8,
        "float16": 2.0**-11,
        "int8": 0.51 / int8_weight_levels(),
        "int4": 1.1 / 15,
    }[dtype]
    assert bool(((shown - weight).abs() <= most * step).all())


def test_int8_is_exact_where_whole_numbers_are_enough() -> None:
    random = torch.Generator().manual_seed(0)
    most = int8_weight_levels()
    weight = torch.randint(-most, most + 1, (8, 16), generator=random).float()
    x = torch.randint(-127, 128, (5, 16), generator=random).float()
    weight[:, 0], x[:, 0] = most, -127  # so that every scale is 1
    assert torch.equal(Int8Linear(weight)(x), x @ weight.T)


LARGEST = """
import torch
from heedful.kernels.prepacked_linear import Int8Linear, int8_weight_levels
weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
packed, rows = Int8Linear(weight), weight[:5].sign() * 127
exact = rows.double() @ packed.weight.double().T
print(int8_weight_levels(), (packed(rows).double() - exact).abs().max().item() / exact.abs().max().item() < 1e-6)
"""


@pytest.mark.parametrize("kernels", ["DEFAULT", "AVX2"])
def test_int8_sums_do_not_overflow_whichever_kernel_runs(kernels: str) -> None:
    """oneDNN's switch takes the kernels of another processor: those without VNNI add two products in 16 bits."""
    done = fresh_process.run(LARGEST, env={**os.environ, "ONEDNN_MAX_CPU_ISA": kernels})
    levels, is_exact = done.stdout.split()
    assert is_exact == "True"
    assert levels == "63" or kernels == "DEFAULT"


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4"])
@pytest.mark.parametrize("count", [1, 2, 3, FEW, 9])
def test_a_row_gives_the_same_alone_and_beside_others(dtype: str, count: int) -> None:
    kind = LINEAR_CLASSES[dtype][0]
    assert kind is not None
    packed = kind(torch.randn(64, 64, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(count, 64, generator=torch.Generator().manual_seed(1)) * torch.arange(1, count + 1)[:, None]
    together = packed(x)
    assert together.shape == (count, 64)
    for i in range(count):  # float16's kernel sums in another order without AVX512
        assert_close(packed(x[i]), together[i], "gradient" if dtype == "float16" else "forward")


def test_nothing_is_packed_of_no_rows() -> None:
    assert FloatLinear(torch.ones(3, 4))(torch.ones(0, 4)).shape == (0, 3)


def test_a_row_of_zeros_is_no_number_short() -> None:
    bias = torch.tensor([1.0, 2.0])
    assert torch.equal(Int8Linear(torch.zeros(2, 32), bias)(torch.zeros(1, 32)), bias[None])
    assert torch.equal(Int4Linear(torch.zeros(2, 32), bias)(torch.zeros(1, 32)), bias[None])


def test_packed_weights_are_no_parameters_and_are_counted() -> None:
    model = small("gpt2")
    count = model.num_parameters()
    optimize(model, "int8", compiled_decoding=False)
    assert model.num_parameters() == count
    assert model.num_parameters(trainable_only=True) == 0
    assert {type(part) for part in model.modules() if isinstance(part, PrepackedLinear)} == {Int8Linear}
    assert not [name for name, _ in model.named_parameters() if name.endswith("up.weight")]


def test_labels_keep_whole_weights() -> None:
    """Few outputs decide much and cost little: a classifier's own maps are not rounded."""
    plain = heedful.create("bert-tiny", head="sequence", num_labels=3, seed=0)
    model = optimize(plain, "int8", compiled_decoding=False)
    kinds = {path: type(part) for path, part in model.named_modules() if isinstance(part, PrepackedLinear)}
    assert {kind for path, kind in kinds.items() if path.startswith("head.")} == {FloatLinear}
    assert {kind for path, kind in kinds.items() if ".block." in path} == {Int8Linear}


def test_generation_of_a_prepared_model() -> None:
    for name in ("gpt2", "marian", "tinyllama-1.1b"):
        plain, fast = small(name).double(), optimize(small(name), "float64")
        ids, mask = torch.randint(3, 101, (3, 6)), torch.tensor([[1] * 6, [1] * 2 + [0] * 4, [0] * 3 + [1] * 3]).bool()
        for options in ({}, {"num_beams": 3}, {"do_sample": True, "seed": 5}):
            settings: dict[str, Any] = {"max_new_tokens": 12, **options}
            assert torch.equal(plain.generate(ids, mask, **settings), fast.generate(ids, mask, **settings))


def test_records_are_the_same() -> None:
    ids = torch.randint(3, 101, (2, 7))
    plain, fast = small("gpt2").double(), optimize(small("gpt2"), "float64")
    names = ["pattern", "query", "key", "value", "mixed", "activation", "sum", "hidden", "logits"]
    with torch.inference_mode(), heedful.record(plain, names) as wanted, heedful.record(fast, names) as given:
        plain(ids), fast(ids)
    assert wanted.keys() == given.keys()
    for path, tensor in wanted.items():
        assert_close(given[path], tensor, msg=path)


def test_an_adapter_is_merged() -> None:
    model = add_adapter(small("bert-base"), LoraConfig(rank=2, targets=("all",)))
    for part in model.modules():
        if hasattr(part, "lora_b"):
            nn.init.normal_(part.lora_b, std=0.1)
    merged = small("bert-base")
    merged.load_state_dict(merge(deepcopy(model)).state_dict())
    fast = optimize(model, "float32")
    assert fast.adapter is None
    with torch.inference_mode():
        assert_close(asked(fast)(), asked(merged)())


# -------------------------------------------------------------------------------------------------------------- refused


def test_it_is_for_answering_alone(tmp_path: Path) -> None:
    model = optimize(small("gpt2"))
    for call in (
        lambda: model.save_pretrained(tmp_path / "out"),
        lambda: prune(model, layers=[0]),
        lambda: add_adapter(model, LoraConfig()),
        lambda: heedful.summary(model),
    ):
        with pytest.raises(heedful.HeedfulError, match=r"optimised for inference, in float32.*from_pretrained"):
            call()
    assert not (tmp_path / "out").exists()
    with pytest.raises(heedful.HeedfulError, match="already optimised, in float32"):
        optimize(model, "int8")
    with pytest.raises(heedful.HeedfulError, match="no gradients"):
        model.decoder(torch.randn(1, 3, 32, requires_grad=True))
    with pytest.raises(heedful.HeedfulError, match="self-attention only"):
        model.decoder.block[0].attention(torch.randn(1, 3, 32), torch.randn(1, 4, 32))


@pytest.mark.parametrize(
    ("dtype", "says"),
    [
        ("int3", r"can be optimised to dtype 'int3'; did you mean '?int\d"),
        ("float8", "can be optimised to dtype 'float8'"),
        ("complex64", "can be optimised to dtype 'complex64'"),
    ],
)
def test_unknown_types(dtype: str, says: str) -> None:
    with pytest.raises(heedful.HeedfulError, match=says):
        optimize(small("gpt2"), dtype)


def test_refused_weights_leave_the_model_as_it_was() -> None:
    model = small("gpt2")
    with torch.no_grad():
        model.decoder.block[1].feed_forward.up.weight[0, 0] = 1e6
    with pytest.raises(
        heedful.HeedfulError, match=r"decoder\.block\.1\.feed_forward\.up: a weight of 1e\+06 is too large"
    ):
        optimize(model, "float16")
    assert type(model.decoder.block[0].attention) is Attention
    odd = heedful.create(replace(model.config, decoder=replace(model.config.decoder, ff_dim=50)), seed=0)
    with pytest.raises(
        heedful.HeedfulError, match=r"feed_forward\.down: int4 needs a multiple of 32 input features, not 50"
    ):
        optimize(odd, "int4")
    assert not odd.optimised


# --------------------------------------------------------------------------------------- doors, and without it


def test_the_doors(tmp_path: Path) -> None:
    small("gpt2").save_pretrained(tmp_path)
    for dtype in ("int8", "int4"):
        model = heedful.from_pretrained(tmp_path, dtype=dtype)
        assert model.optimised == dtype
        assert not model.training
    assert heedful.from_pretrained(tmp_path).optimised == ""
    with pytest.raises(heedful.HeedfulError, match="did you mean 'int4'"):
        heedful.from_pretrained(tmp_path, dtype="int9")


def test_direct_maps_for_a_while() -> None:
    model = small("gpt2")
    ids = torch.randint(3, 101, (2, 5))
    wanted = model(ids)
    up = model.decoder.block[0].feed_forward.up
    with decoding_kernels(model):
        assert up.linear is onednn_linear
        outside = model(ids)
        with torch.inference_mode():
            inside = model(ids)
        assert outside.requires_grad  # whoever trains between two steps of a stream has gradients
    assert up.linear is F.linear
    assert torch.equal(outside, wanted)
    assert_close(inside, wanted)
    own = Linear(3, 3)
    vars(own)["forward"] = lambda x: x + 1
    with torch.inference_mode(), decoding_kernels(own):
        assert torch.equal(own(torch.zeros(1, 3)), torch.ones(1, 3))
    assert torch.equal(own(torch.zeros(1, 3)), torch.ones(1, 3))


def test_fused_attention_has_the_heads_of_the_old() -> None:
    own = Attention(24, heads=6, kv_heads=2, head_dim=8, bias="qkv", qk_norm="head").eval()
    fused = FusedAttention(own, lambda weight, bias: FloatLinear(weight, bias)).eval()
    x = torch.randn(2, 5, 24)
    with torch.inference_mode():
        assert_close(fused(x, mask="causal"), own(x, mask="causal"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
def test_weights_that_lie_turned_are_the_same_weights(dtype: str) -> None:
    """As GPT-2's files have them: read across, a kernel that expects rows multiplies by other numbers."""
    can_pack(dtype)
    kind, number = LINEAR_CLASSES[dtype][0], torch.bfloat16 if dtype == "bfloat16" else torch.float32
    assert kind is not None
    weight = torch.randn(64, 96, generator=torch.Generator().manual_seed(0)).to(number)
    turned = weight.t().contiguous().t()
    assert not turned.is_contiguous()
    for count in (1, 5):
        x = torch.randn(count, 96, generator=torch.Generator().manual_seed(1)).to(number)
        assert torch.equal(kind(turned)(x), kind(weight)(x))


def test_turned_weights_are_laid_row_after_row_by_direct() -> None:
    linear, x = Linear(8, 6), torch.randn(3, 8)
    linear.weight = nn.Parameter(torch.randn(8, 6).t())
    wanted, values = linear(x), linear.weight.detach().clone()
    with torch.inference_mode(), decoding_kernels(linear):
        for given in (x, x[:1]):
            assert_close(linear(given), wanted[: len(given)])
    assert linear.weight.is_contiguous()
    assert torch.equal(linear.weight, values)
    linear(x).sum().backward()  # and it learns on
    assert linear.weight.grad is not None


def test_a_copy_is_prepared_like_its_original() -> None:
    """A copied model's activation may be another object, of the same function."""
    model = small("gpt2")
    with torch.inference_mode():
        assert_close(asked(optimize(deepcopy(model)))(), asked(model)())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "int4"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_pickled_map_has_the_same_numbers(dtype: str, is_compiled: bool) -> None:
    can_pack(dtype)
    kind = LINEAR_CLASSES[dtype][0]
    assert kind is not None
    weight, x = torch.randn(70, 96) * 0.1 + 0.3, torch.randn(3, 96)
    number = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    weight, x = weight.to(number), x.to(number)
    if is_compiled and few_rows.compiler() is None:
        pytest.skip("needs g++")
    packed = (
        few_rows.CompiledLinear(kind, weight, activation=F.gelu) if is_compiled else kind(weight, activation=F.gelu)
    )
    expected = packed(x), packed(x.repeat(200, 1))
    for _ in range(2):
        packed = pickle.loads(pickle.dumps(packed))
        if is_compiled:  # its model will prepare it
            assert packed.weights is None
            packed.use(packed.prepared())
        for stored, original in zip(packed.stored_numbers(), kind.numbers(weight), strict=True):
            rounded = torch.float16 if dtype == "float16" else original.dtype
            assert torch.equal(stored.to(rounded), original.to(rounded))
        assert_close(packed(x), expected[0])
        assert_close(packed(x.repeat(200, 1)), expected[1])


@pytest.mark.skipif(few_rows.compiler() is None, reason="needs g++")
def test_a_copy_whose_kernels_are_not_compiled_here_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model = optimize(small("gpt2"), "float32")
    state, expected = pickle.dumps(model), model.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=30)
    with monkeypatch.context() as patched:
        patched.setattr(optimize_model, "is_ready", lambda: False)
        copied = pickle.loads(state)
    assert copied.kernels == "cpu-inference"
    assert copied.compiling is not None
    copied.compiling.thread.join(60)
    assert torch.equal(copied.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=30), expected)
    assert (copied.kernels, copied.compiling) == ("cpu-compiled", None)

    def no_compiler() -> bool:
        raise HeedfulError("no compiler")

    monkeypatch.setattr(optimize_model, "is_ready", no_compiler)
    copied = pickle.loads(state)
    assert torch.equal(copied.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=30), expected)
    assert (copied.kernels, copied.compiling) == ("cpu-inference", None)
    monkeypatch.undo()
    again = pickle.loads(pickle.dumps(copied))  # which waited
    assert (again.kernels, again.compiling) == ("cpu-compiled", None)
    assert torch.equal(again.generate(torch.tensor([[5, 7, 9]]), max_new_tokens=30), expected)


def test_a_model_goes_to_a_process_that_begins_anew() -> None:
    model = optimize(small("gpt2"))
    ids = torch.tensor([[5, 7, 9]])
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(generated, model, ids.tolist()).result() == model.generate(ids, max_new_tokens=8).tolist()


def generated(model: Any, ids: list[list[int]]) -> list[list[int]]:
    found: list[list[int]] = model.generate(torch.tensor(ids), max_new_tokens=8).tolist()
    return found


@pytest.fixture(params=[False, True], ids=["another's", "Intel's"])
def intel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whose processor this is taken for."""
    monkeypatch.setattr("heedful.kernels.onednn_linear.is_intel_with_mkl", lambda: request.param)
    return bool(request.param)


@pytest.mark.usefixtures("intel")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_odd_number_of_outputs(count: int) -> None:
    """One row is multiplied in as many parts as there are threads; what is left over is not lost."""
    linear = Linear(32, 61)
    x = torch.randn(count, 32)
    wanted = linear(x).detach()
    with torch.inference_mode(), decoding_kernels(linear):
        assert_close(linear(x[None])[0], wanted)
    with torch.inference_mode():
        assert_close(FloatLinear(linear.weight, linear.bias)(x), linear(x))
        assert_close(FloatLinear(linear.weight[:1])(x), linear(x)[:, :1] - linear.bias[:1])


def test_mkl_multiplies_the_rows_that_it_is_fastest_for(intel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    by_mkl = onednn.mkl_product

    def counted(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        taken.append(len(rows))
        return by_mkl(rows, weight, bias)

    for module in (onednn, prepacked_linear):
        monkeypatch.setattr(module, "mkl_product", counted)
    linear = Linear(8, 6)
    packed = FloatLinear(linear.weight, linear.bias)
    with torch.inference_mode(), decoding_kernels(linear):
        for count in range(1, 6):
            assert_close(linear(torch.ones(count, 8)), packed(torch.ones(count, 8)))
    few = [1, 2, 3] if intel else [1]
    assert taken == (sorted(2 * few) if torch.backends.mkl.is_available() else [])


@pytest.mark.parametrize(("vendor", "mkl"), [("GenuineIntel", True), ("GenuineIntel", False), ("AuthenticAMD", True)])
@pytest.mark.parametrize("listed", [True, False], ids=["listed", "told"])
def test_an_intel_processor_is_one_with_mkl(
    vendor: str, mkl: bool, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, encoding: str) -> str:
        if not listed:
            raise FileNotFoundError(path)
        return f"processor : 0\nvendor_id : {vendor}\n"

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr("platform.processor", lambda: f"Intel64 Family 6 Model 167 Stepping 1, {vendor}")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    assert onednn.is_intel_with_mkl.__wrapped__() == (vendor == "GenuineIntel" and mkl)
