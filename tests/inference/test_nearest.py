"""The nearest of many texts: against sorting by hand, saved and opened, and what cannot be opened."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heedful
from heedful.data import Row, Rows
from heedful.errors import HeedfulError
from heedful.inference import neighbours
from heedful.inference.neighbours import Index, Near, nearest_vectors, similarity, texts_among
from heedful.inference.pipeline import Pipeline
from heedful.pretrained import save
from heedful.settings import ModelSettings, RunSettings, TokenizerSettings
from heedful.tasks.feature_extraction import FeatureExtraction
from tolerances import approx

ANIMALS, DOINGS = ("dog", "hen", "owl"), ("eats", "sleeps")
TEXTS = [f"the {size} {one} {does}" for size in ("small", "old") for one in ANIMALS for does in DOINGS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, which tells texts apart well enough."""
    rows = Rows(Row({"text": text, "text_pair": text}, "set.tsv", i) for i, text in enumerate(TEXTS, 1))
    asked = RunSettings(
        task="feature-extraction", train=("-",), out="-", preset="bert-tiny",
        model=ModelSettings(dim=32, heads=2, depth=1), tokenizer=TokenizerSettings(kind="bpe", size=300),
    )  # fmt: skip
    task = FeatureExtraction.prepare(rows, asked)
    made = tmp_path_factory.mktemp("vectors")
    save(heedful.create(task.config(asked), seed=0), made, extra={"task": task.name})
    task.save(made)
    return made


@pytest.fixture(scope="module")
def pipe(folder: Path) -> Pipeline:
    return heedful.pipeline(None, folder)


def by_hand(pipe: Pipeline, query: str, texts: list[str], k: int) -> list[str]:
    vectors = {answer.input: np.array(answer.output) for answer in pipe.predict([query, *texts])}
    return sorted(texts, key=lambda text: -float(vectors[query] @ vectors[text]))[:k]


@pytest.mark.parametrize("k", [1, 3, 100])
@pytest.mark.parametrize("block", [1, 5, 1 << 16])
def test_the_nearest_are_those_of_a_search_by_hand(
    pipe: Pipeline, k: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    index = Index(pipe).add(TEXTS[:5]).add([]).add(TEXTS[5:])
    assert len(index) == len(TEXTS)
    queries = ["a dog eats", "the old owl sleeps"]
    found = index.nearest(queries, k)
    for query, near in zip(queries, found, strict=True):
        assert [one.text for one in near] == by_hand(pipe, query, TEXTS, k)
        assert [one.text for one in index.nearest(query, k)] == [one.text for one in near]
        cosines = similarity(pipe, [query], [one.text for one in near])[0]
        assert [one.score for one in near] == approx(cosines.tolist(), "layer")
        assert [one.score for one in near] == sorted((one.score for one in near), reverse=True)
    assert found[1][0].text == "the old owl sleeps"
    assert found[1][0].score == approx(1)


@pytest.mark.parametrize("block", [1, 3, 40])
def test_equals_stand_in_the_order_in_which_they_came(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "BLOCK", block)
    random = np.random.default_rng(0)
    vectors = random.integers(-1, 2, (40, 3)).astype(np.float32)
    queries = random.integers(-1, 2, (7, 3)).astype(np.float32)
    scores, places = nearest_vectors(queries, vectors, 10)
    for query, row, of in zip(queries, scores, places, strict=True):
        products = vectors @ query
        wanted = np.lexsort((np.arange(40), -products))[:10]
        assert of.tolist() == wanted.tolist()
        assert row.tolist() == products[wanted].tolist()


def test_an_index_is_saved_and_opened_again(pipe: Pipeline, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.tsv"
    file.write_text('name\ttext\n1\tthe dog eats\n\n2\tthe "quoted" hen\u2028sleeps\n', encoding="utf-8")
    index = Index(pipe).add(texts_among(file)).add(["an owl"])
    index.save(tmp_path / "index")
    assert sorted(one.name for one in (tmp_path / "index").iterdir()) == ["index.json", "texts.jsonl", "vectors.npy"]
    for again in (Index.open(tmp_path / "index"), Index.open(tmp_path / "index", pipe)):
        assert len(again) == 3
        assert again.nearest("the hen", 3) == index.nearest("the hen", 3)
        assert again.nearest("an owl", 1)[0][2:] == ("", 3)
        assert again.nearest('the "quoted" hen\u2028sleeps', 1)[0][2:] == (str(file), 4)
    again.add(["a cat"]).save(tmp_path / "index")  # over the old one
    assert len(Index.open(tmp_path / "index", pipe)) == 4
    Index(pipe).save(tmp_path / "empty")
    assert Index.open(tmp_path / "empty", pipe).nearest("a", 3) == []


def test_damaged_indices_are_refused(pipe: Pipeline, tmp_path: Path) -> None:
    made = tmp_path / "index"

    def refused(said: str) -> None:
        with pytest.raises(HeedfulError, match=said) as caught:
            Index.open(made, pipe)
        assert "\n" not in str(caught.value)

    made.mkdir()
    refused("index.json is missing")
    index = Index(pipe).add(TEXTS)
    index.save(made)
    vectors, texts = (made / "vectors.npy").read_bytes(), (made / "texts.jsonl").read_text()
    (made / "texts.jsonl").write_text(texts.partition("\n")[2])
    refused(
        rf"should hold {len(TEXTS)} texts and vectors, but holds {len(TEXTS) - 1} texts and vectors of shape "
        rf"\({len(TEXTS)}, 32\); create"
    )
    (made / "texts.jsonl").write_text(texts.replace('{"text"', '{"text', 1))
    refused(r"broken JSON in .*texts\.jsonl:1: .*; create the index again")
    (made / "texts.jsonl").write_text(texts)
    (made / "vectors.npy").write_bytes(vectors[:200])
    refused(r"cannot read .*vectors\.npy \(.*\); create the index again")
    np.save(made / "vectors.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    refused(r"cannot read .*vectors\.npy \(.*\); create the index again")  # which is never unpickled
    np.save(made / "vectors.npy", -index.vectors)
    refused("was created with another model than the one in .*, or that model was trained further since then;")
    np.save(made / "vectors.npy", index.vectors[:, :8])
    refused("was created with another model")
    (made / "index.json").write_text(json.dumps({"format": 9}))
    refused("has a format that this version cannot read")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda index: index.nearest("a", 0), "k is 0; give 1 or more"),
        (lambda index: index.nearest(["a", " "]), "query 2 of 2 is blank or not a string; leave it out"),
        (lambda index: index.nearest([3]), "query 1 of 1 is blank or not a string"),
        (lambda index: index.add(["a", "", "b"]), "text 2 of 3 is blank or not a string; leave it out"),
    ],
)
def test_wrong_questions_are_one_line(pipe: Pipeline, asked: Any, said: str) -> None:
    with pytest.raises(HeedfulError, match=said):
        asked(Index(pipe).add(["a text"]))


