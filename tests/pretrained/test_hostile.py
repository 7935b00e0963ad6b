"""Files that are damaged, or made to do harm: each is one clear line, nothing is executed, nothing is half loaded."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import heedful
from heedful.config import DecoderConfig, EmbeddingConfig, LearnedPosition, PatchConfig, StackConfig, VisionConfig
from heedful.pretrained import load, save
from heedful.pretrained.folder import indented_json
from tolerances import assert_same_model

STACK = StackConfig(
    dim=16, depth=2, heads=2, causal=True, position=LearnedPosition(length=8), activation="gelu_tanh", init="scaled"
)
GPT = DecoderConfig(embedding=EmbeddingConfig(vocab_size=11), decoder=STACK)
IDS = torch.tensor([[1, 2, 3, 4]])
WHOLE, INDEX, PICKLE = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WTE, NORM = "transformer.wte.weight", "transformer.ln_f.weight"


@pytest.fixture
def gpt(tmp_path: Path) -> Path:
    save(heedful.create(GPT, seed=0), tmp_path / "gpt")
    return tmp_path / "gpt"


def change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def retyped(folder: Path, name: str, to: torch.dtype) -> None:
    tensors = load_file(folder / WHOLE)
    save_file(tensors | {name: tensors[name].to(to)}, folder / WHOLE)


def header(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """The same bytes under a header that says something else."""

    def rewrite(folder: Path) -> None:
        whole = (folder / WHOLE).read_bytes()
        (length,) = struct.unpack("<Q", whole[:8])
        told = json.loads(whole[8 : 8 + length])
        change(told)
        said = json.dumps(told).encode()
        (folder / WHOLE).write_bytes(struct.pack("<Q", len(said)) + said + whole[8 + length :])

    return rewrite


def prefix(length: int) -> Callable[[Path], None]:
    return lambda folder: _write(folder / WHOLE, struct.pack("<Q", length) + (folder / WHOLE).read_bytes()[8:])


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def shards(change: Callable[[dict[str, str], dict[str, dict[str, Any]]], Any]) -> Callable[[Path], None]:
    """Two shards and their index, ``change``d before they are written."""

    def divide(folder: Path) -> None:
        tensors = load_file(folder / WHOLE)
        where = {name: ONE if i % 2 else TWO for i, name in enumerate(tensors)}
        where[WTE], where[NORM] = ONE, TWO
        files = {file: {n: tensors[n] for n in tensors if where[n] == file} for file in (ONE, TWO)}
        change(where, files)
        (folder / WHOLE).unlink()
        for file, content in files.items():
            save_file(content, folder / file)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))

    return divide


def pickled(content: Callable[[dict[str, torch.Tensor]], Any], **options: Any) -> Callable[[Path], None]:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WHOLE)
        (folder / WHOLE).unlink()
        torch.save(content(tensors), folder / PICKLE, **options)

    return rewrite


class Harm:
    """Code in a pickle: it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def bare_pickle(folder: Path) -> None:
    (folder / WHOLE).unlink()
    (folder / PICKLE).write_bytes(pickle.dumps({"a": Harm(folder / "harm")}))


def harmful(folder: Path) -> None:
    pickled(lambda tensors: tensors | {"x": Harm(folder / "harm")})(folder)


