"""Estimators: scikit-learn's own checks, its tools, and every form of inputs."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import validate_data

import heedful
from heedful.errors import HeedfulError
from heedful.sklearn import ImageClassifier, TextClassifier, TextEmbedder, TextRegressor, texts_of
from test_every_task import SMALL, command_of

TINY: dict[str, Any] = {
    "max_steps": 2,
    "random_state": 0,
    "settings": {"model_settings": {"dim": 16, "depth": 1, "heads": 2}, "tokenizer": {"kind": "word"}},
}
TEXTS = [f"film {number} is {word}" for number in range(20) for word in ("good", "bad", "long")]
LABELS = [text.split()[-1] for text in TEXTS]


def tiny(kind: Any = TextClassifier, **changes: Any) -> Any:
    return kind(**{"preset": "bert-tiny", **TINY, **changes})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence encoder of two steps."""
    from heedful import cli

    place = tmp_path_factory.mktemp("encoder")
    command = [*command_of("feature-extraction", place), "--out", str(place / "run"), "--max-steps=2", "--json"]
    assert SMALL[0] in command
    assert cli.main(command) == 0
    return place / "run"


# -------------------------------------------------------------------------------------- scikit-learn's own checks


def words(X: np.ndarray) -> list[str]:
    return [" ".join(f"c{column}v{round(2 * value)}" for column, value in enumerate(row)) for row in X.tolist()]


def pictures(X: np.ndarray) -> list[Image.Image]:
    """Returns a picture of 8 × 8 pixels for each row, with a stripe for each number."""
    greys = (np.round(40 * X) % 256).astype(np.uint8)
    return [Image.fromarray(row[None]).resize((8, 8), Image.Resampling.NEAREST) for row in greys]


class OfNumbers:
    """Numbers as words or pictures, since the checks give numbers."""

    inputs_of = staticmethod(words)

    def _inputs(self, X: Any, **checked: Any) -> list[Any]:
        inputs: list[Any] = self.inputs_of(validate_data(self, X, **checked))
        return inputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        kinds = tags.input_tags
        kinds.string = kinds.one_d_array = kinds.three_d_array = kinds.positive_only = False
        kinds.two_d_array = True
        for kind in (tags.classifier_tags, tags.regressor_tags):
            if kind is not None:
                kind.poor_score = True  # two steps of training do not learn clusters or numbers
        return tags


class Predictor(OfNumbers):
    def fit(self, X: Any, y: Any) -> Any:
        X, y = validate_data(self, X, y)
        return super().fit(self.inputs_of(X), y)  # type: ignore[misc]

    def predict(self, X: Any) -> Any:
        return super().predict(self._inputs(X, reset=False))  # type: ignore[misc]


class NumberClassifier(Predictor, TextClassifier):
    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._inputs(X, reset=False))


class NumberRegressor(Predictor, TextRegressor):
    pass


class NumberPictures(Predictor, ImageClassifier):
    inputs_of = staticmethod(pictures)

    def predict_proba(self, X: Any) -> Any:
        return super().predict_proba(self._inputs(X, reset=False))


class NumberEmbedder(OfNumbers, TextEmbedder):
    def fit(self, X: Any, y: Any = None) -> Any:
        texts = self._inputs(X)
        return super().fit([(text, f"row {text}") for text in texts] if self.fine_tune else texts)

    def transform(self, X: Any) -> Any:
        return super().transform(self._inputs(X, reset=False))


IN_A_BATCH = {"check_methods_subset_invariance": "float32: a text beside others differs in the seventh digit"}
CONTRACT = (  # parameters, clones, pickles, repeated fits, use before fit
    *("check_estimator_cloneable", "check_no_attributes_set_in_init", "check_estimators_overwrite_params"),
    *("check_dont_overwrite_parameters", "check_estimators_unfitted", "check_transformers_unfitted"),
    *("check_do_not_raise_errors_in_init_or_set_params", "check_estimators_pickle", "check_get_params_invariance"),
    *("check_parameters_default_constructible", "check_set_params", "check_dict_unchanged", "check_fit_idempotent"),
    "check_fit_check_is_fitted",
)


