"""Captions: data of every form, references, training from the command line and from Python, prediction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import heedful
from heedful import cli
from heedful.data import LazyImage, Row, Rows, builtin, read
from heedful.data.builtin.shapes import COLOURS, shape_split
from heedful.errors import HeedfulError
from heedful.presets import captioner, gpt2, vit
from heedful.settings import RunSettings, TrainingSettings, resolve
from heedful.tasks.image_to_text import ImageToText, references_of
from heedful.tasks.published import task_of

COLUMNS = ImageToText.columns


def picture(number: int) -> Image.Image:
    return Image.fromarray(np.full((16, 16, 3), 20 * number, np.uint8))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for number in range(6):
        picture(number).save(tmp_path / "images" / f"{number}.png")
    return tmp_path


def rows_of(source: Path, **options: Any) -> list[tuple[str, str]]:
    rows = ImageToText.read_rows([str(source)], COLUMNS, **options)
    return [(Path(row.values["image"].name).name, row.values["text"]) for row in rows]


EXPECTED = [(f"{number}.png", f"shade {number} of {word}") for number in range(6) for word in ("grey", "stone")]


def test_a_table_of_paths_a_folder_and_lists_of_texts(photos: Path) -> None:
    lines = [f"images/{name},{text}" for name, text in EXPECTED]
    (photos / "captions.csv").write_text("\n".join(["file_name,caption", *lines, "images/0.png,"]) + "\n")
    assert rows_of(photos / "captions.csv") == EXPECTED  # columns by their content; a row without a text is skipped
    assert rows_of(photos) == EXPECTED  # the only table of a folder
    assert rows_of(photos, limit=3) == EXPECTED[:3]
    records = [
        {"image": f"images/{n}.png", "text": [t for name, t in EXPECTED if name == f"{n}.png"]} for n in range(6)
    ]
    (photos / "more.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert rows_of(photos / "more.jsonl") == EXPECTED
    with pytest.raises(HeedfulError, match=r"2 tables in .*give the table"):
        rows_of(photos)
    with pytest.raises(HeedfulError, match=r"cannot be read as image and text; give a table"):
        rows_of(photos / "images" / "0.png")
    (photos / "wrong.jsonl").write_text('{"image": "images/0.png", "text": [1]}\n')
    with pytest.raises(HeedfulError, match=r"a text or a list of texts is expected, in .*wrong.jsonl:1"):
        rows_of(photos / "wrong.jsonl")
    (photos / "lost.csv").write_text("image,text\nimages/1.png,a dog\nimages/9.png,a cat\n")
    assert rows_of(photos / "lost.csv", limit=1) == [("1.png", "a dog")]  # reads no further
    with pytest.raises(HeedfulError, match=r"there is no image .*9.png, in .*lost.csv:3"):
        rows_of(photos / "lost.csv")


def test_parquet_with_encoded_images(photos: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": (photos / "images" / f"{n}.png").read_bytes(), "path": None} for n in range(2)]
    pq.write_table(pa.table({"image": images, "text": [["one", "two"], ["three"]]}), photos / "set.parquet")
    assert [text for _, text in rows_of(photos / "set.parquet")] == ["one", "two", "three"]


def test_one_image_under_several_paths(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    paths = ["images/0.png", "./images/0.png", f"{photos}/images/0.png", "images/../images/0.png", "images/1.png"]
    Path("set.tsv").write_text("image\ttext\n" + "".join(f"{path}\ttext {i}\n" for i, path in enumerate(paths)))
    for table in ("set.tsv", str(photos / "set.tsv")):
        _, references, counted = references_of(ImageToText.read_rows([table], COLUMNS))
        assert counted == [True, False, False, False, True]
        assert references[0] == [f"text {i}" for i in range(4)]


def test_the_built_in_shapes_are_what_their_sentences_say() -> None:
    for split in ("train", "valid", "test"):
        for row in builtin.load("builtin:shapes", split)[:100]:
            first, second = (
                row["text"].removeprefix("a ").split(" above a " if "above" in row["text"] else " left of a ")
            )
            pixels = row["image"].pixels().astype(int)
            halves = np.split(pixels, 2, axis=0 if "above" in row["text"] else 1)
            for half, thing in zip(halves, (first, second), strict=True):
                distance = np.abs(half - np.array(COLOURS[thing.split()[0]])).sum(-1)
                assert (distance < 12).sum() > 15
            assert shape_split(tuple(first.split()), tuple(second.split())) == split
    with pytest.raises(HeedfulError, match="unknown argument 'x'"):
        builtin.load("builtin:shapes/x")
    assert builtin.load("builtin:shapes:test")[3] == builtin.load("builtin:shapes:test")[3]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run from Python objects that learns eight images by heart."""
    rows = builtin.load("builtin:shapes")[:8]
    data = [{"image": Image.fromarray(row["image"].pixels()), "text": row["text"]} for row in rows]
    out = tmp_path_factory.mktemp("runs") / "heart"
    preset = out.with_name("small.json")
    small = captioner(vit(32, 1, 2, 4, image=32, std=0.1), gpt2(48, 1, 2, 100, 64, 0.0, 0.1))
    preset.write_text(json.dumps(small.to_dict()))
    training = {"lr": 3e-3, "evaluate_every": 80, "warmup": 10, "label_smoothing": 0.0}
    options: dict[str, Any] = {"max_steps": 80, "preset": str(preset), "training": training}
    return heedful.train("image-to-text", data, valid=data, out=out, **options), data