def short_storage(folder: Path) -> None:
    """An archive whose tensor claims more numbers than its storage has."""
    pickled(lambda tensors: tensors)(folder)
    with zipfile.ZipFile(folder / PICKLE) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    largest = max((name for name in files if "/data/" in name), key=lambda name: len(files[name]))
    files[largest] = files[largest][:8]
    with zipfile.ZipFile(folder / PICKLE, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def renamed(old: str, new: str) -> Callable[[Path], None]:
    return lambda folder: (folder / old).rename(folder / new) and None


CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    # safetensors
    "truncated": (lambda f: _write(f / WHOLE, (f / WHOLE).read_bytes()[:-50]), "is not a complete safetensors file"),
    "cut in the header": (
        lambda f: _write(f / WHOLE, (f / WHOLE).read_bytes()[:40]),
        "is not a complete safetensors file",
    ),
    "longer": (lambda f: _write(f / WHOLE, (f / WHOLE).read_bytes() + b"\0"), "is not a complete safetensors file"),
    "empty": (lambda f: _write(f / WHOLE, b""), "is not a complete safetensors file"),
    "corrupted header": (
        lambda f: _write(f / WHOLE, (f / WHOLE).read_bytes().replace(b'":{', b'"}{')),
        "not a complete safe",
    ),
    "no text": (
        lambda f: _write(f / WHOLE, struct.pack("<Q", 4) + b"\xff\xfe{}"),
        "is not a complete safetensors file",
    ),
    "huge header": (prefix(2**63), r"is not a complete safetensors file .*header too large"),
    "header past the end": (prefix(50_000_000), "is not a complete safetensors file"),
    "size lies": (header(lambda h: h[WTE].update(shape=[10**9, 16])), "is not a complete safetensors file"),
    "size overflows": (header(lambda h: h[WTE].update(shape=[2**40, 2**40])), "is not a complete safetensors file"),
    "negative size": (header(lambda h: h[WTE].update(shape=[-1, 16])), "is not a complete safetensors file"),
    "offset lies": (
        header(lambda h: h[WTE].update(data_offsets=[10**9, 10**9 + 704])),
        "is not a complete safetensors file",
    ),
    "offsets overlap": (
        header(lambda h: h[WTE].update(data_offsets=h[NORM]["data_offsets"])),
        "not a complete safetensors",
    ),
    "unknown type": (header(lambda h: h[WTE].update(dtype="F33")), "is not a complete safetensors file"),
    "another shape": (
        header(lambda h: h[WTE].update(shape=[16, 11])),
        r"wte.weight is \(16, 11\), but the config.*\(11, 16",
    ),
    "a folder": (lambda f: (f / WHOLE).unlink() or (f / WHOLE).mkdir(), "model.safetensors is not a regular file"),
    # types
    "int8": (lambda f: retyped(f, WTE, torch.int8), "of another type: .*wte.weight is torch.int8, not torch.float32"),
    "uint8": (lambda f: retyped(f, WTE, torch.uint8), "wte.weight is torch.uint8, not torch.float32"),
    "bool": (lambda f: retyped(f, NORM, torch.bool), "ln_f.weight is torch.bool, not torch.float32"),
    "complex": (lambda f: retyped(f, WTE, torch.complex64), "unsupported weights in .*wte.weight is torch.complex64"),
    "float8": (
        lambda f: retyped(f, WTE, torch.float8_e4m3fn),
        "unsupported weights in .*wte.weight is torch.float8_e4m3fn",
    ),
    "uint64": (lambda f: retyped(f, WTE, torch.uint64), "unsupported weights in .*wte.weight is torch.uint64"),
    # pickles
    "a pickle with code": (harmful, r"pytorch_model.bin is damaged.*could run code"),
    "code in an old pickle": (bare_pickle, r"pytorch_model.bin is damaged"),
    "more than tensors": (pickled(lambda t: t | {"epoch": 3}), "pytorch_model.bin is not a plain mapping"),
    "tensors in a folder": (pickled(lambda t: {"model": t}), "pytorch_model.bin is not a plain mapping"),
    "a list": (pickled(lambda t: list(t.values())), "pytorch_model.bin is not a plain mapping"),
    "numbers for names": (pickled(lambda t: dict(enumerate(t.values()))), "pytorch_model.bin is not a plain mapping"),
    "tensors without numbers": (pickled(lambda t: t | {WTE: t[WTE].to("meta")}), "is not a plain mapping"),
    "sparse tensors": (pickled(lambda t: t | {WTE: t[WTE].to_sparse()}), "is not a plain mapping|Sparse invariant"),
    "a cut pickle": (
        lambda f: pickled(lambda t: t)(f) or _write(f / PICKLE, (f / PICKLE).read_bytes()[:-500]),
        "pytorch_model.bin is damaged",
    ),
    "a short storage": (short_storage, "pytorch_model.bin is damaged"),
    "an empty pickle": (lambda f: (f / WHOLE).unlink() or _write(f / PICKLE, b""), "is damaged"),
    # shards
    "a path above": (
        shards(lambda w, f: w.update({WTE: "../" + ONE})),
        'no "weight_map" that maps tensors to .safetensors',
    ),
    "an absolute path": (
        shards(lambda w, f: w.update({WTE: "/tmp/x.safetensors"})),
        'no "weight_map" that maps tensors',
    ),
    "a path below": (shards(lambda w, f: w.update({WTE: "a/x.safetensors"})), 'no "weight_map" that maps tensors'),
    "the folder above": (shards(lambda w, f: w.update({WTE: ".."})), 'no "weight_map" that maps tensors'),
    "a pickle among shards": (shards(lambda w, f: w.update({WTE: "x.bin"})), 'no "weight_map" that maps tensors'),
    "an endless name": (shards(lambda w, f: w.update({WTE: "x" * 5000 + ".safetensors"})), 'no "weight_map" that'),
    "no name": (shards(lambda w, f: w.update({WTE: 3})), 'no "weight_map" that maps tensors'),
    "an absent shard": (shards(lambda w, f: f.pop(TWO)), f"lacks {TWO}, named in model.safetensors.index.json; down"),
    "an odd name": (shards(lambda w, f: w.update({WTE: "\0.safetensors"})), r"lacks .*, named in model"),
    "not in its shard": (shards(lambda w, f: f[ONE].pop(WTE)), f"{WTE} is not in {ONE}"),
    "in another shard": (
        shards(lambda w, f: f[TWO].update({WTE: f[ONE].pop(WTE)})),
        f"{ONE}; {TWO} holds {WTE}, not listed for it",
    ),
    "in two shards": (
        shards(lambda w, f: f[TWO].update({WTE: f[ONE][WTE]})),
        f"{TWO} holds {WTE}, not listed for it; download",
    ),
    "unnamed in a shard": (
        shards(lambda w, f: f[TWO].update(x=torch.ones(1))),
        f"{TWO} holds x, not listed for it; download",
    ),
    "an index of nothing": (
        lambda f: shards(lambda w, f: None)(f) or (f / INDEX).write_text('{"weight_map": {}}'),
        "embedding.vocab_size is 11, but the stored weights have only 0 numbers in all",
    ),
    "an index of lists": (
        lambda f: shards(lambda w, f: None)(f) or (f / INDEX).write_text('{"weight_map": []}'),
        'no "weight_map" that maps tensors',
    ),
    # config.json
    "no object": (lambda f: (f / "config.json").write_text('["gpt2"]'), "config.json is not a JSON object"),
    "a number of 5,000 digits": (lambda f: (f / "config.json").write_text("9" * 5000), "cannot read .*config.json"),
    "brackets without end": (lambda f: (f / "config.json").write_text("[" * 200_000), "cannot read .*config.json"),
    "a huge width": (
        lambda f: change(f, n_embd=10**12),
        "decoder.dim is 1000000000000, but the stored weights have only .* numbers",
    ),
    "a wide head": (
        lambda f: change(f, n_head=10**12, n_embd=10**12),
        "decoder.dim is 10{12}, but the stored weights have",
    ),
    "a wide feed-forward": (
        lambda f: change(f, n_inner=10**30),
        "decoder.ff_dim is 10{30}, but the stored weights have",
    ),
    "a deep model": (
        lambda f: change(f, n_layer=10**9),
        "decoder.depth is 10{9}, but the stored weights have only .* tensors in all",
    ),
    "many positions": (
        lambda f: change(f, n_positions=10**15),
        "decoder.position.length is 10{15}, but the stored weights",
    ),
    "many words": (
        lambda f: change(f, vocab_size=10**18),
        "embedding.vocab_size is 10{18}, but the stored weights have",
    ),
    "another class": (
        lambda f: change(f, architectures=["GPT2Dog"]),
        "the class 'GPT2Dog' is not supported; known: GPT2F",
    ),
    "another family": (lambda f: change(f, architectures=["BertModel"]), "the class 'BertModel' is not supported"),
    "no list of classes": (lambda f: change(f, architectures="GPT2LMHeadModel"), '"architectures" is missing'),
    "objects for classes": (lambda f: change(f, architectures=[{}]), "the class {} is not supported"),
    "a list for a type": (lambda f: change(f, model_type=["gpt2"]), "model_type .* is not supported"),
}


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_no_harm(name: str, gpt: Path) -> None:
    breaks, message = CASES[name]
    breaks(gpt)
    before = sorted(path.name for path in gpt.iterdir())
    with pytest.raises(heedful.HeedfulError, match=message) as error:
        load(gpt)
    assert "\n" not in str(error.value)
    assert str(gpt) in str(error.value)
    assert sorted(path.name for path in gpt.iterdir()) == before  # nothing was executed


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_of_tensors_is_read(zipped: bool, gpt: Path) -> None:
    expected = load(gpt)
    pickled(lambda tensors: tensors, _use_new_zipfile_serialization=zipped)(gpt)
    assert_same_model(load(gpt), expected, IDS)
    model = load(gpt)
    before = (gpt / PICKLE).read_bytes()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert (gpt / PICKLE).read_bytes() == before


