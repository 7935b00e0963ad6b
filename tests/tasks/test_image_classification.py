"""Image classification: what the data suggests, tensors, the loss by hand, folders that open elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import heedful
from heedful import pretrained as checkpoints
from heedful.config import ImageHead
from heedful.data import LazyImage, Row, Rows
from heedful.errors import HeedfulError
from heedful.models import Model
from heedful.pretrained.preprocessing import Preprocessing
from heedful.settings import ImageSettings, ModelSettings, RunSettings, TrainingSettings, resolve
from heedful.tasks.image_classification import ImageClassification
from heedful.training.run import train
from tolerances import approx, assert_close

LABELS = ["bag", "boot", "coat", "dress", "shirt", "sneaker"]


def rows(count: int = 12, shape: tuple[int, ...] = (8, 8), labels: list[str] = LABELS) -> Rows:
    random = np.random.default_rng(0)
    return Rows(
        Row(
            {
                "image": LazyImage.of(random.integers(0, 256, shape, dtype=np.uint8), f"picture {i}"),
                "label": labels[i % len(labels)],
            },
            "images.npz",
            i + 1,
        )
        for i in range(count)
    )


def settings(image: dict[str, Any] | None = None, **model: Any) -> RunSettings:
    model = {"dim": 16, "heads": 2, "depth": 1, "patch_size": 4} | model
    image = {"size": 8, "channels": 1} | (image or {})
    return RunSettings(
        task="image-classification",
        train=("-",),
        out="-",
        preset="vit-micro",
        image=ImageSettings(**image),
        model=ModelSettings(**model),
    )


def made(asked: RunSettings, data: Rows) -> tuple[ImageClassification, Model]:
    task = ImageClassification.prepare(data, asked)
    model = heedful.create(task.config(asked), seed=0).eval()
    task.before_training(model, asked)
    return task, model


def suggested(data: Rows, **asked: Any) -> RunSettings:
    given = RunSettings(task="image-classification", train=("-",), out="-", **asked)
    return resolve(given, ImageClassification.suggested_settings(data, given))


# ---------------------------------------------------------------------------------------------------- what is suggested


@pytest.mark.parametrize(
    ("shape", "size", "channels"),
    [
        ((28, 28), 28, 1),
        ((32, 32, 3), 32, 3),
        ((8, 8), 8, 1),
        ((20, 24, 3), 24, 3),
        ((480, 640, 3), 64, 3),
        ((64, 64), 64, 1),
        ((29, 29), 32, 1),  # no patch divides 29
        ((3, 3), 3, 1),
    ],
)
def test_small_images_stay_as_they_are(shape: tuple[int, ...], size: int, channels: int) -> None:
    found = suggested(rows(4, shape))
    assert (found.image.size, found.image.channels, found.image.flip) == (size, channels, False)
    assert size % found.model.patch_size == 0
    assert 2 <= size // found.model.patch_size <= 8
    task = ImageClassification.prepare(rows(4, shape), found)
    assert task.config(found).patches.image_size == (size, size)


def test_images_of_several_sizes_or_of_one_colour_picture_among_grey() -> None:
    assert suggested(Rows([*rows(2, (28, 28)), *rows(2, (32, 32))])).image.size == 64
    assert suggested(Rows([*rows(2, (28, 28)), *rows(2, (28, 28, 3))])).image.channels == 3


def test_given_settings_stay() -> None:
    found = suggested(rows(4, (32, 32, 3)), preset="vit-micro")
    assert (found.image.size, found.model.patch_size) == (28, 7)  # the preset's own
    found = suggested(rows(4, (32, 32, 3)), image=ImageSettings(size=48, channels=1, flip=True))
    assert (found.image.size, found.image.channels, found.image.flip) == (48, 1, True)
    assert 48 % found.model.patch_size == 0
    with pytest.raises(HeedfulError, match="image-classification needs a vision model"):
        suggested(rows(4), preset="gpt2")


@pytest.mark.parametrize(
    ("size", "patch"),
    [(8, 4), (16, 4), (24, 6), (28, 7), (32, 8), (48, 8), (64, 8), (96, 12), (128, 16), (224, 16), (384, 16)],
)
def test_four_patches_a_side_or_more_of_larger_images(size: int, patch: int) -> None:
    assert suggested(rows(4), image=ImageSettings(size=size)).model.patch_size == patch


def test_short_runs_warm_up_shortly() -> None:
    assert suggested(rows(100), max_steps=50).training.warmup == 6
    assert suggested(rows(640), max_epochs=3).training.warmup == 4  # of 30 steps


def test_a_patch_that_does_not_divide_the_image() -> None:
    asked = settings({"size": 30}, patch_size=4)
    with pytest.raises(
        HeedfulError, match=r"30 is not a multiple of the patch size 4; change --image.size or --model.p"
    ):
        ImageClassification.prepare(rows(), asked).config(asked)
    prime = suggested(rows(), image=ImageSettings(size=29))  # no patch can be suggested
    task = ImageClassification.prepare(rows(), prime)
    with pytest.raises(HeedfulError, match=r"29 is not a multiple"):
        task.config(prime)


# ------------------------------------------------------------------------------------------------ what is learned first


def test_labels_mean_and_deviation() -> None:
    data = rows(12, (8, 8, 3))
    task = ImageClassification.prepare(data, settings({"channels": 3}))
    values = torch.stack([torch.from_numpy(row.values["image"].pixels()) for row in data]).double() / 255
    assert task.labels == LABELS
    assert task.preprocessing.mean == approx(values.mean((0, 1, 2)).tolist(), "layer")
    assert task.preprocessing.std == approx(values.std((0, 1, 2), correction=0).tolist(), "layer")
    assert ImageClassification.prepare(rows(2000), settings()).preprocessing.mean[0] == pytest.approx(0.5, abs=0.01)


def test_black_images_are_not_divided_by_nothing() -> None:
    black = Rows(Row({"image": LazyImage.of(np.zeros((8, 8), np.uint8)), "label": label}, "f", 1) for label in "ab")
    task, _ = made(settings(), black)
    assert task.collate(task.encode(black).examples)["pixels"].eq(0).all()


def test_one_label_alone_and_several_at_once() -> None:
    with pytest.raises(HeedfulError, match=r"images.npz: only the label 'bag' in 12 rows"):
        ImageClassification.prepare(rows(labels=["bag"]), settings())
    several = Rows([Row({"image": None, "label": ("a", "b")}, "f.jsonl", 3)])
    with pytest.raises(HeedfulError, match=r"f.jsonl:3: the image has 2 labels"):
        ImageClassification.prepare(several, settings())


def test_held_back_images_have_labels_that_training_knows() -> None:
    data = rows(40, labels=["a", "b"])
    rare = Rows([*data, *rows(1, (4, 4), labels=["rare"])])
    for seed in range(30):
        train, held = ImageClassification.split_rows(rare, 0.3, seed)
        assert {row.values["label"] for row in held} <= {row.values["label"] for row in train}
        assert len(train) + len(held) == 41
        assert len(held) > 1


# -------------------------------------------------------------------------------------------------- examples to tensors


def test_without_a_class_token_the_mean_of_the_patches_is_read(tmp_path: Path) -> None:
    data = rows(6, (8, 8))
    task, model = made(settings(class_token=False), data)
    encoded = task.encode(data)
    assert task.lengths(encoded.examples).tolist() == [[4]] * 6  # (8 / 4)² patches alone
    assert made(settings(class_token=True), data)[1].config == made(settings(), data)[1].config
    batch = task.collate(encoded.examples)
    with torch.no_grad():
        hidden, logits = model.hidden(batch["pixels"]), model(batch["pixels"])
    assert_close(logits, model.head.output[0](hidden.mean(1)))
    folder = tmp_path / "model"
    checkpoints.save(model, folder)
    task.save(folder)
    again = ImageClassification.load(folder)
    again.check_model(opened := checkpoints.load(folder))
    assert opened.config == model.config
    (bare := tmp_path / "bare.json").write_text(json.dumps(model.config.to_dict()))  # a preset without a class token
    with_token = replace(settings(class_token=True), preset=str(bare))
    assert made(with_token, data)[1].config.patches.prefix == "class"  # type: ignore[union-attr]  # a vision model's
    assert [answer.output for answer in again.predict(opened.eval(), [row.values["image"] for row in data])] == [
        LABELS[i] for i in logits.argmax(-1)
    ]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForImageClassification.from_pretrained(folder)
    with torch.no_grad():
        assert_close(theirs(batch["pixels"]).logits, logits)


def test_examples_are_the_images_as_bytes() -> None:
    data = rows(6, (8, 8, 3))
    task, _ = made(settings({"channels": 3}), data)
    encoded = task.encode(data)
    assert encoded.note == ""
    for (pixels, label), row in zip(encoded.examples, data, strict=True):
        assert pixels.dtype == np.uint8
        np.testing.assert_array_equal(pixels, row.values["image"].pixels().transpose(2, 0, 1))
        assert LABELS[label] == row.values["label"]
    assert task.lengths(encoded.examples).tolist() == [[5]] * 6  # (8 / 4)² patches and the class token
    batch = task.collate(encoded.examples)
    mean, std = (torch.tensor(v)[:, None, None] for v in (task.preprocessing.mean, task.preprocessing.std))
    for i, (pixels, label) in enumerate(encoded.examples):
        assert_close(batch["pixels"][i], (torch.from_numpy(pixels) / 255 - mean) / std)
        assert batch["labels"][i] == label
    assert task.count(batch) == 6


def test_other_sizes_are_resized_with_a_note() -> None:
    data = Rows([*rows(2), *rows(3, (16, 12))])
    task, _ = made(settings(), rows())
    encoded = task.encode(data)
    assert "3 images resized to 8 × 8, grey (--image.size)" in encoded.note
    assert {pixels.shape for pixels, _ in encoded.examples} == {(1, 8, 8)}


def test_a_label_that_training_did_not_see() -> None:
    task, _ = made(settings(), rows())
    with pytest.raises(HeedfulError, match=r"images.npz:1: the model has no label 'boots'; did you mean 'boot'"):
        task.encode(rows(1, labels=["boots"]))


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "half.png").write_bytes(b"\x89PNG\r\n")
    broken = Rows([Row({"image": LazyImage.of(tmp_path / "half.png"), "label": "bag"}, "half.png", 1)])
    task, model = made(settings(), rows())
    with pytest.raises(HeedfulError, match=r"half\.png"):
        task.encode(broken)
    with pytest.raises(HeedfulError, match=r"half\.png"):
        task.predict(model, [tmp_path / "half.png"])


def test_augmentation_draws_from_the_given_generator() -> None:
    data = rows()
    asked = settings({"crop_padding": 2, "flip": True, "rand_augment": 1, "random_erasing": 0.5, "mixup": 0.5})
    task, _ = made(asked, data)
    examples = task.encode(data).examples
    first, again, other = (task.collate(examples, np.random.default_rng(seed)) for seed in (1, 1, 2))
    still = task.collate(examples)
    for name in ("pixels", "labels"):
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    assert torch.equal(still["pixels"], task.collate(examples)["pixels"])
    assert not torch.equal(first["pixels"], still["pixels"])
    task.before_training(
        heedful.create(task.config(asked), seed=0),
        settings({"crop_padding": 0, "flip": False, "rand_augment": 0, "random_erasing": 0.0, "mixup": 0}),
    )
    assert torch.equal(task.collate(examples, np.random.default_rng(1))["pixels"], still["pixels"])


def test_erased_images_have_noise_that_is_normalised_with_them() -> None:
    data = rows()
    task, _ = made(settings({"random_erasing": 1.0}), data)
    examples = task.encode(data).examples
    erased, whole = (task.collate(examples, random)["pixels"] for random in (np.random.default_rng(0), None))
    assert ((erased != whole).flatten(1).any(1)).float().mean() > 0.8
    for pixels in (erased, whole):
        values = pixels * task.preprocessing.std[0] + task.preprocessing.mean[0]
        assert -1e-5 < float(values.min()) < float(values.max()) < 1 + 1e-5


def test_mixup_blends_labels_as_it_blends_images() -> None:
    """Every image is one value, its label's: the blend's label can be read off its pixels."""
    data = Rows(
        Row({"image": LazyImage.of(np.full((8, 8), value, np.uint8)), "label": label}, "f", 1)
        for value, label in ((0, "black"), (255, "white"))
        for _ in range(4)
    )
    asked = settings({"mixup": 1.0})
    task, _ = made(asked, data)
    batch = task.collate(task.encode(data).examples, np.random.default_rng(0))
    grey = batch["pixels"][:, 0, 0, 0] * task.preprocessing.std[0] + task.preprocessing.mean[0]
    assert batch["labels"].shape == (8, 2)
    assert_close(batch["labels"][:, 1], grey)
    assert_close(batch["labels"].sum(1), torch.ones(8))
    assert ((grey > 0.01) & (grey < 0.99)).any()


# ------------------------------------------------------------------------------------------------------------- the loss


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixed", [0.0, 0.8])
def test_the_loss_by_hand(smoothing: float, mixed: float) -> None:
    data = rows()
    task, model = made(settings({"mixup": mixed}), data)
    batch = task.collate(task.encode(data).examples, np.random.default_rng(0))
    log_p = model(batch["pixels"]).double().log_softmax(-1)
    expected = 0.0
    for i in range(len(data)):
        for c in range(len(LABELS)):
            wanted = float(batch["labels"][i, c]) if mixed else float(int(batch["labels"][i]) == c)
            expected -= ((1 - smoothing) * wanted + smoothing / len(LABELS)) * log_p[i, c].item()
    assert task.objective(model, batch, smoothing).item() == approx(expected, "gradient")


# ------------------------------------------------------------------------------------------------- measuring, answering


def test_measures_and_answers_agree() -> None:
    data = rows(30)
    task, model = made(settings(), data)
    measured = task.measure(model, task.encode(data).examples, data, most=3, batch_tokens=20)
    with torch.no_grad():
        logits = torch.cat([model(task.collate([example])["pixels"]) for example in task.encode(data).examples])
    truth = torch.tensor([LABELS.index(row.values["label"]) for row in data])
    right = logits.argmax(-1) == truth
    assert measured.metrics["accuracy"] == pytest.approx(100 * right.float().mean().item())
    top = (logits.topk(5).indices == truth[:, None]).any(1)
    assert measured.metrics["top5_accuracy"] == pytest.approx(100 * top.float().mean().item())
    loss = -logits.log_softmax(-1)[torch.arange(30), truth].mean().item()
    assert measured.metrics["loss"] == approx(loss, "gradient")
    assert 0 < measured.metrics["macro_f1"] < 100
    assert sum(map(sum, measured.details["confusion"]["counts"])) == 30
    assert [entry["label"] for entry in measured.details["by_class"]] == LABELS
    mistakes = measured.details["mistakes"]
    assert len(mistakes) == int((~right).sum())
    for mistake in mistakes:
        assert mistake["input"] == f"picture {mistake['place']}"
        assert mistake["expected"] == data[mistake["place"]].values["label"]
        assert LABELS.index(mistake["output"]) == logits[mistake["place"]].argmax()
        assert mistake["score"] == approx(logits[mistake["place"]].softmax(-1).max().item())
    json.dumps([measured.metrics, measured.details])
    answers = task.predict(model, [row.values["image"] for row in data])
    assert [answer.output for answer in answers] == [LABELS[i] for i in logits.argmax(-1)]
    assert [answer.score for answer in answers] == approx(logits.softmax(-1).amax(-1).tolist())


def test_a_mirror_image_is_asked_too() -> None:
    """Measures and answers take the mean of both; whichever of the two is asked, the answer is the same."""
    data = rows(30)
    task, model = made(settings(), data)
    pixels = task.collate(task.encode(data).examples)["pixels"]
    with torch.no_grad():
        p = (model(pixels).softmax(-1) + model(pixels.flip(-1)).softmax(-1)) / 2
    truth = torch.tensor([LABELS.index(row.values["label"]) for row in data])
    measured = task.measure(model, task.encode(data).examples, data, mirror=True)
    assert measured.metrics["loss"] == approx(torch.nn.functional.nll_loss(p.log(), truth).item(), "gradient")
    assert measured.metrics["accuracy"] == pytest.approx(100 * (p.argmax(-1) == truth).float().mean().item())
    assert measured.metrics["loss"] != task.measure(model, task.encode(data).examples, data).metrics["loss"]
    asked = [row.values["image"].pixels()[..., 0] for row in data]
    for inputs in (asked, [image[:, ::-1] for image in asked]):
        answers = task.predict(model, inputs, mirror=True)
        assert [answer.output for answer in answers] == [LABELS[i] for i in p.argmax(-1)]
        assert [answer.score for answer in answers] == approx(p.amax(-1).tolist())
    with pytest.raises(HeedfulError, match="mirror is 'no'; give True or False"):
        task.predict(model, asked, mirror="no")


def test_few_labels_have_no_top_five() -> None:
    data = rows(labels=LABELS[:5])
    task, model = made(settings(), data)
    assert "top5_accuracy" not in task.measure(model, task.encode(data).examples, data).metrics


def test_every_kind_of_image_is_an_input(tmp_path: Path) -> None:
    from PIL import Image

    task, model = made(settings(), rows())
    array = rows(1)[0].values["image"].pixels()[..., 0]
    path = tmp_path / "one.png"
    Image.fromarray(array).save(path)
    inputs = [str(path), path, path.read_bytes(), array, Image.open(path), LazyImage.of(array)]
    answers = task.predict(model, inputs)
    assert len({(answer.output, round(answer.score or 0, 5)) for answer in answers}) == 1
    assert answers[0].input == answers[1].input == str(path)
    json.dumps([answer.as_dict() for answer in answers])
    assert task.predict(model, []) == []


def test_a_row_as_a_line() -> None:
    task, _ = made(settings(), rows())
    assert task.row_line(rows(1, (20, 30))[0]) == "picture 0 (30 × 20) → bag"


# -------------------------------------------------------------------------------------------------------------- folders


def written(folder: Path, asked: RunSettings, data: Rows) -> tuple[ImageClassification, Model]:
    task, model = made(asked, data)
    model.save_pretrained(folder)
    task.save(folder)
    return task, model


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (40, 30, 3)], ids=["grey", "colour", "resized"])
def test_transformers_opens_the_folder_and_says_the_same(shape: tuple[int, ...], tmp_path: Path) -> None:
    from PIL import Image
    from transformers import AutoImageProcessor, AutoModelForImageClassification

    data = rows(6, shape)
    task, model = written(tmp_path, settings({"channels": 3 if len(shape) == 3 else 1}), data)
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    theirs = AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    arrays = [row.values["image"].pixels() for row in data]
    images = [Image.fromarray(array.squeeze()) for array in arrays]
    pixels = processor(images, return_tensors="pt")["pixel_values"]
    ours = task.collate(task.encode(data).examples)["pixels"]
    assert_close(pixels.to(ours.dtype), ours)
    with torch.no_grad():
        assert_close(theirs(pixel_values=ours).logits, model(ours), "gradient")
    assert theirs.config.id2label == dict(enumerate(LABELS))


def test_a_folder_opens_again(tmp_path: Path) -> None:
    data = rows()
    task, model = written(tmp_path, settings(), data)
    again = ImageClassification.load(tmp_path)
    again.check_model(heedful.from_pretrained(tmp_path))
    assert (again.labels, again.preprocessing, again.tokens) == (task.labels, task.preprocessing, task.tokens)
    pipe = heedful.pipeline("image-classification", tmp_path)
    first = task.predict(model, [data[0].values["image"]])[0]
    assert pipe(data[0].values["image"]) == pytest.approx(first.as_dict())


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    task, model = written(tmp_path, settings(), rows())
    replace_task = ImageClassification(task.labels, replace(task.preprocessing, size=16))
    with pytest.raises(HeedfulError, match=r"takes images of 8 × 8, grey.*produces 16 × 16, grey"):
        replace_task.check_model(model)
    with pytest.raises(HeedfulError, match=r"has 6 classes, but its folder names 2 labels"):
        ImageClassification(["a", "b"], task.preprocessing).check_model(model)
    with pytest.raises(HeedfulError, match=r"needs a vision model"):
        task.check_model(heedful.create("gpt-micro", seed=0))
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(HeedfulError, match=r"has no preprocessor_config\.json"):
        ImageClassification.load(tmp_path)


# ---------------------------------------------------------------------------------------------------------- fine-tuning


def test_going_on_with_known_labels_keeps_the_head(tmp_path: Path) -> None:
    _, model = written(tmp_path, settings(), rows())
    given = RunSettings(task="image-classification", train=("-",), out="-", start_from=str(tmp_path))
    asked = resolve(given, ImageClassification.suggested_settings(rows(), given))
    assert asked.preset is None
    assert asked.model == ModelSettings()
    task, again = ImageClassification.for_fine_tuning(tmp_path, rows(labels=LABELS[:2]), asked)
    assert task.labels == LABELS
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert not again.fresh


@pytest.mark.parametrize("labels", [["x", "y"], ["p", "q", "r", "s", "t", "u"]], ids=["fewer", "as many"])
def test_other_labels_get_a_fresh_linear_head(labels: list[str], tmp_path: Path) -> None:
    asked = settings()
    task, _ = made(asked, rows())
    config = task.config(asked)
    model = heedful.create(replace(config, head=ImageHead(labels=6, hidden=32)), seed=3)  # as in pre-training
    model.save_pretrained(tmp_path)
    task.save(tmp_path)
    given = RunSettings(task="image-classification", train=("-",), out="-", start_from=str(tmp_path))
    task, tuned = ImageClassification.for_fine_tuning(tmp_path, rows(labels=labels), given)
    assert task.labels == labels
    assert tuned.config.head == ImageHead(labels=len(labels))
    assert tuned.fresh == ["head.output.0.weight", "head.output.0.bias"]
    for name, tensor in model.state_dict().items():
        assert name.startswith("head.") or torch.equal(tuned.state_dict()[name], tensor)
    _, again = ImageClassification.for_fine_tuning(tmp_path, rows(labels=labels), given)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tuned.state_dict()[name], tensor)
    assert tuned.head.output[0].weight.std() > 0


def test_a_trained_model_keeps_its_channels_and_takes_another_size(tmp_path: Path) -> None:
    _, model = written(tmp_path, settings(), rows())
    asked = replace(settings(), preset=None, image=ImageSettings(channels=3), start_from=str(tmp_path))
    with pytest.raises(
        HeedfulError, match=r"--image\.channels is 3, but the model .* takes images with 1 channel; leave"
    ):
        ImageClassification.for_fine_tuning(tmp_path, rows(), asked)
    task, larger = ImageClassification.for_fine_tuning(tmp_path, rows(), replace(asked, image=ImageSettings(size=16)))
    assert task.preprocessing.shape == (1, 16, 16)
    assert task.tokens == 4 * model.config.patches.tokens - 3  # four times the patches, one class token
    told = suggested(rows(), start_from=str(tmp_path), image=ImageSettings(size=64))
    assert (told.image.size, told.image.crop_padding) == (64, 2)
    kept = model.state_dict()
    assert all(tensor.equal(kept[name]) for name, tensor in larger.state_dict().items() if "position" not in name)


def test_a_cut_in_the_middle_as_deit_has_it(tmp_path: Path) -> None:
    """Resized to 12, the middle 8 kept: by transformers' own processor."""
    from PIL import Image
    from transformers import AutoImageProcessor

    task, _ = made(settings({"channels": 3}), rows(6, (8, 8, 3)))
    how = Preprocessing(size=12, crop=8, resample="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    task = ImageClassification(task.labels, how)
    task.save(tmp_path)
    data = rows(3, (20, 30, 3))
    images = [Image.fromarray(row.values["image"].pixels()) for row in data]
    theirs = AutoImageProcessor.from_pretrained(tmp_path)(images, return_tensors="pt")["pixel_values"]
    assert_close(task.collate(task.encode(data).examples)["pixels"], theirs.float())


# ----------------------------------------------------------------------------------------------------------- whole runs


def halves(folder: Path) -> Path:
    """Noise that is brighter on one side: 48 images for training, 16 for validation."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 64)
    images = random.integers(0, 120, (64, 8, 8))
    images[labels == 0, :, :4] += 100
    images[labels == 1, :, 4:] += 100
    parts = {"train": slice(0, 48), "val": slice(48, 64)}
    arrays = {f"x_{part}": images[cut].astype(np.uint8) for part, cut in parts.items()}
    arrays |= {f"y_{part}": labels[cut] for part, cut in parts.items()}
    np.savez(folder / "halves.npz", classes=np.array(["left", "right"]), **arrays)
    return folder / "halves.npz"


def trained(data: Path, out: Path, steps: int, image: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    asked = RunSettings(
        task="image-classification",
        train=(str(data),),
        out=str(out),
        max_steps=steps,
        model=ModelSettings(dim=16, heads=2, depth=1, patch_size=4),
        image=ImageSettings(**(image or {})),
        training=TrainingSettings(lr=3e-3, schedule="constant", warmup=0, batch_size=16, evaluate_every=steps),
        **more,
    )
    return train(asked, say=lambda line: None, quiet=True)


def test_it_learns_and_its_folder_answers(tmp_path: Path) -> None:
    data = halves(tmp_path)
    result = trained(data, tmp_path / "out", 60)
    assert result["metrics"]["accuracy"] == 100.0
    assert result["confusion"]["labels"] == ["left", "right"]
    classify = heedful.pipeline("image-classification", tmp_path / "out")
    image = np.full((8, 8), 60, np.uint8)
    image[:, 4:] += 100
    answer = classify(image)
    assert answer["output"] == "right"
    assert answer["score"] > 0.5


def test_steps_that_are_asked_for_stand_in_place_of_the_suggested_epochs(tmp_path: Path) -> None:
    """3 steps an epoch; going on from a model 10 epochs are suggested."""
    data, out = halves(tmp_path), tmp_path / "out"
    trained(data, out, 2)
    asked = RunSettings(
        task="image-classification",
        train=(str(data),),
        out=str(tmp_path / "on"),
        start_from=str(out),
        training=TrainingSettings(batch_size=16, evaluate_every=100),
    )
    whole = train(asked, say=lambda line: None, quiet=True)
    assert (whole["steps"], whole["stopped_because"]) == (30, "max_epochs")
    steps = replace(asked, out=str(tmp_path / "longer"), max_steps=35)
    longer = train(steps, say=lambda line: None, quiet=True)
    assert (longer["steps"], longer["stopped_because"]) == (35, "max_steps")


def test_a_resumed_run_draws_the_same_changes(tmp_path: Path) -> None:
    data = halves(tmp_path)
    changes = {"crop_padding": 1, "flip": True, "rand_augment": 1, "random_erasing": 0.3, "mixup": 0.4}
    trained(data, tmp_path / "whole", 8, changes)
    trained(data, tmp_path / "twice", 4, changes)
    trained(data, tmp_path / "twice", 8, resume=True)  # the changes are in run.toml
    whole, twice = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("whole", "twice"))
    for name, tensor in whole.items():
        assert torch.equal(tensor, twice[name]), name


def test_equal_images_are_not_called_too_few() -> None:
    images = [LazyImage.of(np.full((8, 8), 50 * (n % 2), np.uint8), f"{n}") for n in range(20)]
    rows = Rows(Row({"image": image, "label": "ab"[n % 2]}, "set", n + 1) for n, image in enumerate(images))
    with pytest.raises(HeedfulError, match=r"^set: only 2 of 20 examples are different, and equal ones are never"):
        ImageClassification.split_rows(rows, 0.2, 0)
