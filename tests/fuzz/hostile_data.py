"""Data files of every format that is read, with something wrong in them, in their form or in their place."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import struct
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import zstandard
from hostile_folders import TASKS, WRITERS, base, make_special
from hostile_values import altered, broken_text, changed, damaged, hostile, nested, sentence, shown
from PIL import Image
from sandbox import Case

from heedful import tasks
from heedful.audit.audit import audit
from heedful.data import read, splits
from heedful.evaluation.evaluate import evaluate
from heedful.inference.predict_file import predict
from heedful.settings import DataSettings, ModelSettings, RunSettings, TokenizerSettings
from heedful.training.run import train

PACKING: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda whole: gzip.compress(whole, 1),
    ".xz": lambda whole: lzma.compress(whole, preset=0),
    ".zst": lambda whole: zstandard.ZstdCompressor(1).compress(whole),
}
LABELS = ["fruit", "tool", "other"]
RIGHT = (".tsv", ".csv", ".jsonl", ".parquet")
TABLES = (*RIGHT * 3, ".ndjson", ".txt", ".tab", ".json", "")
NEWLINES = ["\n", "\r\n", "\r", "\n\n", "\u2028", "\x0b", ""]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252", "utf-7", "shift_jis"]


def prepare(root: Path) -> None:
    """Makes the models that evaluate."""
    for task in TASKS:
        base(root, task)
    _picture.cache_clear()


def case(random: Random, root: Path, folder: Path) -> Case:
    """A file, or several, for a task, and what reads it."""
    task = random.choice(TASKS)
    place = folder / "data"
    place.mkdir()
    sources, what = _made(random, task, place)
    use, run = _use(random, task, sources, root, folder / "out")
    return f"{task}: {what} [{use}]", run


def _made(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """The sources, and what is wrong with them."""
    ways: list[tuple[Callable[[Random, str, Path], tuple[list[str], str]], int]] = [
        (_table, 60),
        (_plain, 10),
        (_folder, 5),
        (_odd, 6),
        (_bomb, 2),
    ]
    if task == "image-classification":
        ways += [(_pictures, 90), (_arrays, 70)]
    if task == "token-classification":
        ways += [(_conll, 90)]
    if task.endswith("question-answering"):
        ways += [(_squad, 90)]
    [way] = random.choices([way for way, _ in ways], [weight for _, weight in ways])
    return way(random, task, place)


# --------------------------------------------------------------------------------------------------------------- tables


def _rows(random: Random, task: str, count: int) -> list[dict[str, Any]]:
    """Right rows."""
    made = []
    for i in range(count):
        text = f"{sentence(random)} {i}"
        words = text.split()
        values: dict[str, dict[str, Any]] = {
            "translation": {"source": text, "target": text[::-1]},
            "summarization": {"text": text, "summary": words[0]},
            "text-classification": {"text": text, "label": random.choice(LABELS)},
            "token-classification": {"words": words, "tags": [random.choice(["O", "B-X", "I-X"]) for _ in words]},
            "question-answering": {
                "question": "what is it?",
                "context": text,
                "answers": {"text": [words[0]], "answer_start": [text.index(words[0])]},
            },
            "generative-question-answering": {"question": "what is it?", "context": text, "answers": words[:2]},
            "feature-extraction": {"text": text, "text_pair": words[0]},
            "image-classification": {"image": {"bytes": None, "path": "a.png"}, "label": random.choice(LABELS)},
            "image-to-text": {"image": "a.png", "text": text},
        }
        made.append(values.get(task, {"text": text}))
    return made


def _table(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """A table in one of the formats: values changed, keys changed, bytes changed, encoded or packed otherwise."""
    rows, said = _rows(random, task, random.choice([1, 2, 5, 12, 30])), []
    if task == "image-to-text":
        how, content = _image(random) if random.random() < 0.3 else ("whole", _picture("PNG"))
        (place / "a.png").write_bytes(content)
        said += [] if how == "whole" else [f"an image {how}"]
    for _ in range(random.choice([0, 0, 1, 1, 1, 2, 4])):
        said.append(_row_changed(random, rows))
    if random.random() < 0.1:
        keys = sorted(rows[0], key=str) or [""]
        rows = [{f"x{key}" if key == keys[0] else key: value for key, value in row.items()} for row in rows]
        said.append("a column named otherwise")
    ending = random.choice(TABLES)
    content = _written(random, rows, ending)
    if random.random() < 0.25 and content:
        how, content = damaged(random, content)
        said.append(how)
    return _put(random, place / f"set{ending}", content, said)


def _row_changed(random: Random, rows: list[dict[str, Any]]) -> str:
    row = random.choice(rows)
    how = random.choice(["value", "value", "key", "extra", "empty", "text", "deep", "all"])
    key = random.choice(sorted(row, key=str)) if row else ""
    match how:
        case "value":
            row[key] = altered(random, row.get(key)) if random.random() < 0.4 else hostile(random)
        case "key":
            row.pop(key, None)
        case "extra":
            row[random.choice(["label", "id", "", "x", "messages", "\ud800"])] = hostile(random)
        case "empty":
            row.clear()
        case "text":
            row[key] = random.choice(["\r", "\t\t", '"', '""","', "a" * 300_000, "\x1a", "\u200b", "\ufeff", "a\0b"])
        case "deep":
            row[key] = nested(random.choice([50, 900]))
        case "all":
            value = hostile(random)
            for other in rows:
                other[key] = value
            return f"{key} everywhere {shown(value)}"
    return f"{how} of {shown(key)} = {shown(row.get(key))}"