def test_pickles_in_shards(gpt: Path) -> None:
    expected, tensors = load(gpt), load_file(gpt / WHOLE)
    (gpt / WHOLE).unlink()
    where = {name: f"pytorch_model-{i % 2}.bin" for i, name in enumerate(tensors)}
    for file in set(where.values()):
        torch.save({name: tensors[name] for name in tensors if where[name] == file}, gpt / file)
    (gpt / f"{PICKLE}.index.json").write_text(json.dumps({"weight_map": where}))
    assert_same_model(load(gpt), expected, IDS)


def test_shards_behind_links_are_read(gpt: Path, tmp_path: Path) -> None:
    """So the Hub's cache keeps them."""
    expected = load(gpt)
    shards(lambda where, files: None)(gpt)
    (tmp_path / "blobs").mkdir()
    for file in (ONE, TWO):
        (gpt / file).rename(tmp_path / "blobs" / file)
        (gpt / file).symlink_to(tmp_path / "blobs" / file)
    assert_same_model(load(gpt), expected, IDS)


def test_safetensors_are_read_where_there_is_a_pickle_too(gpt: Path) -> None:
    (gpt / PICKLE).write_bytes(pickle.dumps(Harm(gpt / "harm")))
    load(gpt)
    assert not (gpt / "harm").exists()