@pytest.mark.parametrize(("tokens", "examples"), [(None, 64), (9_999, None)])
def test_a_batch_is_limited_by_examples_or_by_the_given_tokens(tokens: int | None, examples: int | None) -> None:
    rows = read("builtin:shapes:valid", COLUMNS, limit=5)
    given = RunSettings(task="image-to-text", train=("-",), out="-", training=TrainingSettings(batch_tokens=tokens))
    training = resolve(given, ImageToText.suggested_settings(rows, given)).training
    assert (training.batch_tokens, training.batch_size) == (tokens, examples)


def test_it_learns_from_python_objects(learned: Any) -> None:
    run, data = learned
    assert run.metrics["exact_match"] == 100.0
    assert run.metrics["bleu"] == pytest.approx(100.0)
    assert run.metrics["cider"] == pytest.approx(1000.0)
    pipe = heedful.pipeline(None, run.folder)
    images = [row["image"] for row in data]
    assert [one["output"] for one in pipe(images)] == [row["text"] for row in data]
    assert pipe(images[0], num_beams=3)["output"] == data[0]["text"]
    several = pipe(images[0], num_return_sequences=2, num_beams=3)["output"]
    assert [set(one) for one in several] == [{"text", "score"}] * 2
    assert several[0]["text"] == data[0]["text"]
    drawn = [one["output"] for one in pipe([images[0]] * 2, temperature=9.0, seed=3)]
    assert drawn[0] == pipe(images[0], temperature=9.0, seed=3)["output"] != drawn[1]
    assert pipe([]) == []
    with pytest.raises(HeedfulError, match="is not an image"):
        pipe(5)
    rows = Rows([Row({"image": LazyImage.of(images[0]), "text": "a long text " * 99}, "set.tsv", 2)])
    with pytest.raises(HeedfulError, match=r"longer than 64 tokens, in set\.tsv; the model takes no more$"):
        pipe.task.encode(rows, 100)
    with pytest.raises(HeedfulError, match=r"longer than 1 token, in set\.tsv; raise --data\.max-length$"):
        pipe.task.encode(rows, 1)


def test_an_evaluation_in_training_limits_the_texts(learned: Any) -> None:
    run, data = learned
    pipe = heedful.pipeline(None, run.folder)
    task: Any = pipe.task
    rows = Rows([Row({"image": LazyImage.of(row["image"]), "text": row["text"]}, "set.tsv", 2) for row in data])
    pipe.model.generation = {"min_new_tokens": 40, "max_new_tokens": 50}  # longer than the texts are
    encoded = task.encode(rows)
    assert max(len(text) for _, text in encoded.examples) < 40
    assert len(task.measure(pipe.model, encoded.examples, rows, most=2).outputs) == 2
    assert task.with_limit(pipe.model, {}, 9) == {"max_new_tokens": 40}
    assert task.with_limit(pipe.model, {}, 99) == {"max_new_tokens": 64}  # as many as there are positions
    assert task.with_limit(pipe.model, {"max_length": 7}, 9) == {"max_length": 7}