def _written(random: Random, rows: list[dict[str, Any]], ending: str) -> bytes:
    if ending == ".parquet":
        try:
            return _parquet(random, rows)
        except (pyarrow.ArrowException, OverflowError, UnicodeError, TypeError, ValueError, RecursionError):
            return b"PAR1" + json.dumps(rows, default=str).encode(errors="replace") + b"PAR1"
    if ending in (".jsonl", ".ndjson", ".json") or (ending == "" and random.random() < 0.3):
        ascii_only = random.random() < 0.5
        lines = [json.dumps(row, ensure_ascii=ascii_only) for row in rows]
        if ending == ".json" and random.random() < 0.5:
            lines = [json.dumps(random.choice([rows, {"data": rows}, {"train": rows}]), ensure_ascii=ascii_only)]
        text = random.choice(NEWLINES[:2]).join(lines) + "\n"
        return text.encode("utf-8", "surrogatepass")
    stream = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(name, "")) for name in names] for row in rows]
    header = [names] if random.random() < 0.8 else []
    newline = random.choice(NEWLINES) if random.random() < 0.2 else "\n"
    if ending == ".csv":
        writer = csv.writer(stream, delimiter=random.choice(",,,,,,;|\t"), lineterminator=newline, escapechar="\\")
        writer.writerows(header + cells)
    else:
        stream.write(
            newline.join(random.choice(["\t", "\t", "\t", "\t", "\t", " ", ","]).join(line) for line in header + cells)
        )
    encoding = random.choice(ENCODINGS) if random.random() < 0.1 else "utf-8"
    errors = "surrogatepass" if encoding.startswith("utf") and encoding != "utf-7" else "replace"
    return stream.getvalue().encode(encoding, errors)


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _parquet(random: Random, rows: list[dict[str, Any]]) -> bytes:
    names = list(dict.fromkeys(str(key) for row in rows for key in row))
    columns: dict[str, Any] = {name: [row.get(name) for row in rows] for name in names}
    if random.random() < 0.4 and names:
        number = len(rows)
        odd: list[Any] = [
            pyarrow.array([None] * number),
            pyarrow.array([b"\xff\xfe"] * number),
            pyarrow.array([1.5] * number, pyarrow.float16())
            if random.random() < 0.1
            else pyarrow.array([0.5] * number),
            pyarrow.array([0] * number, pyarrow.timestamp("ns")),
            pyarrow.array([[1, None]] * number, pyarrow.list_(pyarrow.int64())),
            pyarrow.array([{"a": {"b": None}}] * number),
            pyarrow.array(["x"] * number).dictionary_encode(),
            pyarrow.array([True] * number),
            pyarrow.array([10**37] * number, pyarrow.decimal128(38)),
            pyarrow.array([2**64 - 1] * number, pyarrow.uint64()),
            pyarrow.array([("a", 1)] and [[("a", 1)]] * number, pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        ]
        columns[random.choice(names)] = random.choice(odd)
    sink = io.BytesIO()
    made = pyarrow.table(columns)
    metadata = random.choice([None, None, {"huggingface": "{"}, {"huggingface": json.dumps(hostile(random))}])
    pyarrow.parquet.write_table(made.replace_schema_metadata(metadata) if metadata else made, sink)
    return sink.getvalue()


def _put(random: Random, path: Path, content: bytes, said: list[str]) -> tuple[list[str], str]:
    """The file, packed perhaps, whole or not, under the right name or another."""
    name = path.name
    if random.random() < 0.2:
        ending = random.choice(sorted(PACKING))
        content = PACKING[ending](content)
        name += ending
        if random.random() < 0.4:
            how, content = damaged(random, content)
            said.append(f"packed, {how}")
        if random.random() < 0.15:
            name = path.name + random.choice(sorted(PACKING))
    if random.random() < 0.04:
        name = random.choice(["a b\n.tsv", "-", "\udcff.tsv", "x" * 240 + ".tsv", "é.CSV", ".tsv", "a.tsv.gz.gz"])
    whole = path.with_name(name)
    whole.write_bytes(content)
    return [str(whole)], f"{name[:40]!a} {'; '.join(said) or 'as it should be'}"


def _plain(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """Plain files, a row a line, as many as the task has columns or not."""
    count, sources, said = random.choice([1, 2, 2, 3]), [], []
    lines = random.randint(1, 30)
    for i in range(count):
        number = lines + random.choice([0, 0, 0, 0, 1, -1])
        text = random.choice(NEWLINES).join(sentence(random) for _ in range(number))
        content = text.encode(random.choice(ENCODINGS) if random.random() < 0.2 else "utf-8", "replace")
        if random.random() < 0.3:
            how, content = damaged(random, content)
            said.append(how)
        one, what = _put(random, place / f"part{i}{random.choice(['.txt', '.en', '', '.log'])}", content, [])
        sources += one
        said.append(what)
    return sources, f"plain: {', '.join(said)}"


def _folder(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """A folder of files, some of them no files."""
    said = []
    for _ in range(random.randint(0, 6)):
        inner = place / random.choice(["", "train", "test", "valid", "a", ".hidden", "a/b"])
        inner.mkdir(parents=True, exist_ok=True)
        path = inner / random.choice(["1.txt", "2.txt", "3.png", "x.py", "set.tsv", "train.jsonl", "test.csv"])
        if path.exists() or path.is_symlink():
            continue
        if random.random() < 0.2:
            said.append(make_special(random, path))
        else:
            path.write_bytes(random.choice([b"", sentence(random).encode(), random.randbytes(50), _picture("PNG")]))
    return [str(place)], f"folder with {', '.join(said) or 'files'}"


def _odd(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """Sources that are no files."""
    if random.random() < 0.5:
        path = place / f"set{random.choice(TABLES)}{random.choice(['', '', '.gz', '.zst'])}"
        how = make_special(random, path, pipes=False)  # a pipe that is named as data is waited for, as <(zcat x) is
        return [str(path)], f"{path.name}: {how}"
    given = [
        "",
        " ",
        "-",
        ".",
        "/dev/zero",
        "/dev/null",
        "/proc/self/mem",
        "/proc/version",
        "builtin:",
        "builtin:x:y:z",
    ]
    given += ["builtin:digits:x", "builtin:cldr-dates/xx-yy", "builtin:../x", "hub:", "hub:a/b", "hub:a/b@\0", "\0"]
    given += ["builtin:cldr-dates", "builtin:numbers", "http://x/y.tsv", "~", "~nobody/x", "a" * 5000, "\udcff", "//"]
    chosen = random.sample(given, random.choice([1, 1, 1, 2, 3]))
    return chosen, f"sources {shown(chosen)}"


def _bomb(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """A small file that holds very much."""
    megabytes, ending = random.choice([50, 300]), random.choice(sorted(PACKING))
    unit = random.choice([b"\0", b"a", b"a\n", b"a\tb\n", b"[", b'"'])
    count = 9000 if b"\n" in unit else megabytes * 2**20 // len(unit)  # rows are work, which is done
    content = PACKING[ending](unit * count)
    if random.random() < 0.2:
        content = PACKING[ending](content)
    path = place / f"set{random.choice(TABLES[:5])}{ending}"
    path.write_bytes(content)
    return [str(path)], f"{path.name}: {count:,} x {unit!r} in {len(content):,} bytes"


# ------------------------------------------------------------------------------------------------------------ questions


def _squad(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    paragraphs = []
    for i in range(random.randint(1, 5)):
        text = f"The cat {i} sat on the mat. {sentence(random)}"
        answers = [{"text": "mat", "answer_start": text.index("mat")}]
        qas = [{"id": f"{i}a", "question": "on what?", "answers": answers, "is_impossible": False}]
        paragraphs.append({"context": text, "qas": qas})
    tree: Any = {"version": "v2.0", "data": [{"title": "cats", "paragraphs": paragraphs}]}
    said = [changed(random, tree, {}) for _ in range(random.choice([0, 1, 1, 2]))]
    text = json.dumps(tree, ensure_ascii=random.random() < 0.7)
    content = text.encode("utf-8", "surrogatepass")
    if random.random() < 0.3:
        how, content = broken_text(random, content.decode("utf-8", "replace"))
        said.append(how)
    return _put(random, place / f"set{random.choice(['.json', '.json', '.json', '.jsonl', '.txt'])}", content, said)


def _conll(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    separator, said = random.choice(["\t", " ", "  ", ",", "\u00a0"]), []
    lines = []
    for _ in range(random.randint(1, 12)):
        for word in sentence(random).split():
            tag = random.choice(["O", "B-X", "I-X", "B-Y", "S-X", "E-X", "L-X", "B-", "-X", "b-x", "X"])
            columns = [word, *["x"] * random.choice([0, 0, 0, 2]), tag]
            if random.random() < 0.03:
                columns = random.choice([[word], [], ["", tag], [*columns, "y"], ["#", word], ["-DOCSTART-", "O"]])
                said.append("an odd line")
            lines.append(separator.join(columns))
        lines.append(random.choice(["", "", "", " ", "\t", "#"]))
    content = (
        random.choice(NEWLINES[:3])
        .join(lines)
        .encode(random.choice(["utf-8", "utf-8", "utf-8", "utf-16", "cp1252"]), "replace")
    )
    if random.random() < 0.3:
        how, content = damaged(random, content)
        said.append(how)
    return _put(random, place / f"set{random.choice(['.conll', '.txt', '.bio', '.tsv', '.iob2'])}", content, said)


# --------------------------------------------------------------------------------------------------------------- images


@cache
def _picture(form: str, size: tuple[int, int] = (9, 7), mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    image = Image.new(mode, size, 99 if mode in ("L", "P", "I", "F", "1", "I;16") else None)
    image.save(stream, form)
    return stream.getvalue()


def _png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""
    import zlib

    def chunk(name: bytes, content: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + crc

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def _image(random: Random) -> tuple[str, bytes]:
    how = random.choice(["whole", "damaged", "mode", "claims", "wide", "text", "form", "empty", "flat", "bomb"])
    match how:
        case "damaged":
            return damaged(random, _picture(random.choice(["PNG", "JPEG", "GIF", "BMP"])))
        case "mode":
            form, mode = random.choice([("PNG", "1"), ("PNG", "P"), ("PNG", "RGBA"), ("PNG", "I;16"), ("PNG", "LA")])
            return f"mode {mode}", _picture(form, mode=mode)
        case "claims":
            side = random.choice(
                [(0, 9), (9, 0), (2**31 - 1, 2**31 - 1), (60_000, 60_000), (13_000, 13_000), (20, 10**6)]
            )
            return f"claims {side}", _png_of(*side)
        case "wide":
            return "30000 x 1", _picture("PNG", (30_000, 1))
        case "text":
            return "text", b"not an image"
        case "form":
            form = random.choice(["TIFF", "PPM", "ICO", "WEBP", "GIF", "BMP", "PDF", "TGA"])
            return form, _picture(form)
        case "empty":
            return "empty", b""
        case "flat":
            return "1 x 1", _picture("PNG", (1, 1), "L")
        case "bomb":
            side = random.choice([4000, 9000])
            return f"{side} x {side}", _picture("PNG", (side, side), "L")
    return "whole", _picture("PNG", (random.randint(4, 40), random.randint(4, 40)))


def _pictures(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """A folder of a folder a label."""
    said = []
    for label in random.sample(["a", "b", "train", "test", "é", " ", "x" * 200], random.randint(1, 4)):
        for i in range(random.randint(0, 5)):
            path = place / label / f"{i}{random.choice(['.png', '.png', '.jpg', '.gif', '.webp', '.txt', ''])}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if random.random() < 0.7:
                path.write_bytes(_picture("PNG"))
                continue
            if random.random() < 0.15:
                said.append(make_special(random, path))
            else:
                how, content = _image(random)
                path.write_bytes(content)
                said.append(how)
    return [str(place)], f"images: {', '.join(said) or 'as they should be'}"


def _arrays(random: Random, task: str, place: Path) -> tuple[list[str], str]:
    """IDX or .npz files."""
    count = random.randint(1, 12)
    pixels = np.array(random.choices(range(256), k=count * 48), np.uint8).reshape(count, 6, 8)
    labels = np.array(random.choices(range(3), k=count), np.uint8)
    if random.random() < 0.5:
        said, names = [], ["train-images-idx3-ubyte", "train-labels-idx1-ubyte"]
        for name, array in zip(names, (pixels, labels), strict=True):
            head = bytearray([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
            if random.random() < 0.4:
                at = random.randrange(len(head))
                head[at] = random.choice([0, 1, 127, 255, head[at] ^ 1])
                said.append(f"{name}: byte {at} is {head[at]}")
            content = bytes(head) + array.tobytes()
            if random.random() < 0.2:
                how, content = damaged(random, content)
                said.append(f"{name}: {how}")
            (place / name).write_bytes(content)
        sources = random.choice([[str(place)], [str(place / name) for name in names], [str(place / names[0])]])
        return sources, f"IDX: {', '.join(said) or 'as it should be'}"
    keys = random.choice([("x_train", "y_train"), ("images", "labels"), ("train_images", "train_labels"), ("x", "z")])
    odd: list[Any] = [pixels.astype(object), pixels.astype("f4") / 0.0 if False else pixels.astype("f4") * 1e30]
    odd += [pixels[:0], pixels[0], pixels[..., None], pixels > 9, pixels.astype("c8"), pixels.astype("M8[s]")]
    odd += [np.zeros((count, 0, 4), np.uint8), np.full(pixels.shape, np.nan), pixels[: count // 2], np.array("x")]
    wrong: list[Any] = [
        labels.astype(object),
        labels[:, None],
        labels[:-1],
        labels.astype("f4") + 0.5,
        labels.astype("S3"),
    ]
    wrong += [
        labels[0],
        np.full(count, np.nan),
        np.full(count, -1),
        np.full(count, 2**63 - 1),
        np.array(["\ud800"] * count),
    ]
    images = random.choice(odd) if random.random() < 0.5 else pixels
    held: dict[str, Any] = {keys[0]: images, keys[1]: random.choice(wrong) if random.random() < 0.4 else labels}
    if random.random() < 0.2:
        held["classes"] = np.array(random.choice([["a"], [], ["a", "b", "c"], [None], [1.5, 2.5, 3.5]]), object)
    stream = io.BytesIO()
    np.savez_compressed(stream, allow_pickle=True, **held)
    content, said = stream.getvalue(), [f"{name} {array.dtype} {array.shape}" for name, array in held.items()]
    if random.random() < 0.3:
        how, content = damaged(random, content)
        said.append(how)
    elif random.random() < 0.2:
        shape = random.choice(["(10**9, 10**6)", "(-1, 6, 8)", "(99999999999,)", "(12, 6, 8", "__import__('os')"])
        head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(
                f"{keys[0]}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.encode() + b"\0" * 99
            )
            archive.writestr(f"{keys[1]}.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + head.encode())
        content, said = stream.getvalue(), [f"claims {shape}"]
    return _put(random, place / "set.npz", content, said)


# ------------------------------------------------------------------------------------------------------------------ use


def _use(random: Random, task: str, sources: list[str], root: Path, out: Path) -> tuple[str, Callable[[], str]]:
    chance = random.random()
    if chance < 0.62:
        columns = dict(tasks.get(task).columns)
        options = _options(random)
        return f"read {options or ''}", lambda: _read(sources, columns, options)
    if chance < 0.68:
        return "predict", lambda: _predicted(str(root / task), sources[0], out)
    if chance < 0.80:
        return "audit", lambda: _audit(task, sources)
    if chance < 0.88:
        beside = random.random() < 0.3
        return "evaluate", lambda: _evaluated(str(root / task), sources, beside)
    return "train", lambda: _trained(task, sources, out)


def _options(random: Random) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if random.random() < 0.12:
        names: list[Any] = [
            ["text"],
            ["1", "2"],
            ["2", "1"],
            ["0"],
            ["-1"],
            ["99"],
            ["a.b.c"],
            ["text", "text"],
            [""],
            ["x=y"],
        ]
        names += [
            ["score=1"],
            ["1_0", "٣"],
            ["text", "label"],
            ["source", "target"],
            ["\ud800"],
            [
                "=",
            ],
            ["label=2"],
            [],
        ]
        options["names"] = random.choice(names)
    if random.random() < 0.05:
        options["separator"] = random.choice([",", "", " ", "\n", "\ud800", "a" * 999])
    if random.random() < 0.1:
        options["limit"] = random.choice([1, 2, 10**9])
    if random.random() < 0.1:
        options["split"] = random.choice(["train", "valid", "test"])
    return options


def _read(sources: list[str], columns: dict[str, Any], options: dict[str, Any]) -> str:
    splits(sources)
    rows = read(sources, columns, **options)
    for row in rows[:20]:
        for value in row.values.values():
            if hasattr(value, "pixels"):
                value.pixels()
    return "read"


def _predicted(model: str, source: str, out: Path) -> str:
    json.dumps(predict(model, source, str(out / "answers.jsonl"), device="cpu", quiet=True))
    return "predicted"


def _settings(task: str, sources: list[str], out: str) -> RunSettings:
    given: dict[str, Any] = {"task": task, "train": tuple(sources), "out": out, "max_steps": 1, "device": "cpu"}
    if task == "image-classification":
        return RunSettings(**given, preset="vit-micro")
    if task not in WRITERS:
        given["preset"] = "bert-tiny"
    model, data = ModelSettings(dim=16, heads=2, depth=1), DataSettings(max_length=32)
    return RunSettings(**given, model=model, data=data, tokenizer=TokenizerSettings(size=300))


def _audit(task: str, sources: list[str]) -> str:
    found = audit(_settings(task, sources, "-"))
    json.dumps(found.as_dict())
    "\n".join(found.lines())
    return "audited"


def _evaluated(model: str, sources: list[str], beside: bool) -> str:
    result = evaluate(model, sources, device="cpu", say=lambda line: None, baseline=beside)
    json.dumps(result)
    return "evaluated"


def _trained(task: str, sources: list[str], out: Path) -> str:
    result = train(_settings(task, sources, str(out / "run")), say=lambda line: None, quiet=True)
    json.dumps(result)
    return "trained"