JUNK: list[Any] = [None, True, -1, 0, 1.5, 10**40, "x", "", [], [1], {}, {"a": 1}, [[]], float("nan")]


def refuses(folder: Path) -> bool:
    try:
        load(folder)
    except heedful.HeedfulError as error:
        return "\n" not in str(error) or pytest.fail("more than a line")
    return False


def test_any_value_in_the_configuration(gpt: Path) -> None:
    """A wrong value is one line that says so, or is not needed to read the model; never anything else."""
    path, refused = gpt / "config.json", 0
    right = json.loads(path.read_text())
    for key in right:
        for junk in JUNK:
            path.write_text(json.dumps(right | {key: junk}))
            refused += refuses(gpt)
    assert refused > len(right) * len(JUNK) / 2


def test_a_head_is_fresh_only_when_asked_for(gpt: Path) -> None:
    tensors = load_file(gpt / WHOLE)
    save_file({name: t for name, t in tensors.items() if name != WTE}, gpt / WHOLE)
    with pytest.raises(heedful.HeedfulError, match=f"missing: {WTE}"):
        load(gpt)
    with pytest.raises(heedful.HeedfulError, match=f"missing: {WTE}"):
        load(gpt, head="sequence")


@pytest.mark.parametrize("shape", [(2, 1, 16), (16,), (), (1, 1, 8)])
def test_tokens_that_are_to_be_joined_have_one_row(shape: tuple[int, ...], tmp_path: Path) -> None:
    patches = PatchConfig(image_size=(8, 8), patch_size=4, channels=1, prefix="class+distillation")
    stack = StackConfig(dim=16, depth=1, heads=2, position=LearnedPosition(length=6))
    save(heedful.create(VisionConfig(patches=patches, encoder=stack), seed=0), tmp_path)
    tensors = load_file(tmp_path / WHOLE)
    [name] = [name for name in tensors if name.endswith("distillation_token")]
    save_file(tensors | {name: torch.ones(shape)}, tmp_path / WHOLE)
    with pytest.raises(heedful.HeedfulError, match=r"config.json: .*distillation_token is .*use other weights"):
        load(tmp_path)