def run_check(check: Any, estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks' own
        check(estimator)


@parametrize_with_checks(
    [
        tiny(NumberClassifier),
        tiny(NumberPictures, preset=None, settings={"model_settings": TINY["settings"]["model_settings"]}),
    ],
    expected_failed_checks=lambda estimator: IN_A_BATCH if isinstance(estimator, TextClassifier) else {},
)
@pytest.mark.full(keep=CONTRACT)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    run_check(check, estimator)


@parametrize_with_checks([tiny(NumberRegressor)], expected_failed_checks=lambda estimator: IN_A_BATCH)
@pytest.mark.full  # each fit compares its model with a baseline over thousands of draws
def test_scikit_learns_checks_of_a_regressor(estimator: Any, check: Any) -> None:
    run_check(check, estimator)


@parametrize_with_checks([NumberEmbedder("run"), NumberEmbedder("run", fine_tune=True, max_steps=1, random_state=0)])
@pytest.mark.full(keep=CONTRACT)
def test_scikit_learns_checks_of_an_embedder(
    estimator: Any, check: Any, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of its model is a parameter of the test, and so known before there is a folder."""
    monkeypatch.chdir(encoder.parent)
    run_check(check, estimator)


# ------------------------------------------------------------------------------------------------ forms of inputs


class OnlyArray:
    """Converts to an array, and does nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.array


@pytest.mark.parametrize(
    "given",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object)[:, None],
        [[text] for text in TEXTS],
        pd.Series(TEXTS),
        pd.DataFrame({"film": TEXTS}),
        pl.Series(TEXTS),
        pl.DataFrame({"film": TEXTS}),
        OnlyArray(np.array(TEXTS)),
    ],
)
def test_texts_are_taken_in_any_form(given: Any) -> None:
    assert texts_of(given) == TEXTS


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, None])
def test_two_columns_are_pairs(kind: Any) -> None:
    pairs = list(zip(TEXTS, LABELS, strict=True))
    assert texts_of(pairs if kind is None else kind({"a": TEXTS, "b": LABELS})) == pairs


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("a text", "X is of type str; give a list, array or column of texts"),
        ({"a": 1}, "X is of type dict"),
        (3, "X is of type int"),
        (["a", 3.0], r"X\[1\] is float, not a text"),
        (["a", None], r"X\[1\] is NoneType"),
        (pd.Series(["a", float("nan")]), r"X\[1\] is float"),
        (["a", ("a", "b")], "X has 1 pairs of texts among 2 examples"),
        ([("a", "b", "c")], r"X\[0\] is three texts"),
        (pd.DataFrame({"a": ["x"], "b": ["y"], "c": ["z"]}), r"X has the shape \(1, 3\)"),
        (TfidfVectorizer().fit_transform(TEXTS), "X is a sparse matrix"),
    ],
)
def test_other_inputs_are_refused(given: Any, says: str) -> None:
    with pytest.raises(HeedfulError, match=says):
        texts_of(given)


@pytest.mark.parametrize("labels", [["no", "yes"], [0, 1], [False, True], [1.0, 2.0], ["", " a"], ["a", "a "]])
def test_labels_keep_their_type(labels: list[Any]) -> None:
    y = np.array(labels)[[index % 2 for index in range(len(TEXTS))]]
    fitted = tiny().fit(TEXTS, y)
    assert fitted.classes_.tolist() == sorted(labels)
    assert set(fitted.predict(TEXTS).tolist()) <= set(labels)
    assert fitted.predict(TEXTS).dtype == fitted.classes_.dtype
    p = fitted.predict_proba([*TEXTS[:3], ""])
    np.testing.assert_allclose(p.sum(1), 1)
    np.testing.assert_allclose(p[3], [0.5, 0.5])


