"""Every model type and head against tiny random ``transformers`` models, there and back."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from tiny_models import (
    ALBERT,
    BERT,
    CASES,
    GPT,
    IDS,
    MARIAN,
    THEIR_SLOPES,
    distance,
    masks,
    our_output,
    reference,
    their_output,
    their_table,
)

import heedful
from heedful import presets
from heedful.layers import Alibi
from heedful.pretrained import load, save
from heedful.pretrained.flat_config import flat
from heedful.pretrained.model_types import MODEL_TYPES, express
from heedful.pretrained.rules import SplitProjections


@pytest.fixture
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a case as transformers writes it, once for all tests, which only read it."""
    folder = tmp_path_factory.getbasetemp() / "theirs" / request.param
    if not folder.exists():
        reference(request.param).float().save_pretrained(folder)
    return folder


def every(test: Callable[..., None]) -> Callable[..., None]:
    table = [pytest.param(case, case, id=case) for case in CASES]
    return pytest.mark.parametrize(("case", "stored"), table, indirect=["stored"])(test)


@every
@torch.no_grad()
def test_logits_equal_transformers(case: str, stored: Path) -> None:
    for dtype, allowed in [(torch.float64, 1e-10), (torch.float32, 1e-5)]:
        ours = load(stored, dtype=dtype)
        for mask in masks(case).values():
            theirs = their_output(reference(case), mask, dtype)
            assert distance(our_output(ours, mask), theirs, mask) <= allowed


@every
@torch.no_grad()
def test_our_folders_open_strictly_in_transformers(case: str, stored: Path, tmp_path: Path) -> None:
    ours = load(stored)
    assert save(ours, tmp_path / "ours") == case.split()[0]
    made = CASES[case][0]
    theirs, info = made.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    for mask in masks(case).values():
        assert distance(our_output(ours, mask), their_output(theirs.eval(), mask, torch.float32), mask) <= 1e-5
    for key, value in CASES[case][1].items():  # names and dropouts too
        if (case, key) not in SAID_OTHERWISE and (case.split()[0], key) not in SAID_OTHERWISE:
            found = getattr(theirs.config, key)
            found = found.to_dict() if isinstance(found, hf.PreTrainedConfig) else found
            assert found == value or (isinstance(value, dict) and value.items() <= found.items()), key


SAID_OTHERWISE = {
    ("gpt_neox span", "hidden_act"),  # the same function by its newer name
    ("marian unscaled", "activation_function"),  # the same function by its newer name
    ("marian", "max_position_embeddings"),  # ours has no end
    ("m2m_100", "max_position_embeddings"),
    ("t5 gated", "tie_word_embeddings"),  # their class takes it for "no scale" and forgets it
    ("switch_transformers full", "num_sparse_encoder_layers"),  # of two layers 0 and 1 mean the second
    ("distilbert", "sinusoidal_pos_embds"),  # how the stored rows began
}


@every
def test_there_and_back_is_bit_equal(case: str, stored: Path, tmp_path: Path) -> None:
    save(load(stored), tmp_path / "once")
    save(load(tmp_path / "once"), tmp_path / "twice")
    theirs, once, twice = (load_file(f / "model.safetensors") for f in (stored, tmp_path / "once", tmp_path / "twice"))
    assert theirs.keys() == once.keys()  # ties stored once, as transformers does
    assert all(torch.equal(theirs[name], once[name]) for name in theirs)
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "once" / file).read_bytes() == (tmp_path / "twice" / file).read_bytes()
    assert once.keys() == twice.keys()


def test_pooler_is_optional(tmp_path: Path) -> None:
    model = hf.BertModel(hf.BertConfig(**BERT), add_pooling_layer=False)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert not ours.config.head.pooler
    save(ours, tmp_path / "ours")
    assert load_file(tmp_path / "ours" / "model.safetensors").keys() == model.state_dict().keys()


def test_a_new_head_on_a_body_that_was_trained_on_masked_patches(tmp_path: Path) -> None:
    """It reads what that layout's classifier reads, so that theirs opens the model."""
    reference("dinov2").float().save_pretrained(tmp_path / "body")
    ours = load(tmp_path / "body", head="image", num_labels=3).eval()
    assert save(ours, tmp_path / "ours") == "dinov2"
    theirs = hf.Dinov2ForImageClassification.from_pretrained(tmp_path / "ours").eval()
    x = torch.randn(2, 2, 12, 12)
    with torch.no_grad():
        assert distance(ours(x), theirs(x).logits, None) <= 1e-5