@pytest.mark.parametrize("task", [{"a": 1}, ["translation"], 3, True])
def test_a_task_that_is_no_name(task: Any, gpt: Path) -> None:
    (gpt / "heedful.json").write_text(json.dumps({"task": task}))
    with pytest.raises(heedful.HeedfulError, match=r"unknown task .*(known|did you mean)"):
        heedful.pipeline(None, gpt)


@pytest.mark.parametrize("columns", [0.5, -1e308, "text", ["text"], True, {"text": 3}])
def test_columns_that_are_no_names(columns: Any, gpt: Path) -> None:
    (gpt / "heedful.json").write_text(json.dumps({"task": "text-generation", "columns": columns}))
    with pytest.raises(heedful.HeedfulError, match=r"heedful.json: columns is .*write an object of names"):
        heedful.pipeline(None, gpt)


@pytest.mark.parametrize("settings", [0.5, "text", None, [], {"data": "text"}, {"data": None}, {"pooling": [1]}])
def test_settings_that_are_no_sections(settings: Any, gpt: Path) -> None:
    (gpt / "heedful.json").write_text(json.dumps({"task": "text-generation", "settings": settings}))
    with pytest.raises(heedful.HeedfulError, match=r"heedful.json: settings is .*write an object of sections"):
        heedful.pipeline(None, gpt)


def test_half_of_a_surrogate_pair_goes_out_as_it_came_in() -> None:
    said = {"temperature": {"\ud800": "é \udfff"}}
    assert json.loads(indented_json(said)) == said
    assert "é".encode() in indented_json(said)


def test_our_own_layout_is_held_to_its_weights_too(tmp_path: Path) -> None:
    save(heedful.create(replace(GPT, decoder=replace(STACK, norm="rms")), seed=0), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value in {"dim": 10**12, "depth": 10**9, "window": 10**12}.items():
        (tmp_path / "config.json").write_text(json.dumps(config | {"decoder": config["decoder"] | {key: value}}))
        if key == "window":  # no tensor has this size
            assert load(tmp_path).config.decoder.window == value
        else:
            with pytest.raises(heedful.HeedfulError, match=f"decoder.{key} is {value}, but the stored weights have"):
                load(tmp_path)


def with_many(change: Callable[[dict[str, torch.Tensor], int], Any]) -> Callable[[Path], None]:
    """The weights with 2,000 changes, each given its number."""

    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / WHOLE)
        for number in range(2000):
            change(tensors, number)
        save_file(tensors, folder / WHOLE)

    return rewrite


def unlisted(where: dict[str, str], files: dict[str, dict[str, Any]]) -> None:
    files[ONE] |= {f"extra.{number}": torch.zeros(1) for number in range(2000)}


def absent(where: dict[str, str], files: dict[str, dict[str, Any]]) -> None:
    where |= {f"extra.{number}": f"{number}.safetensors" for number in range(2000)}


MANY: dict[str, tuple[Callable[[Path], Any], str]] = {
    "unexpected": (
        with_many(lambda tensors, i: tensors.update({f"extra.{i}": torch.zeros(1)})),
        "; unexpected: extra.0, extra.1, .* and 1,992 more; use",
    ),
    "long names": (
        with_many(lambda tensors, i: tensors.update({f"extra.{i}.{'x' * 500}": torch.zeros(1)})),
        "; unexpected: extra.0.xx.* and 1,992 more; use",
    ),
    "of an unknown type": (
        with_many(lambda tensors, i: tensors.update({f"extra.{i}": torch.zeros(1, dtype=torch.complex64)})),
        "unsupported weights in .*: extra.* and 1,992 more; convert",
    ),
    "not in the index": (shards(unlisted), "does not fit its files: .*; .* and 1,992 more; download"),
    "of absent files": (shards(absent), "lacks 0.safetensors, .* and 1,992 more, named in"),
}