def test_it_learns_and_its_probabilities_are_those_of_a_pipeline(tmp_path: Path) -> None:
    fitted = tiny(max_steps=60).fit(TEXTS, LABELS)
    assert fitted.score(TEXTS, LABELS) == 1
    assert fitted.metrics_["accuracy"] == 100
    fitted.save(tmp_path / "films")
    pipe = heedful.pipeline("text-classification", tmp_path / "films")
    for text, label, p in zip(TEXTS, fitted.predict(TEXTS), fitted.predict_proba(TEXTS), strict=True):
        answer = pipe(text)
        assert answer["output"] == label
        assert answer["score"] == pytest.approx(p.max(), abs=1e-6)
    with pytest.raises(HeedfulError, match="is not empty"):
        fitted.save(tmp_path / "films")


@pytest.mark.parametrize("hold", ["files", "path"])
def test_a_trained_folder_is_opened(tmp_path: Path, hold: str) -> None:
    tiny(max_steps=60, out=tmp_path / "films").fit(TEXTS, LABELS)
    opened = TextClassifier.load(tmp_path / "films", hold=hold)
    again = pickle.loads(pickle.dumps(opened))
    pipe = heedful.pipeline("text-classification", tmp_path / "films")
    assert opened.classes_.tolist() == sorted(set(LABELS))
    assert opened.score(TEXTS, LABELS) == again.score(TEXTS, LABELS) == 1
    for text, p in zip(TEXTS, make_pipeline(opened).predict_proba(TEXTS), strict=True):
        shown = {one["label"]: one["score"] for one in pipe(text, top_k=None)["output"]}
        np.testing.assert_allclose(p, [shown[name] for name in opened.classes_], atol=1e-6)
    np.testing.assert_allclose(opened.predict_proba([""]), [[1 / 3] * 3])
    assert opened.metrics_["accuracy"] == 100
    with pytest.raises(HeedfulError, match="predicts labels; use TextClassifier"):
        TextRegressor.load(tmp_path / "films")
    with pytest.raises(HeedfulError):
        ImageClassifier.load(tmp_path / "films")
    with pytest.raises(HeedfulError, match="hold"):
        TextClassifier.load(tmp_path / "films", hold="file")
    with pytest.raises(NotFittedError):
        clone(opened).predict(TEXTS)


def test_a_folder_of_numbers_of_images_and_of_vectors_is_opened(tmp_path: Path, encoder: Path) -> None:
    texts, weights = [f"box {number}" for number in range(60)], [10.0 * (number % 5) for number in range(60)]
    fitted = tiny(TextRegressor, max_steps=2, out=tmp_path / "boxes").fit(texts, weights)
    opened = TextRegressor.load(tmp_path / "boxes")
    np.testing.assert_allclose(opened.predict(texts), fitted.predict(texts), rtol=1e-5)
    assert opened.predict([""])[0] == json.loads((tmp_path / "boxes" / "heedful.json").read_text())["numbers"]["mean"]
    with pytest.raises(HeedfulError, match="predicts numbers; use TextRegressor"):
        TextClassifier.load(tmp_path / "boxes")
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    seen = ImageClassifier(max_steps=2, random_state=0, out=tmp_path / "seen").fit(images, ["a", "b"] * 10)
    loaded = ImageClassifier.load(tmp_path / "seen")
    np.testing.assert_allclose(loaded.predict_proba(images), seen.predict_proba(images), atol=1e-6)
    vectors = TextEmbedder(encoder).fit().transform(texts[:3])
    loaded = TextEmbedder.load(encoder)
    np.testing.assert_array_equal(loaded.transform(texts[:3]), vectors)
    np.testing.assert_array_equal(clone(loaded).fit().transform(texts[:3]), vectors)


def test_an_ensemble_is_held_whole() -> None:
    fitted = TextClassifier(max_steps=2, random_state=0).fit(TEXTS, LABELS)
    assert type(fitted.pipeline_.task).__name__ == "ClassifierEnsemble"
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(TEXTS), fitted.predict_proba(TEXTS), atol=1e-6)


