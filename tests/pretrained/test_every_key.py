"""No key of a published configuration is passed over: whatever it says, we compute it or refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import CASES, reference, write

from heedful import HeedfulError
from heedful.pretrained import load, save
from tolerances import assert_same_model, is_close

OF_NO_MATTER = ("architectures", "model_type", "transformers_version", "dtype")
# keys that their configurations take from a file without naming them
BESIDE: dict[str, list[Any]] = {
    "is_causal": [False],
    "num_attention_heads": [2],
    "head_dim": [4, 8],
    "dense_act_fn": ["silu"],
    "is_gated_act": [True],
    "rope_theta": [77.0],
    "partial_rotary_factor": [0.5],
    "rotary_pct": [0.5],
    "rotary_emb_base": [77.0],
    "rope_scaling": [{"rope_type": "linear", "factor": 2.0}],
    "original_max_position_embeddings": [3],
    "layer_types": [["sliding_attention"] * 2],
    "use_bidirectional_attention": [True],
    "tie_encoder_decoder": [True],
    "conv_kernel_size": [3],
    "embedding_size": [8],
    "attention_head_size": [4, 8],
    "summary_proj_to_labels": [True],
    "slow_but_exact": [True],
    "n_embed": [32],
    "_remove_final_layer_norm": [True],
}
NAMES = (
    "gpt2",
    "gpt_neox",
    "gptj",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "phi3",
    "olmo2",
    "gemma2",
    "bert masked",
    "roberta masked",
    "distilbert sequence",
)
NAMES = (*NAMES, "deberta-v2 masked", "deberta-v2 masked new", "deberta-v2 sequence")
NAMES = (*NAMES, "modernbert masked", "modernbert masked biases", "modernbert sequence")
NAMES = (*NAMES, "camembert masked", "electra masked", "electra sequence")
NAMES = (*NAMES, "albert masked", "albert sequence", "mpnet masked", "mpnet sequence")
NAMES = (*NAMES, "deberta masked", "deberta sequence")
NAMES = (*NAMES, "xlnet language-model", "xlnet sequence")
NAMES = (*NAMES, "openai-gpt", "opt", "opt post-norm", "bloom", "bloom token")
NAMES = (
    *NAMES,
    "t5",
    "bart",
    "mbart",
    "m2m_100",
    "pegasus",
    "mt5",
    "switch_transformers",
    "marian",
    "vit image",
    "deit image",
    "ijepa image",
    "dinov2 image",
    "dinov2 gated",
)
PARTS = ("encoder", "decoder")  # configurations in another
CAPTIONERS = ("vision-encoder-decoder", "vision-encoder-decoder deit")


def others(value: Any) -> list[Any]:
    """Other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [other for other in (max(1, value // 2), value * 2, value + 1) if other != value]
    if isinstance(value, float):
        return [0.37]
    return ["relu", "silu"] if isinstance(value, str) else []


def inputs(config: Any) -> tuple[torch.Tensor, ...]:
    """Inputs for a model of this configuration; no id is that of a special token."""
    if hasattr(config, "encoder"):
        return (*inputs(config.encoder), torch.tensor([[10, 6, 9, 14, 5]]))
    if hasattr(config, "num_channels"):
        size = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
        return (torch.linspace(-1, 1, config.num_channels * size[0] * size[1]).view(1, config.num_channels, *size),)
    source, target = torch.tensor([[9, 5, 12, 6, 8, 7]]), torch.tensor([[10, 6, 9, 14, 5]])
    return (source, target) if config.is_encoder_decoder else (source,)


def theirs_say(
    made: Any, folder: Path, state: dict[str, torch.Tensor], given: tuple[torch.Tensor, ...]
) -> torch.Tensor | None:
    """Their output with the folder's configuration, or None where they do not open it with these weights."""
    try:
        model = made(made.config_class.from_pretrained(folder)).eval()
        model.load_state_dict(state)
        names = (model.main_input_name, "decoder_input_ids")
        return model(**dict(zip(names, given, strict=False))).logits
    except Exception:  # whatever a configuration that makes no sense leads them to
        return None


def ours_say(folder: Path, given: tuple[torch.Tensor, ...]) -> torch.Tensor | None:
    try:
        return load(folder)(*given)
    except HeedfulError:
        return None


class Folder:
    """A folder of theirs, whose configuration is changed a key at a time.

    Unless ``every`` is set, a key is tried until they open the folder with another value.
    """

    def __init__(self, name: str, path: Path, every: bool) -> None:
        model = reference(name).float().eval()
        write(name, path)
        self.path, self.made, self.state, self.every = path, CASES[name][0], model.state_dict(), every
        self.told = json.loads((path / "config.json").read_text())
        self.given, self.compared = inputs(model.config), 0

    def assert_followed_or_refused(self, key: str, values: list[Any], part: str = "") -> None:
        for instead in values if key not in OF_NO_MATTER else ():
            changed = {part: self.told[part] | {key: instead}} if part else {key: instead}
            (self.path / "config.json").write_text(json.dumps(self.told | changed))
            theirs = theirs_say(self.made, self.path, self.state, self.given)
            if theirs is None:
                continue
            ours = ours_say(self.path, self.given)
            if ours is not None:
                assert is_close(ours, theirs), f"{part} {key} = {instead!r} is passed over"
                self.compared += 1
            if not self.every:
                return


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return Folder(request.param, tmp_path, request.config.getoption("--full"))


@pytest.mark.parametrize("folder", NAMES, indirect=True)
@torch.no_grad()
def test_every_key_is_followed_or_refused(folder: Folder) -> None:
    values = {key: others(value) for key, value in {**folder.made.config_class().to_dict(), **folder.told}.items()}
    for key, found in (*values.items(), *BESIDE.items()):
        folder.assert_followed_or_refused(key, found)
    assert folder.compared > 10


@pytest.mark.parametrize(("folder", "name"), [(name, name) for name in CAPTIONERS], indirect=["folder"])
@torch.no_grad()
def test_every_key_of_a_configuration_in_another_is_followed_or_refused(folder: Folder, name: str) -> None:
    for part in PARTS:
        own = getattr(reference(name).config, part).to_dict() | folder.told[part]
        values = {key: others(value) for key, value in own.items()} | BESIDE
        values |= {"scale_attn_by_inverse_layer_idx": [True], "cross_attention_hidden_size": [16]}
        for key, found in values.items():
            folder.assert_followed_or_refused(key, found, part)
    assert folder.compared > 40


UNKNOWN = {"task_specific_params": {"a": {"prefix": "b: "}}, "my_key": [1, {"two": None}]}
REWRITTEN = ("transformers_version", "dtype")
OTHERWISE = ("n_inner", "head_dim", "max_window_layers")  # null as the number it stands for, and of no window 0 for 28
ELSEWHERE = ("id2label", "label2id", "forced_eos_token_id")  # of a head with labels; in generation_config.json


@pytest.mark.parametrize("name", [*NAMES, *CAPTIONERS])
@torch.no_grad()
def test_every_key_that_comes_in_goes_out(name: str, tmp_path: Path) -> None:
    """Those of their own files, and keys that nobody knows; what we write means the same model to both programs."""
    write(name, tmp_path / "in")
    path = tmp_path / "in" / "config.json"
    told = json.loads(path.read_text()) | UNKNOWN
    if name == "marian":
        told["max_position_embeddings"] = 512
    for part in PARTS if name in CAPTIONERS else ():
        told[part] |= UNKNOWN
    path.write_text(json.dumps(told))
    model = load(tmp_path / "in")
    save(model, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "config.json").read_text())
    defaults = CASES[name][0].config_class().to_dict()
    for key, value in told.items():
        if key in PARTS:
            own = getattr(reference(name).config, key).to_dict()
            assert all(back[key].get(k, own.get(k)) == v for k, v in value.items() if k not in OTHERWISE), key
        elif key not in (*REWRITTEN, *OTHERWISE, *ELSEWHERE):
            assert back.get(key, defaults.get(key)) == value, key
    again = load(tmp_path / "out")
    given = inputs(reference(name).config)
    assert_same_model(again, model, *given)
    save(again, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == back
    if (tmp_path / "in" / "generation_config.json").exists():
        says = [json.loads((tmp_path / where / "generation_config.json").read_text()) for where in ("in", "out")]
        assert {k: v for k, v in says[0].items() if k not in ("_from_model_config", "transformers_version")} == says[1]


def test_keys_that_another_head_contradicts_stay_behind(tmp_path: Path) -> None:
    write("bert masked", tmp_path / "in")
    model = load(tmp_path / "in", head="sequence", num_labels=3)
    save(model, tmp_path / "out")
    back = json.loads((tmp_path / "out" / "config.json").read_text())
    assert back["architectures"] == ["BertForSequenceClassification"]
    assert len(back["id2label"]) == 3
    assert load(tmp_path / "out").config == model.config
