"""Adapters from the command line: trained on a folder's model, resumed, asked, opened with PEFT, and gone on with."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import heedful
from heedful import cli
from heedful.adapters import LowRank, low_rank_parts, merge
from heedful.training import Checkpoints
from test_every_task import MADE
from tolerances import assert_close

pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing")  # PEFT asks for it by its old name
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SMALL = ["--model.dim=16", "--model.heads=2", "--model.depth=2", "--training.log-every=10"]
EVERY = ["--training.evaluate-every=10", "--training.log-every=5"]
WEIGHTS = "adapter_model.safetensors"


def texts(path: Path, words: tuple[str, ...]) -> str:
    lines = [f"{a} {words[i % len(words)]} {b},{words[i % len(words)]}" for i, (a, b) in enumerate(PAIRS)]
    path.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


PAIRS = [(a, b) for a in ("one", "two", "three", "four", "five", "six") for b in ("red", "blue", "green", "grey")] * 3


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files, a classifier and a language model to go on from, and an adapter of the first."""
    desk = tmp_path_factory.mktemp("desk")
    first, second = texts(desk / "first.csv", ("yes", "no")), texts(desk / "second.csv", ("cat", "cow", "bee"))
    (desk / "book.txt").write_text("\n".join(f"{a} and {b}" for a, b in PAIRS * 4), encoding="utf-8")
    base = ["--train", first, "--out", str(desk / "base"), "--tokenizer.size=150", "--max-steps=4", *SMALL]
    assert cli.main(["train", "text-classification", *base]) == 0
    book = [
        "--train",
        str(desk / "book.txt"),
        "--out",
        str(desk / "writer"),
        "--preset=gpt-micro",
        "--max-steps=3",
        *SMALL,
    ]
    assert cli.main(["train", "text-generation", *book]) == 0
    assert cli.main([*adapting(desk, "--max-steps=20"), "--train", second]) == 0
    return desk


def adapting(desk: Path, *more: str, out: str = "adapter") -> list[str]:
    options = ["--from", str(desk / "base"), "--lora.rank=3", "--out", str(desk / out), *EVERY]
    return ["train", "text-classification", *options, *more]


def trained(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / WEIGHTS)