def test_numbers_are_learned_from_texts_and_pairs() -> None:
    texts = [f"box {number} weighs {number % 5} kilos" for number in range(60)]
    pairs, weights = [(text, "in all") for text in texts], [10.0 * (number % 5) for number in range(60)]
    quick = {**TINY["settings"], "training": {"lr": 1e-2}}
    for given in (texts, pairs):
        fitted = tiny(TextRegressor, max_steps=200, max_epochs=200, settings=quick).fit(given, weights)
        assert fitted.score(given, weights) > 0.5
    assert fitted.predict([("", "")])[0] == pytest.approx(20)
    with pytest.raises(HeedfulError, match="missing"):
        tiny(TextRegressor).fit(texts, [float("nan")] * 60)


@pytest.mark.parametrize("form", ["rows", "table", "images", "bytes", "pictures", "fractions", "paths", "tensor"])
def test_images_in_any_form(form: str, tmp_path: Path) -> None:
    X, y = load_digits(n_class=3, return_X_y=True)
    rows, y = X[:90], y[:90]
    images = (rows * 15.9).astype(np.uint8).reshape(-1, 8, 8)
    given: dict[str, Any] = {
        "rows": rows,
        "images": rows.reshape(-1, 8, 8),
        "bytes": images,
        "pictures": [Image.fromarray(image) for image in images],
        "fractions": rows.reshape(-1, 8, 8) / 16,
        "table": pd.DataFrame(rows),
        "tensor": torch.from_numpy(images),
        "paths": pd.DataFrame({"image": [str(tmp_path / f"{number}.png") for number in range(90)]}),
    }
    if form == "paths":
        for path, picture in zip(given[form]["image"], given["pictures"], strict=True):
            picture.save(path)
    fitted = ImageClassifier(max_epochs=15, random_state=0).fit(given[form], y)
    assert fitted.score(given[form], y) > 0.6
    assert fitted.predict_proba(given[form]).shape == (90, 3)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(given[form]), fitted.predict(given[form]))
    if form in ("images", "bytes"):
        with pytest.raises(HeedfulError, match="but fit had"):
            fitted.predict(given["bytes" if form == "images" else "images"])


@pytest.mark.parametrize(
    ("X", "says"),
    [
        (np.zeros((4, 10)), "10 pixels, no square"),
        (np.zeros((4, 2, 2, 3, 1)), "X has the shape"),
        (np.full((4, 9), -1.0), "numbers below 0"),
        (np.full((4, 9), 300), "whole numbers from 300 to 300"),
        (TfidfVectorizer().fit_transform(TEXTS), "X is a sparse matrix"),
        (OnlyArray(np.zeros((4, 10))), "10 pixels, no square"),
    ],
)
def test_arrays_that_are_no_images_are_refused(X: Any, says: str) -> None:
    with pytest.raises(HeedfulError, match=says):
        ImageClassifier().fit(X, [0, 1, 0, 1])


# ------------------------------------------------------------------------------------------- scikit-learn's tools


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_folds_are_fitted_side_by_side(backend: str) -> None:
    with joblib.parallel_backend(backend, n_jobs=2):
        scores = cross_val_score(tiny(max_steps=90), TEXTS, LABELS, cv=3)
    assert scores.mean() > 0.9
    if backend == "loky":  # threads share PyTorch's random numbers
        np.testing.assert_allclose(scores, cross_val_score(tiny(max_steps=90), TEXTS, LABELS, cv=3))


def test_settings_are_searched() -> None:
    search = GridSearchCV(tiny(), {"max_steps": [1, 60], "preset": ["bert-tiny"]}, cv=2).fit(TEXTS, LABELS)
    assert search.best_params_ == {"max_steps": 60, "preset": "bert-tiny"}
    assert search.predict(["film 3 is good"]).tolist() == ["good"]
    assert clone(search.best_estimator_).get_params() == search.best_estimator_.get_params()


def test_a_column_of_a_table_is_embedded(encoder: Path) -> None:
    table = pd.DataFrame({"text": TEXTS, "length": np.arange(len(TEXTS), dtype=float)})
    columns = ColumnTransformer([("vectors", TextEmbedder(encoder), "text")], remainder="passthrough")
    fitted = make_pipeline(columns.set_output(transform="pandas"), LogisticRegression(max_iter=500)).fit(table, LABELS)
    assert fitted.predict_proba(table).shape == (len(TEXTS), 3)
    inner = fitted[0].transform(table)
    assert list(inner)[:2] == ["vectors__textembedder0", "vectors__textembedder1"]
    assert inner.shape == (len(TEXTS), 17)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_allclose(again.predict_proba(table), fitted.predict_proba(table), atol=1e-6)