def test_zero_logits_bias_is_none(tmp_path: Path) -> None:
    reference("marian").save_pretrained(tmp_path)
    assert load(tmp_path).config.head.bias
    model = hf.MarianMTModel(hf.MarianConfig(**MARIAN))
    model.save_pretrained(tmp_path)
    assert not load(tmp_path).config.head.bias


@pytest.mark.parametrize(("made", "settings"), [(hf.BertForPreTraining, BERT), (hf.AlbertForPreTraining, ALBERT)])
def test_pretraining_class_reads_as_masked_language_model(made: Any, settings: Any, tmp_path: Path) -> None:
    theirs = made(made.config_class(**settings)).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        ours = load(tmp_path)(IDS)
        assert distance(ours, theirs(input_ids=IDS).prediction_logits, None) <= 1e-5


def test_slopes_of_any_number_of_heads() -> None:
    for heads in range(1, 131):
        theirs = THEIR_SLOPES(heads, torch.device("cpu"))
        assert torch.allclose(torch.tensor(Alibi(heads).slopes), theirs, rtol=2e-6, atol=0)


def test_class_of_two_heads_reads_as_language_model(tmp_path: Path) -> None:
    theirs = hf.OpenAIGPTDoubleHeadsModel(hf.OpenAIGPTConfig(**GPT)).eval()
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        assert distance(load(tmp_path)(IDS), theirs(input_ids=IDS).logits, None) <= 1e-5