def test_texts_among_a_file_a_table_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert [(row.values["text"], row.line) for row in texts_among(tmp_path / "a.txt")] == [("one", 1), ("two", 3)]
    (tmp_path / "b.csv").write_text("id,said\n1,hello\n")
    assert [row.values["text"] for row in texts_among(tmp_path / "b.csv", "said")] == ["hello"]
    (tmp_path / "b.csv").unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "c.md").write_text("\n# Head\nbelow\n   \n\nlast\n")
    found = [(row.values["text"], Path(row.file).name, row.line) for row in texts_among(tmp_path)]
    assert found == [("one", "a.txt", 1), ("two", "a.txt", 3), ("# Head\nbelow", "c.md", 2), ("last", "c.md", 6)]
    with pytest.raises(HeedfulError, match="no such file"):
        texts_among(tmp_path / "gone.txt")


def test_the_engine(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HeedfulError, match="unknown engine 'fais'; did you mean 'faiss'"):
        Index(pipe, "fais")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        HeedfulError, match=r"'faiss' is not installed; pip install 'heedful\[faiss\]', or use engine='numpy'"
    ):
        Index(pipe, "faiss")


def test_faiss_finds_the_same(pipe: Pipeline) -> None:
    pytest.importorskip("faiss", reason="faiss is not installed")
    ours, theirs = Index(pipe).add(TEXTS), Index(pipe, "faiss").add(TEXTS[:4])
    theirs.nearest("a dog", 1)
    theirs.add(TEXTS[4:])  # after it was asked
    for query in ("a dog eats", "the hen"):
        found, wanted = theirs.nearest(query, 4), ours.nearest(query, 4)
        assert [one.text for one in found] == [one.text for one in wanted]
        assert [one.score for one in found] == approx([one.score for one in wanted])


def test_another_task_has_no_vectors() -> None:
    class Other:
        task = type("Translation", (), {"name": "translation"})()

    with pytest.raises(HeedfulError, match="an index needs text vectors, but this model is for translation; use"):
        Index(Other())  # type: ignore[arg-type]
    assert Near("a", 0.5, "", 1).text == "a"