def test_vectors_are_those_of_a_pipeline_and_fine_tuning_changes_them(encoder: Path) -> None:
    pipe = heedful.pipeline("feature-extraction", encoder)
    fitted = TextEmbedder(encoder).fit()
    found = fitted.set_output(transform="polars").transform(["fig", ""])
    assert found.columns[-1] == "textembedder15"
    np.testing.assert_allclose(found.to_numpy()[0], pipe("fig")["output"], atol=1e-6)
    assert not found.to_numpy()[1].any()
    rate = {"training": {"lr": 1e-2}}
    pairs = pd.DataFrame({"a": TEXTS, "b": [f"the {label} one" for label in LABELS]})
    for y in (None, np.linspace(0, 1, len(TEXTS))):
        tuned = TextEmbedder(encoder, fine_tune=True, max_steps=20, random_state=0, settings=rate).fit(pairs, y)
        assert np.abs(tuned.transform(["fig"]) - found.to_numpy()[:1]).max() > 1e-4
    for given, says in ((TEXTS, "pairs of texts"), ([("a", "b")], "n_samples = 1, 1 example; give more")):
        with pytest.raises(HeedfulError, match=says):
            TextEmbedder(encoder, fine_tune=True).fit(given)
    with pytest.raises(HeedfulError, match="model is None"):
        TextEmbedder(None).fit()


@pytest.mark.parametrize("form", ["adapter", "pickled weights"])
def test_files_are_held_whole(encoder: Path, tmp_path: Path, form: str) -> None:
    """With an adapter merged, and weights in safetensors."""
    if form == "adapter":
        tuned = TextEmbedder(encoder, fine_tune=True, out=tmp_path / "run", max_steps=2, random_state=0, hold="path")
        tuned.set_params(settings={"lora": {"rank": 2}}).fit(list(zip(TEXTS, LABELS, strict=True)))
        folder = tmp_path / "run"
        assert (folder / "adapter_config.json").is_file()
    else:
        folder = tmp_path / "pickled"
        shutil.copytree(encoder, folder, ignore=shutil.ignore_patterns("*.safetensors", "last", "average"))
        torch.save(load_file(encoder / "model.safetensors"), folder / "pytorch_model.bin")
    fitted = TextEmbedder(folder).fit()
    assert sorted(name for name in fitted.files_ if "adapter" in name or name.endswith((".bin", ".safetensors"))) == [
        "model.safetensors"
    ]
    expected = heedful.pipeline("feature-extraction", folder)(["fig", "a saw"])
    again = pickle.loads(pickle.dumps(fitted))
    shutil.rmtree(folder)
    np.testing.assert_allclose(again.transform(["fig", "a saw"]), [one["output"] for one in expected], atol=1e-5)


# ------------------------------------------------------------------------------------------------------- pickling


def predicted(estimator: Any, texts: list[str]) -> list[Any]:
    labels: list[Any] = estimator.predict(texts).tolist()
    return labels


def test_a_pickle_needs_nothing_else(tmp_path: Path) -> None:
    fitted = tiny(out=tmp_path / "run", dtype="int8", max_steps=60).fit(TEXTS, LABELS)
    expected = fitted.predict(TEXTS).tolist()
    assert (tmp_path / "run" / "run.toml").is_file()
    assert fitted.fit(TEXTS, LABELS).predict(TEXTS).tolist() == expected  # again, into the same folder
    for path in (tmp_path / "run").rglob("*.safetensors"):
        path.unlink()
    assert pickle.loads(pickle.dumps(fitted)).predict(TEXTS).tolist() == expected
    joblib.dump(fitted, tmp_path / "films.joblib")
    assert joblib.load(tmp_path / "films.joblib").predict(TEXTS).tolist() == expected
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(predicted)(fitted, TEXTS) for _ in range(2)) == [expected] * 2
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(predicted, fitted, TEXTS).result() == expected