def test_files_on_the_command_line(learned: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, data = learned
    lines = ["image,text"]
    for number, row in enumerate(data):
        row["image"].save(tmp_path / f"{number}.png")
        lines += [f"{number}.png,{row['text']}", f"{number}.png,another text"]
    (tmp_path / "set.csv").write_text("\n".join(lines) + "\n")
    assert cli.main(["evaluate", str(run.folder), "--data", str(tmp_path / "set.csv"), "--baseline", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examples"], found["images"]) == (16, 8)
    assert found["metrics"]["exact_match"] == 100.0  # any reference
    assert found["metrics"]["bleu_signature"].startswith("nrefs:2")
    assert found["baseline"]["metrics"]["exact_match"] == 100.0  # the nearest training image is the same
    assert cli.main(["predict", str(run.folder), str(tmp_path / "1.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["output"] == data[1]["text"]
    assert cli.main(["predict", str(run.folder), "--in", str(tmp_path / "set.csv"), "--json"]) == 0
    outputs = [json.loads(line)["output"] for line in capsys.readouterr().out.splitlines()]
    assert outputs == [row["text"] for row in data for _ in range(2)]
    command = ["train", "image-to-text", "--train", str(tmp_path / "set.csv"), "--out", str(tmp_path / "more")]
    assert cli.main([*command, "--from", str(run.folder), "--max-steps=1", "--image.size=16", "--json"]) == 0
    assert json.loads((tmp_path / "more" / "config.json").read_text())["encoder"]["image_size"] == 16
    capsys.readouterr()
    assert cli.main([*command[:4], "--out", str(tmp_path / "x"), "--image.mixup=0.2"]) == 2
    assert "--image.mixup has no effect for image-to-text" in capsys.readouterr().err
    assert cli.main([*command[:4], "--out", str(tmp_path / "x"), "--preset=t5-small"]) == 2
    assert "reads text, but image-to-text needs a model that reads images" in capsys.readouterr().err
    (tmp_path / "list.txt").write_text("0.png\n1.png\n")
    assert cli.main(["predict", str(run.folder), "--in", str(tmp_path / "list.txt")]) == 2
    assert "list.txt is a text, but images are needed; give an image, a folder" in capsys.readouterr().err
    assert cli.main(["audit", *command[1:4]]) == 0
    shown = capsys.readouterr().out
    assert "64 patches of 4 × 4 + class → " in shown
    assert data[0]["text"] in shown


def test_a_folder_of_another_kind_is_refused(learned: Any, tmp_path: Path) -> None:
    run, _ = learned
    heedful.create("transformer-tiny", seed=0).save_pretrained(tmp_path / "text")
    with pytest.raises(HeedfulError, match="needs a model that reads images"):
        ImageToText.load(tmp_path / "text")
    for name in ("translation", "image-classification"):
        with pytest.raises(HeedfulError):
            heedful.pipeline(name, run.folder)
    card = run.folder / "heedful.json"
    kept = card.read_text()
    card.unlink()
    assert heedful.pipeline(None, run.folder).task.name == "image-to-text"  # by the layout alone
    card.write_text(kept)
    assert task_of(run.folder) == "image-to-text"


def test_the_loss_is_the_mean_of_log_p(learned: Any) -> None:
    run, _ = learned
    task, model = heedful.pipeline(None, run.folder).task, run.model
    rows = read("builtin:shapes:valid", COLUMNS, limit=5)
    encoded = task.encode(rows)
    batch = task.collate(encoded.examples)
    with torch.no_grad():
        total = float(task.objective(model, batch))
        by_hand = 0.0
        for pixels, text in encoded.examples:
            image = torch.from_numpy(task.preprocessing.normalised(pixels[None]))
            log_p = model(image, torch.tensor([[task.first, *text[:-1]]])).log_softmax(-1)[0]
            by_hand -= float(log_p[torch.arange(len(text)), torch.tensor(text)].sum())
    assert total == pytest.approx(by_hand, rel=1e-5)
    assert task.count(batch) == sum(len(text) for _, text in encoded.examples)