@pytest.mark.parametrize("case", ["marian", "marian apart"])
def test_older_files_with_copies_of_tied_weights_and_tables(case: str, tmp_path: Path) -> None:
    theirs = reference(case)
    state = {name: tensor.clone() for name, tensor in theirs.state_dict().items()}
    assert {"lm_head.weight", "model.encoder.embed_positions.weight"} <= state.keys()
    theirs.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["MarianMTModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(state, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5
    state["lm_head.weight"][0, 0] += 1
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(heedful.HeedfulError, match=r"lm_head.weight are one tensor .* different values"):
        load(tmp_path)


def test_sinusoids_of_m2m_100(tmp_path: Path) -> None:
    """Their own table, of powers in float32: position 0 has the row after the padding's."""
    reference("m2m_100 silu").save_pretrained(tmp_path)
    position = load(tmp_path).encoder.position
    rows = position.embed(torch.zeros(1, 500, 16), torch.arange(500)[None])[0]
    torch.testing.assert_close(rows, their_table(504, 16, 3)[4:], rtol=0, atol=1e-4)
    assert position.offset == 4


def test_pegasus_tables_may_be_absent_and_no_others(tmp_path: Path) -> None:
    theirs = reference("pegasus")
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    name = "model.decoder.embed_positions.weight"
    torch.save({key: tensor for key, tensor in state.items() if key != name}, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5
    torch.save(state | {name: state[name] + 0.1}, tmp_path / "pytorch_model.bin")
    with pytest.raises(heedful.HeedfulError, match=r"decoder\.embed_positions\.weight is not the table of sinusoids"):
        load(tmp_path)


@pytest.mark.parametrize("case", ["gpt2", "openai-gpt", "bert masked"])
def test_older_names(case: str, tmp_path: Path) -> None:
    """GPT's and GPT-2's files on the Hub have no prefix and hold masks; BERT's has gamma, beta and its position ids."""
    theirs = reference(case)
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state = {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, name in old.items():
        state = {key.replace(new, name): tensor for key, tensor in state.items()}
    computed = "bert.embeddings.position_ids" if case == "bert masked" else "h.0.attn.bias"
    (tmp_path / "model.safetensors").unlink()
    torch.save(state | {computed: torch.ones(1)}, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5


OLDER_KEYS = {
    "gpt_neox": {"rotary_pct": 0.5, "rotary_emb_base": 77},
    "phi3": {"partial_rotary_factor": 0.75, "rope_theta": 77.0},
    "modernbert": {"global_rope_theta": 50.0, "local_rope_theta": 20.0, "global_attn_every_n_layers": 2},
}


@pytest.mark.parametrize("case", OLDER_KEYS)
def test_older_keys(case: str, tmp_path: Path) -> None:
    """Files of before transformers 5 have a key for each number of the rotary positions and windows."""
    reference(case).float().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config = {key: value for key, value in config.items() if key not in ("rope_parameters", "layer_types")}
    (tmp_path / "config.json").write_text(json.dumps(config | OLDER_KEYS[case]))
    theirs, ours = CASES[case][0].from_pretrained(tmp_path).eval(), load(tmp_path)
    with torch.no_grad():
        expected = their_output(theirs, None, torch.float32)
        assert distance(our_output(ours, None), expected, None) <= 1e-5
        assert distance(expected, their_output(reference(case), None, torch.float32), None) > 1e-3


def test_older_names_of_gpt_neox(tmp_path: Path) -> None:
    """Its files hold masks and frequencies."""
    theirs = reference("gpt_neox").float()
    theirs.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    computed = ("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq")
    state |= {f"gpt_neox.layers.{i}.{name}": torch.ones(1) for i in range(2) for name in computed}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    with torch.no_grad():
        assert distance(our_output(load(tmp_path), None), their_output(theirs, None, torch.float32), None) <= 1e-5


LAPTOP = ["transformer-tiny", "transformer-small", "gpt-mini", "gpt-micro", "bert-mini", "bert-tiny"]


@pytest.mark.parametrize("name", [*LAPTOP, "vit-mini", "vit-micro", "captioner-micro"])
@torch.no_grad()
def test_laptop_presets_open_in_transformers(name: str, tmp_path: Path) -> None:
    ours = heedful.create(name, seed=0).eval()
    assert save(ours, tmp_path) != "heedful"
    made = getattr(hf, json.loads((tmp_path / "config.json").read_text())["architectures"][0])
    theirs, info = made.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    other = ("embed_positions", "encoder.pooler")  # computed; read by nothing, and zeros in ours
    stored = [p.numel() for name, p in theirs.named_parameters() if not any(word in name for word in other)]
    assert sum(stored) == ours.num_parameters()


def test_every_trainable_default_has_a_family() -> None:
    ours = {name: presets.get(name) for name in presets.names() if presets.PRESETS[name][0] == "laptop"}
    assert len(ours) >= 6
    for name, config in ours.items():
        assert express(config) is not None, name


def test_generation_settings(tmp_path: Path) -> None:
    """Token ids and other settings are transformers' own, there and back."""
    theirs = reference("gpt2")
    theirs.generation_config.num_beams = 3
    theirs.save_pretrained(tmp_path / "theirs")
    theirs.generation_config.num_beams = 1
    ours = load(tmp_path / "theirs")
    assert ours.config.special.end == (2, 3)
    assert ours.config.special.start == 1
    assert ours.generation["num_beams"] == 3
    save(ours, tmp_path / "ours")
    back = hf.GenerationConfig.from_pretrained(tmp_path / "ours")
    assert (back.bos_token_id, back.eos_token_id, back.pad_token_id, back.num_beams) == (1, [2, 3], 0, 3)


HOMES = {
    "deberta": "deberta_v2",
    "deberta-v2": "deberta_v2",
    "vision-encoder-decoder": "vision_encoder_decoder",
    "mistral": "llama",
    "mt5": "t5",
    "qwen2": "llama",
    "qwen3": "llama",
    "camembert": "roberta",
    "xlm-roberta": "roberta",
    "openai-gpt": "openai_gpt",
}


@pytest.mark.parametrize("name", MODEL_TYPES)
def test_families_are_data(name: str) -> None:
    tree = ast.parse(
        Path(import_module(f"heedful.pretrained.model_types.{HOMES.get(name, name)}").__file__ or "").read_text()
    )
    code = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.If, ast.IfExp, ast.For, ast.comprehension)
    assert not [node for node in ast.walk(tree) if isinstance(node, code)]


def test_rows_are_split_by_head() -> None:
    """The rows of query, key and value of the first head, then those of the second: there and back."""
    rule = SplitProjections("both", ("q", "k", "v"), by_group=True, stack="encoder").sized(flat(presets.bert(4, 1, 2)))
    stored = {"both": torch.arange(12.0)[:, None]}
    loaded: dict[str, torch.Tensor] = {}
    rule.read(stored, loaded)
    assert {name: rows.flatten().tolist() for name, rows in loaded.items()} == {
        "q": [0, 1, 6, 7],
        "k": [2, 3, 8, 9],
        "v": [4, 5, 10, 11],
    }
    rule.write(loaded, stored)
    assert stored["both"].flatten().tolist() == list(range(12))