def test_or_the_path_of_its_folder(tmp_path: Path, encoder: Path) -> None:
    fitted = tiny(out=tmp_path / "run", hold="path").fit(TEXTS, LABELS)
    state = pickle.dumps(fitted)
    assert len(state) < 3000
    assert pickle.loads(state).predict(TEXTS).tolist() == fitted.predict(TEXTS).tolist()
    fitted.save(tmp_path / "copy")
    assert heedful.pipeline(None, tmp_path / "copy")(TEXTS[0])["output"] == fitted.predict(TEXTS[:1])[0]
    assert len(pickle.dumps(TextEmbedder(encoder, hold="path").fit())) < 3000
    for wrong in (tiny(hold="path"), tiny(hold="bytes")):
        with pytest.raises(HeedfulError, match="hold"):
            wrong.fit(TEXTS, LABELS)


def test_before_fit_there_is_no_model() -> None:
    for call in (tiny().predict, tiny().predict_proba, tiny(TextRegressor).predict, ImageClassifier().predict):
        with pytest.raises(NotFittedError):
            call(TEXTS)
    for attribute in (lambda: tiny().pipeline_, lambda: tiny().save("nowhere"), lambda: TextEmbedder().transform([""])):
        with pytest.raises(NotFittedError):
            attribute()
    assert not Path("nowhere").exists()


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (["a", "b", None] * 20, r"y\[2\] is missing"),
        (["a", float("nan"), "b"] * 20, r"y\[1\] is missing"),
        (pd.Series(["a", "b", pd.NA] * 20, dtype="string"), r"y\[2\] is missing"),
        (np.array(["a", 1, "b"] * 20, dtype=object), r"labels of several types \(int, str\)"),
        (["a"] * 59, "inconsistent numbers of samples"),
    ],
)
def test_missing_and_mixed_labels_are_refused(y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tiny().fit(TEXTS, y)


def test_a_fit_that_fails_leaves_the_former_one() -> None:
    fitted = tiny().fit(TEXTS, LABELS)
    expected = fitted.predict_proba(TEXTS)
    with pytest.raises(HeedfulError):
        fitted.fit(["same"] * 60, ["x", "y", "z"] * 20)
    assert fitted.classes_.tolist() == ["bad", "good", "long"]
    np.testing.assert_array_equal(fitted.predict_proba(TEXTS), expected)
    fitted.set_params(dtype="int8")
    assert fitted.pipeline_.model.optimised == "int8"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"seed": 1}, "settings has 'seed'"),
        (3, "settings is of type int"),
        ({"nonsense": {}}, "no argument 'nonsense'"),
    ],
)
def test_wrong_settings_are_one_line(settings: Any, says: str) -> None:
    with pytest.raises(HeedfulError, match=says):
        TextClassifier(settings=settings).fit(TEXTS, LABELS)


def test_labels_that_teach_nothing_are_refused() -> None:
    for y, says in (
        (["a"] * 60, "1 class"),
        (None, "give the labels"),
        (np.linspace(0, 1, 60) + 0.01, "Unknown label type"),
    ):
        with pytest.raises(ValueError, match=says):
            tiny().fit(TEXTS, y)


PAGE = Path(__file__).resolve().parents[1] / "docs" / "scikit_learn.md"


def test_the_page_compares_three_candidates(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    shared_data: Callable[[str], Path],
) -> None:
    """In fewer steps, on fewer texts."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(code.split("\n\n", 2)[2].splitlines()) < 15
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"text": TEXTS, "label": LABELS}).to_csv("questions.csv", index=False)
    model = repr(str(shared_data("weights/minilm-l6")))
    code = code.replace('"sentence-transformers/all-MiniLM-L6-v2"', model)
    code = code.replace("random_state=0", "max_steps=2, random_state=0")
    exec(compile(code, str(PAGE), "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["TF-IDF", "MiniLM", "trained"]
    assert all(re.fullmatch(r"\S+ +\d+\.\d % ± \d+\.\d", line) for line in lines)