@pytest.mark.parametrize("name", MANY)
def test_the_first_few_of_many_wrong_tensors_are_named(name: str, gpt: Path) -> None:
    breaks, message = MANY[name]
    breaks(gpt)
    with pytest.raises(heedful.HeedfulError, match=message) as error:
        load(gpt)
    assert len(str(error.value)) < 3000


def test_the_first_few_of_many_wrong_tensors_of_our_own_layout_are_named(tmp_path: Path) -> None:
    save(heedful.create(GPT, seed=0), tmp_path)
    with_many(lambda tensors, i: tensors.update({f"extra.{i}": torch.zeros(1)}))(tmp_path)
    with pytest.raises(heedful.HeedfulError, match=r"unexpected: extra\.0, .* and 1,992 more; use") as error:
        load(tmp_path)
    assert len(str(error.value)) < 1000


# ------------------------------------------------------------------------------------------------ numbers that are none


def filled(name: str, value: float, dtype: torch.dtype = torch.float32) -> Callable[[Path], None]:
    """One number of a tensor replaced, the last: a pass that stops early would not see it."""

    def rewrite(folder: Path) -> None:
        tensors = {key: tensor.to(dtype) for key, tensor in load_file(folder / WHOLE).items()}
        tensors[name].view(-1)[-1] = value
        save_file(tensors, folder / WHOLE)

    return rewrite


NOT_FINITE = {
    "NaN": (filled(WTE, float("nan")), f"{WTE} holds NaN"),
    "infinity": (filled(WTE, float("inf")), f"{WTE} holds infinity"),
    "minus infinity": (filled(NORM, float("-inf")), f"{NORM} holds infinity"),
    "NaN in a turned part": (filled("transformer.h.1.attn.c_attn.weight", float("nan")), "c_attn.weight holds NaN"),
    "NaN in bfloat16": (filled(NORM, float("nan"), torch.bfloat16), f"{NORM} holds NaN"),
    "NaN in float16": (filled(NORM, float("nan"), torch.float16), f"{NORM} holds NaN"),
    "infinity in float64": (filled(NORM, float("inf"), torch.float64), f"{NORM} holds infinity"),
}


@pytest.mark.parametrize(("damage", "said"), NOT_FINITE.values(), ids=NOT_FINITE)
def test_weights_that_are_not_finite_are_refused(gpt: Path, damage: Callable[[Path], None], said: str) -> None:
    damage(gpt)
    with pytest.raises(heedful.HeedfulError, match=said) as error:
        load(gpt)
    assert str(gpt / WHOLE) in str(error.value)
    assert "check_finite=False" in str(error.value)
    assert "\n" not in str(error.value)
    assert not load(gpt, check_finite=False).training


def test_several_tensors_that_are_not_finite_are_counted_and_their_shard_named(gpt: Path) -> None:
    def spoil(where: dict[str, str], files: dict[str, dict[str, Any]]) -> None:
        for tensors in files.values():
            for tensor in tensors.values():
                tensor[-1] = float("nan")

    shards(spoil)(gpt)
    with pytest.raises(heedful.HeedfulError, match=rf"{ONE}: .*{WTE} holds NaN, and \d+ more tensors"):
        load(gpt)


def test_large_numbers_are_finite_and_those_beyond_the_wanted_type_are_not(gpt: Path) -> None:
    tensors = load_file(gpt / WHOLE)
    save_file(tensors | {WTE: torch.full_like(tensors[WTE], 3e38)}, gpt / WHOLE)  # their sum is infinite
    assert load(gpt).embedding.token.weight[0, 0] == torch.tensor(3e38)
    filled(NORM, 1e300, torch.float64)(gpt)
    assert load(gpt).dtype == torch.float64
    with pytest.raises(heedful.HeedfulError, match=rf"{NORM} holds 1e\+300, too large for float32"):
        load(gpt, dtype="float32")


def test_a_buffer_that_the_model_has_no_use_for_may_hold_anything(gpt: Path) -> None:
    tensors = load_file(gpt / WHOLE)
    save_file(tensors | {"transformer.h.0.attn.masked_bias": torch.tensor(float("-inf"))}, gpt / WHOLE)
    assert torch.equal(load(gpt)(IDS), load(gpt, check_finite=False)(IDS))
