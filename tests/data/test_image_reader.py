"""Reading images: each way of keeping them gives the same rows, and every way to be broken one line that helps."""

from __future__ import annotations

import gzip
import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from heedful.data import Rows, documents
from heedful.data.image_reader import image_splits, read_images
from heedful.data.rows import Kind
from heedful.errors import HeedfulError

COLUMNS: dict[str, Kind] = {"image": "image", "label": "label"}
ALONE: dict[str, Kind] = {"image": "image"}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 5, 7), dtype=np.uint8)
COLOURS = np.random.default_rng(1).integers(0, 256, (6, 5, 7, 3), dtype=np.uint8)
LABELS = np.array([2, 0, 1, 1, 0, 2], np.uint8)


def idx(array: np.ndarray, code: int = 8) -> bytes:
    """An IDX file, written by its description."""
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def fill(folder: Path, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder)


def labels(rows: Rows) -> list[Any]:
    return [row.values["label"] for row in rows]


def pixels(rows: Rows) -> list[np.ndarray]:
    return [row.values["image"].pixels() for row in rows]


def said(sources: str | Sequence[str], columns: dict[str, Kind] = COLUMNS, **options: Any) -> str:
    """The one line that reading says."""
    with pytest.raises(HeedfulError) as caught:
        read_images([sources] if isinstance(sources, str) else sources, columns, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "no remedy"
    return message


# -------------------------------------------------------------------------------------------------------------- folders

TREE = {
    "cat/1.png": png(PIXELS[0]),
    "cat/deeper/2.PNG": png(PIXELS[1]),
    "cat/notes.txt": b"x",
    "cat/.hidden.png": b"x",
    ".git/3.png": b"x",
    "dog/1.jpeg": png(COLOURS[0]),  # the extension may lie, the bytes do not
    "dog/2.webp": png(COLOURS[1]),
    "dog/3.gif": png(COLOURS[2]),
    "empty/readme.md": b"x",
    "overview.png": png(PIXELS[2]),
}


def test_a_folder_of_labels(tmp_path: Path) -> None:
    folder = fill(tmp_path, TREE)
    rows = read_images([folder], COLUMNS)
    assert labels(rows) == ["cat", "cat", "dog", "dog", "dog"]
    assert [(Path(row.file).relative_to(folder).as_posix(), row.line) for row in rows][:2] == [
        ("cat/1.png", 1),
        ("cat/deeper/2.PNG", 1),
    ]
    assert np.array_equal(pixels(rows)[1][..., 0], PIXELS[1])
    assert np.array_equal(pixels(rows)[4], COLOURS[2])
    assert rows.skipped == 3  # the notes, the readme, and the image beside the labels
    assert rows.columns == ("image", "label")
    assert image_splits([folder]) == ()
    assert labels(read_images([folder], COLUMNS, split="test")) == labels(rows)


def test_links_in_a_loop_are_no_folders(tmp_path: Path) -> None:
    folder = fill(tmp_path, TREE)
    (tmp_path / "loop").symlink_to("loop")
    assert image_splits([folder]) == ()
    assert labels(read_images([folder], COLUMNS)) == ["cat", "cat", "dog", "dog", "dog"]
    assert documents.document_splits(folder) == ()


def test_with_a_limit_labels_take_turns(tmp_path: Path) -> None:
    folder = fill(tmp_path, TREE)
    assert labels(read_images([folder], COLUMNS, limit=3)) == ["cat", "dog", "cat"]
    assert labels(read_images([folder], COLUMNS, limit=9)) == ["cat", "dog", "cat", "dog", "dog"]


def test_images_without_labels(tmp_path: Path) -> None:
    folder = fill(tmp_path, TREE)
    rows = read_images([folder], ALONE)
    assert [Path(row.file).name for row in rows] == ["overview.png", "1.png", "2.PNG", "1.jpeg", "2.webp", "3.gif"]
    assert all(row.values.keys() == {"image"} for row in rows)
    assert rows.skipped == 2
    files = [f"{folder}/cat/1.png", f"{folder}/dog/2.webp"]
    assert [row.file for row in read_images(files, ALONE)] == files
    assert len(read_images(files, ALONE, limit=1)) == 1
    assert f"{files[0]}, {files[1]}) cannot be read as image and label; give an image folder" in said(files)


def test_parts_of_a_folder(tmp_path: Path) -> None:
    image = png(PIXELS[0])
    folder = fill(tmp_path, {"train/a/1.png": image, "train/b/2.png": image, "val/b/3.png": image, ".cache/x.png": b""})
    (tmp_path / "logs").mkdir()
    assert image_splits([folder]) == ("train", "valid")
    assert labels(read_images([folder], COLUMNS)) == labels(read_images([folder], COLUMNS, split="train")) == ["a", "b"]
    assert labels(read_images([folder], COLUMNS, split="valid")) == ["b"]
    assert said(folder, split="test") == f"no split 'test' in {folder}; it has train and valid"
    # one more folder with an image, and "train" is a label as any other
    fill(tmp_path, {"car/4.png": image})
    assert image_splits([folder]) == ()
    assert labels(read_images([folder], COLUMNS)) == ["car", "train", "train", "val"]


def test_links_are_followed_once(tmp_path: Path) -> None:
    folder = fill(tmp_path / "set", {"a/1.png": png(PIXELS[0])})
    fill(tmp_path / "elsewhere", {"2.png": png(PIXELS[1])})
    (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "a" / "back").symlink_to(tmp_path / "set")
    assert labels(read_images([folder], COLUMNS)) == ["a", "b"]


def test_folders_without_images_or_labels(tmp_path: Path) -> None:
    assert said(str(tmp_path)) == f"no image in {tmp_path}; give a folder with LABEL/*.png, LABEL/*.jpg, ..."
    assert said(str(tmp_path), ALONE) == f"no image in {tmp_path}; give a folder with *.png, *.jpg, ..."
    fill(tmp_path, {"1.png": b""})
    assert said(str(tmp_path)) == (
        f"no image is in a sub-folder with the name of its label, in {tmp_path}; "
        f"move them, for example to {tmp_path}/LABEL/1.png"
    )
    assert "leave --data.columns out" in said(str(tmp_path), names=("a", "b"))
    assert f"no such file: {tmp_path}/2.png; did you mean '{tmp_path}/1.png'?" in said(f"{tmp_path}/2.png", ALONE)
    assert f"{tmp_path}/1.png cannot be read as image and label; give" in said(f"{tmp_path}/1.png")
    assert (
        image_splits([f"{tmp_path}/absent"])
        == image_splits([f"{tmp_path}/absent.npz"])
        == image_splits([str(tmp_path)] * 2)
        == ()
    )


def test_texts_beside_images_are_refused(tmp_path: Path) -> None:
    assert "images cannot be read with the columns image, label, text;" in said(
        str(tmp_path), {**COLUMNS, "text": "text"}
    )


# ------------------------------------------------------------------------------------------------------------------ IDX


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("array", [PIXELS, COLOURS])
def test_idx_files(tmp_path: Path, array: np.ndarray, packed: str) -> None:
    pack: Callable[[bytes], bytes] = gzip.compress if packed else bytes
    fill(tmp_path, {f"images.idx{packed}": pack(idx(array)), f"labels.idx{packed}": pack(idx(LABELS))})
    files = [f"{tmp_path}/images.idx{packed}", f"{tmp_path}/labels.idx{packed}"]
    rows = read_images(files, COLUMNS)
    assert labels(rows) == ["2", "0", "1", "1", "0", "2"]
    assert all(np.array_equal(found, image.reshape(5, 7, -1)) for found, image in zip(pixels(rows), array, strict=True))
    assert (rows[3].file, rows[3].line, rows[3].values["image"].name) == (files[0], 4, f"{files[0]}:4")
    assert rows.columns == tuple(files)
    assert labels(read_images(files, COLUMNS, limit=2)) == ["2", "0"]
    assert labels(read_images(files[::-1], {"label": "label", "image": "image"})) == labels(rows)
    assert len(read_images(files[:1], ALONE)) == 6


def test_the_four_files_of_mnist(tmp_path: Path) -> None:
    folder = fill(
        tmp_path,
        {
            "train-images-idx3-ubyte.gz": gzip.compress(idx(PIXELS)),
            "train-labels-idx1-ubyte": idx(LABELS),
            "train-labels-idx1-ubyte.gz": b"not looked at",
            "t10k-images.idx3-ubyte": idx(PIXELS[:2]),
            "t10k-labels.idx1-ubyte": idx(LABELS[:2]),
        },
    )
    assert image_splits([folder]) == ("train", "test")
    assert labels(read_images([folder], COLUMNS)) == ["2", "0", "1", "1", "0", "2"]
    assert labels(read_images([folder], COLUMNS, split="test")) == ["2", "0"]
    assert len(read_images([folder], ALONE, split="test")) == 2
    assert said(folder, split="valid") == f"no split 'valid' in {folder}; it has train and test"


BROKEN_IDX: dict[str, tuple[bytes, bytes, str]] = {
    "empty": (b"", idx(LABELS), "{images} is empty and is not an IDX file; give"),
    "no idx": (
        b"hello there",
        idx(LABELS),
        "{images} begins with 0x68656c6c and is not an IDX file; give images and labels",
    ),
    "compressed": (
        gzip.compress(idx(PIXELS), mtime=0),
        idx(LABELS),
        "{images} begins with 0x1f8b0800 and is not an IDX file; it is compressed, so name it images.gz",
    ),
    "another type": (
        idx(PIXELS, 13),
        idx(LABELS),
        "the values have the IDX type 0x0d, in {images}; store unsigned bytes (type 0x08)",
    ),
    "cut off": (idx(PIXELS)[:-1], idx(LABELS), "209 values, but its header says 6 × 5 × 7 = 210, in {images}; copy or"),
    "too long": (idx(PIXELS) + b"x", idx(LABELS), "211 values, but its header says 6 × 5 × 7 = 210, in {images};"),
    "half a head": (idx(PIXELS)[:9], idx(LABELS), "0 values, but its header says 3 dimensions, in {images};"),
    "no size": (b"\0\0\x08\0", idx(LABELS), "0 values, but its header says 0 dimensions, in {images};"),
    "the wrong way": (idx(LABELS), idx(PIXELS), "images are expected, but the array has the shape 6, in {images};"),
    "no images": (idx(PIXELS[:0]), idx(LABELS[:0]), "the array is empty (shape 0 × 5 × 7), in {images};"),
    "two channels": (
        idx(COLOURS[..., :2]),
        idx(LABELS),
        "images are expected, but the array has the shape 6 × 5 × 7 × 2, in",
    ),
    "other labels": (
        idx(PIXELS),
        idx(PIXELS),
        "labels are expected, but the array has the shape 6 × 5 × 7, in {labels}; give",
    ),
    "fewer labels": (
        idx(PIXELS),
        idx(LABELS[1:]),
        "6 images, but 5 labels, in {images} and {labels}; give one label for",
    ),
}


@pytest.mark.parametrize("case", BROKEN_IDX)
def test_broken_idx_files(tmp_path: Path, case: str) -> None:
    images, texts, expected = BROKEN_IDX[case]
    fill(tmp_path, {"images": images, "labels": texts})
    files = [f"{tmp_path}/images", f"{tmp_path}/labels"]
    assert expected.format(images=files[0], labels=files[1]) in said(files)


def test_one_idx_file_is_too_few(tmp_path: Path) -> None:
    fill(tmp_path, {"images": idx(PIXELS)})
    assert f"{tmp_path}/images cannot be read as image and label; give" in said(f"{tmp_path}/images")


def test_fashion_mnist(shared_data: Callable[[str], Path]) -> None:
    folder = str(shared_data("fashion-mnist"))
    assert image_splits([folder]) == ("train", "test")
    rows = read_images([folder], COLUMNS, split="test")
    assert len(rows) == 10_000
    assert all(labels(rows).count(str(label)) == 1_000 for label in range(10))
    assert rows[0].values["image"].size == (28, 28)
    assert labels(rows)[:5] == ["9", "2", "1", "1", "6"]  # ankle boot, pullover, trousers, trousers, shirt


# ------------------------------------------------------------------------------------------------------------------ npz


def npz(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "set.npz", **arrays)
    return str(folder / "set.npz")


def test_npz_with_parts(tmp_path: Path) -> None:
    path = npz(tmp_path, x_train=PIXELS, y_train=LABELS[:, None], x_test=PIXELS[:2], y_test=LABELS[:2])
    assert image_splits([path]) == ("train", "test")
    rows = read_images([path], COLUMNS)
    assert labels(rows) == ["2", "0", "1", "1", "0", "2"]
    assert np.array_equal(pixels(rows)[2][..., 0], PIXELS[2])
    assert (rows[2].file, rows[2].line, rows.columns) == (path, 3, ("x_train", "y_train"))
    assert labels(read_images([path], COLUMNS, split="test", limit=1)) == ["2"]
    assert said(path, split="valid") == f"no split 'valid' in {path}; it has train and test"
    named = read_images([path], COLUMNS, names=("x_test", "y_test"))
    assert (labels(named), named.columns) == (["2", "0"], ("x_test", "y_test"))
    assert len(read_images([path], ALONE, split="test")) == 2


def test_npz_as_medmnist_writes_it(tmp_path: Path) -> None:
    path = npz(tmp_path, val_images=COLOURS, val_labels=LABELS[:, None], test_images=COLOURS[:1], test_labels=[[1]])
    assert image_splits([path]) == ("valid", "test")
    assert labels(read_images([path], COLUMNS)) == ["2", "0", "1", "1", "0", "2"]
    assert labels(read_images([path], COLUMNS, split="test")) == ["1"]


@pytest.mark.parametrize(("images", "texts"), [("images", "labels"), ("x", "y"), ("X", "y")])
def test_npz_without_parts(tmp_path: Path, images: str, texts: str) -> None:
    path = npz(tmp_path, **{images: PIXELS, texts: LABELS})
    assert image_splits([path]) == ()
    assert labels(read_images([path], COLUMNS, split="test")) == ["2", "0", "1", "1", "0", "2"]


def test_the_layouts_and_types_of_npz(tmp_path: Path) -> None:
    def first(images: np.ndarray) -> np.ndarray:
        return pixels(read_images([npz(tmp_path, x=images, y=LABELS)], COLUMNS))[1]

    assert np.array_equal(first(PIXELS)[..., 0], PIXELS[1])
    assert np.array_equal(first(PIXELS[..., None])[..., 0], PIXELS[1])
    assert np.array_equal(first(PIXELS[:, None])[..., 0], PIXELS[1])
    assert np.array_equal(first(COLOURS), COLOURS[1])
    assert np.array_equal(first(COLOURS.transpose(0, 3, 1, 2)), COLOURS[1])
    assert np.array_equal(first(COLOURS.astype(np.int64)), COLOURS[1])
    assert np.array_equal(first((COLOURS / 255).astype(np.float32)), COLOURS[1])
    assert np.array_equal(first(COLOURS.astype(np.float64)), COLOURS[1])
    opaque = np.concatenate([COLOURS, np.full((6, 5, 7, 1), 255, np.uint8)], axis=3)
    assert np.array_equal(first(opaque), COLOURS[1])


def test_the_labels_of_npz(tmp_path: Path) -> None:
    def found(texts: Any, **more: Any) -> Rows:
        return read_images([npz(tmp_path, x=PIXELS[: len(texts)], y=texts, **more)], COLUMNS)

    assert labels(found(["cat", "dög"])) == ["cat", "dög"]
    assert labels(found(np.array(["cat", "dög".encode()], dtype="S4"))) == ["cat", "dög"]
    assert labels(found(np.array([7, -1]))) == ["7", "-1"]
    assert labels(found(LABELS, classes=["a", "b", "c"])) == ["c", "a", "b", "b", "a", "c"]
    blank = found(["cat", " ", "dog"])
    assert (labels(blank), blank.skipped, blank[1].line) == (["cat", "dog"], 1, 3)
    assert "there is a label 2, but only 2 class names, in 'y' of " in said(
        npz(tmp_path, x=PIXELS, y=LABELS, classes=["a", "b"])
    )
    assert "the labels have the type float64, in 'y' of " in said(npz(tmp_path, x=PIXELS, y=LABELS / 2))
    assert "labels are expected, but the array has the shape 6 × 2, in 'y' of " in said(
        npz(tmp_path, x=PIXELS, y=np.zeros((6, 2), int))
    )
    assert "6 images, but 5 labels, in " in said(npz(tmp_path, x=PIXELS, y=LABELS[1:]))
    assert "only blank rows (2) in " in said(npz(tmp_path, x=PIXELS[:2], y=["", ""]))


def test_broken_npz_files(tmp_path: Path) -> None:
    assert "images are expected, but the array has the shape 6 × 35, in 'x' of " in said(
        npz(tmp_path, x=PIXELS.reshape(6, 35), y=LABELS)
    )
    assert "the pixels have values from -0.5 to 0.5, in 'x' of " in said(
        npz(tmp_path, x=np.linspace(-0.5, 0.5, 30).reshape(2, 3, 5), y=[0, 1])
    )
    path = npz(tmp_path, pictures=PIXELS, targets=LABELS)
    assert said(path) == (
        f"no array 'images' among 'pictures', 'targets', in {path}; name the arrays: --data.columns IMAGES,LABELS"
    )
    assert "did you mean 'targets'?" in said(path, names=("pictures", "target"))
    assert "no array 'y_train' among 'x_train', in " in said(npz(tmp_path, x_train=PIXELS))
    objects = npz(tmp_path, x=PIXELS, y=np.array([{}] * 6, dtype=object))
    assert f"{objects} cannot be read as .npz (Object arrays cannot be loaded when allow_pickle=False); save" in said(
        objects
    )
    whole = Path(npz(tmp_path, x=PIXELS, y=LABELS)).read_bytes()
    stream = io.BytesIO()
    np.save(stream, PIXELS)
    for content in (b"", b"no zip", whole[:200], whole[:100] + bytes(100) + whole[200:], stream.getvalue()):
        (tmp_path / "set.npz").write_bytes(content)
        assert f"{tmp_path}/set.npz " in said(f"{tmp_path}/set.npz")


def test_a_part_of_cifar10(shared_data: Callable[[str], Path]) -> None:
    path = str(shared_data("cifar10_subset") / "cifar10_subset.npz")
    assert image_splits([path]) == ("train", "test")
    rows = read_images([path], COLUMNS, split="test")
    assert len(rows) == 300
    assert labels(rows)[:4] == ["cat", "ship", "ship", "airplane"]
    assert np.array_equal(pixels(rows)[7], np.load(path)["x_test"][7])


# --------------------------------------------------------------------------------------------------------------- tables


def parquet(folder: Path, table: dict[str, list], features: dict[str, Any] | None = None) -> str:
    arrow = pyarrow.table(table)
    if features is not None:
        arrow = arrow.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(arrow, folder / "set.parquet")
    return str(folder / "set.parquet")


def test_parquet_of_the_hub(tmp_path: Path) -> None:
    images = [{"bytes": png(image), "path": None} for image in PIXELS]
    features = {"image": {"_type": "Image"}, "label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
    path = parquet(tmp_path, {"image": images, "label": LABELS.tolist()}, features)
    rows = read_images([path], COLUMNS)
    assert labels(rows) == ["c", "a", "b", "b", "a", "c"]
    assert all(np.array_equal(found[..., 0], image) for found, image in zip(pixels(rows), PIXELS, strict=True))
    assert (rows[5].file, rows[5].line, rows[5].values["image"].name) == (path, 6, f"{path}:6")
    assert labels(read_images([path], COLUMNS, limit=2)) == ["c", "a"]
    assert len(read_images([path], ALONE)) == 6
    assert image_splits([path]) == ()


def test_parquet_of_bytes_and_of_paths(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"img": [png(image) for image in PIXELS], "kind": [str(label) for label in LABELS]})
    assert labels(read_images([path], COLUMNS, names=("img", "kind"))) == ["2", "0", "1", "1", "0", "2"]
    assert read_images([path], COLUMNS).mapping == {"image": "img", "label": "kind"}
    fill(tmp_path, {"a/1.png": png(PIXELS[0])})
    path = parquet(tmp_path, {"image": [{"bytes": None, "path": "a/1.png"}], "label": [True]})
    rows = read_images([path], COLUMNS)
    assert labels(rows) == ["true"]
    assert np.array_equal(pixels(rows)[0][..., 0], PIXELS[0])


def test_broken_cells_of_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path, {"image": [{"bytes": None, "path": None}], "label": [1]})
    assert f"the cell is null, but an image is expected, in {path}:1; store the bytes" in said(path)
    path = parquet(tmp_path, {"image": [3], "label": [1]})
    assert f"the cell is int, but an image is expected, in {path}:1; store the bytes" in said(path)
    rows = read_images([parquet(tmp_path, {"image": [png(PIXELS[0])[:50]], "label": [1]})], COLUMNS)
    with pytest.raises(HeedfulError, match=r"the image is broken .*, in .*set\.parquet:1; "):
        rows[0].values["image"].pixels()
    (tmp_path / "set.parquet").write_bytes(b"PAR1")
    assert "set.parquet is not a complete Parquet file (" in said(f"{tmp_path}/set.parquet")
    (tmp_path / "set.parquet").write_bytes(b"")
    assert said(f"{tmp_path}/set.parquet") == f"no rows in {tmp_path}/set.parquet; give a file with image and label"


TABLES = {
    "set.csv": "image,label\na/1.png,cat\n,dog\nb.png,dog\n",
    "set.tsv": "a/1.png\tcat\n \tdog\nb.png\tdog\n",
    "set.jsonl": '{"image": "a/1.png", "label": "cat"}\n\n{"label": "dog", "image": "b.png"}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_paths(tmp_path: Path, name: str) -> None:
    images = {"a/1.png": png(PIXELS[0]), "b.png": png(PIXELS[1])}
    path = f"{fill(tmp_path, {**images, name: TABLES[name].encode()})}/{name}"
    rows = read_images([path], COLUMNS)
    assert labels(rows) == ["cat", "dog"]
    assert np.array_equal(pixels(rows)[1][..., 0], PIXELS[1])
    assert rows.skipped == 1
    assert (rows[1].file, rows[1].line) == (path, 4 if name == "set.csv" else 3)
    assert rows[1].values["image"].name == f"{tmp_path}/b.png"
    (tmp_path / "b.png").unlink()
    line = rows[1].line
    assert (
        said(path)
        == f"there is no image {tmp_path}/b.png, in {path}:{line}; write paths relative to the table's folder"
    )