def test_files_of_an_adapter_run(desk: Path) -> None:
    for folder in (desk / "adapter", desk / "adapter" / "last"):
        there = {path.name for path in folder.iterdir()}
        assert there >= {"adapter_config.json", WEIGHTS, "config.json", "tokenizer.json", "heedful.json"}
        assert "model.safetensors" not in there
    told = json.loads((desk / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str((desk / "base").resolve())
    assert (told["r"], told["lora_alpha"], told["lora_dropout"], told["task_type"]) == (3, 6, 0.05, "SEQ_CLS")
    settings = json.loads((desk / "adapter" / "heedful.json").read_text())["settings"]
    assert settings["lora"] == {"rank": 3, "alpha": 6.0, "dropout": 0.05, "targets": ["query", "value"]}


def test_the_learning_rate_is_ten_times_that_of_whole_weights(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = ["--train", str(desk / "second.csv"), "--from", str(desk / "base"), "--out", str(desk / "whole")]
    assert cli.main(["train", "text-classification", *second, "--max-steps=1"]) == 0
    rates = [
        json.loads((desk / name / "heedful.json").read_text())["settings"]["training"]["lr"]
        for name in ("whole", "adapter")
    ]
    assert rates[1] == pytest.approx(10 * rates[0])


def test_only_the_adapter_and_the_head_are_trained_and_kept(desk: Path) -> None:
    base, model = heedful.from_pretrained(desk / "base"), heedful.from_pretrained(desk / "adapter" / "last")
    before = base.state_dict()
    for name, tensor in model.state_dict().items():
        if not name.startswith("head.output") and "lora_" not in name:
            assert torch.equal(tensor, before[name]), name
    assert model.head.output.weight.shape[0] == 3
    assert any(part.lora_b.any() for part in low_rank_parts(model).values())
    learned = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or name.startswith("head.output") for name in learned)
    state = Checkpoints(desk / "adapter").load()
    assert state["model"].keys() == learned


def test_the_number_of_trained_parameters_is_printed(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["--train", str(desk / "second.csv"), "--max-steps=1"]
    assert cli.main([*adapting(desk, *train, out="said"), "--json"]) == 0
    printed = capsys.readouterr()
    result = json.loads(printed.out)
    model = heedful.from_pretrained(desk / "said")
    number = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert (result["trained"], result["parameters"]) == (number, model.num_parameters())
    assert f"{number:,} of them trained" in printed.err


@torch.no_grad()
def test_peft_opens_it(desk: Path) -> None:
    theirs = peft.AutoPeftModelForSequenceClassification.from_pretrained(
        desk / "adapter", num_labels=3, ignore_mismatched_sizes=True
    ).eval()
    ours = heedful.from_pretrained(desk / "adapter")
    ids = torch.tensor([[1, 4, 10, 15, 2]])
    assert_close(ours(ids), theirs(input_ids=ids).logits, "gradient")


def test_it_is_asked_as_any_model(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert cli.main(["predict", str(desk / "adapter"), "one cow red", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] in ("cat", "cow", "bee")
    assert cli.main(["evaluate", str(desk / "adapter"), "--data", str(desk / "second.csv"), "--json"]) == 0
    accuracy = json.loads(capsys.readouterr().out)["metrics"]["accuracy"]
    merge(heedful.from_pretrained(desk / "adapter")).save_pretrained(desk / "merged")
    for name in ("tokenizer.json", "tokenizer_config.json", "heedful.json"):
        shutil.copy(desk / "adapter" / name, desk / "merged")
    assert cli.main(["evaluate", str(desk / "merged"), "--data", str(desk / "second.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["accuracy"] == accuracy


def test_a_run_taken_up_again_ends_with_the_same_bits(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ["--train", str(desk / "second.csv"), "--max-steps=20"]
    forward, calls = LowRank.forward, [0]

    def stopping(self: LowRank, x: torch.Tensor) -> torch.Tensor:
        calls[0] += self.training
        if calls[0] == 13 * 4 + 2:  # in the middle of a step
            calls[0] += 1
            raise ZeroDivisionError
        return forward(self, x)

    monkeypatch.setattr(LowRank, "forward", stopping)
    assert cli.main(adapting(desk, *train, "--training.save-every=6", out="cut")) == 1
    assert Checkpoints(desk / "cut").load()["numbers"]["step"] == 12
    monkeypatch.undo()
    torch.manual_seed(99)
    assert cli.main(adapting(desk, *train, "--training.save-every=6", "--resume", out="cut")) == 0
    for part in (".", "last"):
        straight, again = trained(desk / "adapter" / part), trained(desk / "cut" / part)
        assert straight.keys() == again.keys()
        assert all(torch.equal(straight[name], again[name]) for name in straight)


@pytest.mark.parametrize(
    ("start", "task"),
    [
        ("base", "text-classification"),
        ("base", "token-classification"),
        ("base", "feature-extraction"),
        ("writer", "text-classification"),
        ("writer", "feature-extraction"),
    ],
)
def test_a_model_without_a_head_gets_the_tasks(
    start: str, task: str, desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The adapter's folder is used where it was made and where it is moved, and trained further; PEFT opens it."""
    body = desk / f"{start} alone"
    if not body.exists():
        heedful.from_pretrained(desk / start, head="none").save_pretrained(body)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(desk / start / name, body)
    make, _, (text, *_) = MADE[task]
    assert callable(make)
    data = make(desk)
    out, train = desk / f"{body.name} {task}", ["train", task, "--train", str(data), "--max-steps=2"]
    assert cli.main([*train, "--from", str(body), "--lora.rank=2", "--out", str(out)]) == 0
    asked = ["--json", "--device=cpu"]
    capsys.readouterr()
    answers = []
    for folder in (out, out / "last", desk / "moved" / out.name):
        if not folder.exists():
            shutil.copytree(out, folder)
        model = heedful.from_pretrained(folder)
        assert model.fresh == []
        assert cli.main(["predict", str(folder), text, *asked]) == 0
        answers.append(json.loads(capsys.readouterr().out)["output"])
        assert cli.main(["evaluate", str(folder), "--data", str(data), *asked]) == 0
        assert json.loads(capsys.readouterr().out)["metrics"]
    assert answers[0] == answers[2]
    auto = {"feature-extraction": "FeatureExtraction", "text-classification": "SequenceClassification"}
    theirs = getattr(peft, f"AutoPeftModelFor{auto.get(task, 'TokenClassification')}").from_pretrained(
        out, **({"num_labels": len(model.labels)} if model.labels else {})
    )
    ids = torch.tensor([[1, 4, 10, 15, 2]])
    theirs.config.pad_token_id = 0
    with torch.no_grad():
        given = theirs.eval()(input_ids=ids)
        ours = model(ids) if model.labels else model.hidden(ids)
    assert_close(ours, given.logits if model.labels else given.last_hidden_state, "gradient")
    again = desk / "again" / out.name
    assert cli.main([*train, "--from", str(desk / "moved" / out.name), "--out", str(again)]) == 0
    assert heedful.from_pretrained(again).adapter is not None


def test_going_on_with_an_adapter_trains_that(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = ["--train", str(desk / "second.csv"), "--from", str(desk / "adapter"), "--out", str(desk / "on")]
    assert cli.main(["train", "text-classification", *second, "--max-steps=3"]) == 0
    before, after = trained(desk / "adapter"), trained(desk / "on")
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    told = json.loads((desk / "on" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == str((desk / "base").resolve())


def test_other_labels_on_an_adapter_train_a_new_head(desk: Path) -> None:
    other = texts(desk / "other.csv", ("up", "down"))
    options = ["--train", other, "--from", str(desk / "adapter"), "--out", str(desk / "other"), "--max-steps=3"]
    assert cli.main(["train", "text-classification", *options]) == 0
    model = heedful.from_pretrained(desk / "other")
    assert list(model.labels) == ["down", "up"]
    assert model.fresh == []


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_language_model_and_its_fused_maps(desk: Path, optimiser: str) -> None:
    """GPT-2's layout: query, key and value are one map; nothing but matrices is trained, with either optimiser."""
    out = desk / f"writes-{optimiser}"
    options = ["--from", str(desk / "writer"), "--lora.rank=2", f"--training.optimiser={optimiser}", "--out", str(out)]
    book = ["--train", str(desk / "book.txt"), "--max-steps=3", "--lora.targets=value,up"]
    assert cli.main(["train", "text-generation", *book, *options]) == 0
    assert {name.split(".", 5)[-1] for name in trained(out)} == {
        f"{place}.lora_{which}.weight" for place in ("attn.c_attn", "mlp.c_fc") for which in "AB"
    }
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(out).eval()
    ours = heedful.from_pretrained(out)
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        assert_close(ours(ids), theirs(input_ids=ids).logits, "gradient")
    assert heedful.pipeline("text-generation", out)("one and", max_new_tokens=3)["output"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lora.rank=4"], "--lora.rank adapts a trained model; name it with --from"),
        (["--from=BASE", "--lora.alpha=4"], "--lora.alpha needs --lora.rank"),
        (["--from=BASE", "--lora.rank=0"], "--lora.rank must be at least 1"),
        (["--from=BASE", "--lora.rank=4", "--lora.targets=query,valu"], "did you mean 'value'?"),
        (["--from=BASE", "--lora.rank=4", "--lora.targets=gate"], "no linear map 'gate'"),
        (["--from=ADAPTER", "--lora.rank=4"], "is an adapter already"),
        (["--from=BASE", "--lora.rank=4", "--lora.dropout=1"], "--lora.dropout must be below 1"),
    ],
    ids=str,
)
def test_options_that_cannot_be(
    desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    places = {"BASE": str(desk / "base"), "ADAPTER": str(desk / "adapter")}
    named = [option.replace("BASE", places["BASE"]).replace("ADAPTER", places["ADAPTER"]) for option in options]
    capsys.readouterr()
    train = ["train", "text-classification", "--train", str(desk / "second.csv"), "--out", str(tmp_path / "new")]
    assert cli.main([*train, *named]) == 2
    error: Any = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert words in error
    assert not (tmp_path / "new").exists()


def test_the_base_is_not_written_over(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(desk / "base", desk / "mine")
    for start in (desk / "mine", desk / "mine" / "last"):
        options = ["--from", str(start), "--lora.rank=3", "--out", str(desk / "mine"), "--overwrite", "--max-steps=1"]
        capsys.readouterr()
        assert cli.main(["train", "text-classification", "--train", str(desk / "second.csv"), *options]) == 2
        assert f"holds {start.resolve()}, which the adapter needs; choose another --out" in capsys.readouterr().err
    assert heedful.from_pretrained(desk / "mine" / "last").adapter is None
    merged = ["--to", "hf", "--out", str(desk / "base"), "--overwrite"]
    assert cli.main(["export", str(desk / "adapter"), *merged]) == 2
    assert "overlaps the adapter's base folder" in capsys.readouterr().err


def test_a_run_is_resumed_with_its_own_adapter(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ["--train", str(desk / "second.csv"), "--max-steps=21", "--resume"]
    capsys.readouterr()
    assert cli.main([*adapting(desk, *train), "--lora.rank=4"]) == 2
    assert "--lora.rank is 4, but the run in" in capsys.readouterr().err
    assert cli.main([*adapting(desk, *train), "--lora.targets=all"]) == 2
    assert "--lora.targets is ('all',), but the run in" in capsys.readouterr().err


def test_pictures_of_another_size_than_the_base_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Positions are interpolated for the run and are no part of the adapter: its folder says for which size."""
    config = hf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4
    )
    hf.ViTForImageClassification(config).save_pretrained(tmp_path / "base")
    hf.ViTImageProcessor(size={"height": 8, "width": 8}).save_pretrained(tmp_path / "base")
    rows = torch.randint(256, (24, 16, 16, 3), generator=torch.Generator().manual_seed(0)).numpy().astype("uint8")
    np.savez(tmp_path / "pictures.npz", images=rows, labels=np.arange(24) % 2)
    out = ["--from", str(tmp_path / "base"), "--lora.rank=2", "--out", str(tmp_path / "run"), "--image.size=16"]
    train = ["train", "image-classification", "--train", str(tmp_path / "pictures.npz"), "--max-steps=2", *out]
    assert cli.main(train) == 0
    assert heedful.from_pretrained(tmp_path / "run").config.patches.image_size == (16, 16)
    assert heedful.from_pretrained(tmp_path / "run", image_size=8).config.patches.image_size == (8, 8)
    assert heedful.pipeline(None, tmp_path / "run", device="cpu")(rows[0])["output"] in ("0", "1")
    base = hf.ViTForImageClassification.from_pretrained(tmp_path / "base", num_labels=2)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "run").eval()
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(pixel_values=pixels, interpolate_pos_encoding=True).logits
        assert_close(heedful.from_pretrained(tmp_path / "run")(pixels), expected, "gradient")
