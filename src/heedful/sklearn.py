"""Estimators for scikit-learn: ``fit`` trains a run, ``predict`` and ``transform`` use the folder that it wrote.

They take part in ``clone``, ``cross_val_score``, ``GridSearchCV``, ``Pipeline`` and ``ColumnTransformer``. An estimator
holds the files of its model, so that a pickle needs nothing else; ``hold="path"`` holds the path of the folder instead.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d

from heedful.errors import HeedfulError, plural

HOLD = ("files", "path")
OWN = frozenset(
    {"data", "valid", "unlabelled", "teacher", "out", "preset", "model", "resume", "overwrite", "seed", "quiet"}
) | {
    *("max_steps", "max_epochs", "max_minutes", "device", "push")
}  # arguments of ``train`` that ``settings`` cannot have
PREDICTED = 4096  # inputs whose probabilities are computed together


class HeldModel(BaseEstimator):
    """Base of the estimators: trains a model, holds it, and loads it when it is first needed.

    Args:
        model: model to fine-tune: a folder, a name on the Hub, or "auto" for a small, well-known one; None: train a new
            one.
        preset: size of a new model; ``heedful presets`` lists them. None: chosen by the data.
        max_steps: maximum number of steps.
        max_epochs: maximum number of epochs.
        max_minutes: maximum duration of ``fit`` in minutes.
        settings: further arguments of :func:`heedful.train`, such as ``{"training": {"lr": 1e-3}}``.
        out: folder of the run, which the next ``fit`` overwrites, that of a clone too; None: a temporary one.
        hold: "files": the estimator holds the files of its model, and so does its pickle; "path": the path of ``out``.
        device: "cpu", "cuda", ...; None for the best available.
        dtype: of the weights in prediction, as in :func:`heedful.pipeline`.
        random_state: seed of the weights, the order of the data and dropout: a number, a ``RandomState``, or None.
        verbose: print what a run prints.

    After ``fit``, ``metrics_`` are those of the best evaluation, on the rows that it held out, and ``verdict_`` says
    whether the model is better than a simple method; None of a folder that was loaded.
    """

    task: ClassVar[str]
    verdict_: str | None

    def __init__(
        self,
        model: str | PathLike[str] | None = None,
        *,
        preset: str | None = None,
        max_steps: int | None = None,
        max_epochs: int | None = None,
        max_minutes: float | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | PathLike[str] | None = None,
        hold: str = "files",
        device: str | None = None,
        dtype: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.model, self.preset = model, preset
        self.max_steps, self.max_epochs, self.max_minutes = max_steps, max_epochs, max_minutes
        self.settings, self.out, self.hold = settings, out, hold
        self.device, self.dtype, self.random_state, self.verbose = device, dtype, random_state, verbose

    def _train(self, rows: list[dict[str, Any]], **settings: Any) -> None:
        """Trains a model on ``rows`` and holds it."""
        from heedful.api import train

        self._check_hold(trains=True)
        given = {} if self.settings is None else self.settings
        if not isinstance(given, Mapping):
            raise HeedfulError(f"settings is of type {type(given).__name__}; give a dict of sections")
        if own := sorted(OWN & given.keys()):
            raise HeedfulError(
                f"settings has {own[0]!r}, which is an argument of the estimator or of fit; leave it out there"
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with self._folder() as folder:
            run = train(
                self.task,
                rows,
                out=folder,
                model=self.model,
                preset=self.preset,
                max_steps=self.max_steps,
                max_epochs=self.max_epochs,
                max_minutes=self.max_minutes,
                device=self.device,
                seed=seed,
                overwrite=self.out is not None,
                quiet=not self.verbose,
                **_merged(settings, given),
            )
            self.metrics_, self.verdict_ = dict(run.metrics), run.verdict
            self._keep(folder)
        _ = self.pipeline_  # loaded now: the first call of ``predict`` then changes nothing

    def _check_hold(self, trains: bool) -> None:
        if self.hold not in HOLD:
            raise HeedfulError(f"hold is {self.hold!r}; give 'files' or 'path'")
        if trains and self.hold == "path" and self.out is None:
            raise HeedfulError("hold='path' needs the folder in which the model stays; give it as out")

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Context manager that yields the folder of the run, a temporary one without ``out``."""
        if self.out is not None:
            yield Path(self.out)
            return
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary) / "run"

    def _keep(self, folder: Path) -> None:
        """Holds the model in ``folder``."""
        self.__dict__.pop("_pipe", None)
        self.folder_ = str(folder.absolute()) if self.hold == "path" else None
        self.files_ = None if self.hold == "path" else _files_of(folder)

    @property
    def pipeline_(self) -> Any:
        """The fitted model with its task (:class:`heedful.inference.Pipeline`), loaded when first needed."""
        from heedful.inference.pipeline import pipeline

        check_is_fitted(self)
        made_for, pipe = self.__dict__.get("_pipe", (None, None))
        if made_for != (self.device, self.dtype):
            with tempfile.TemporaryDirectory() as temporary:
                if self.folder_ is None:
                    self._write(Path(temporary))
                pipe = pipeline(self.task, self.folder_ or temporary, self.device, self.dtype)
            self._pipe = (self.device, self.dtype), pipe
        return pipe

    @classmethod
    def load(cls, folder: str | PathLike[str], **settings: Any) -> Self:
        """Returns an estimator whose model is that of a ``folder`` of the same task: fitted, without training.

        That is a folder of ``heedful train``, of ``save``, or a name on the Hub. ``settings`` are the arguments of the
        estimator; with ``hold="path"`` it holds the folder's path. ``classes_`` are the model's label names, sorted. A
        text without words gets equal shares of them, since the folder does not know those in training; in regression it
        gets the mean of the training rows.

        Raises ``HeedfulError`` for a folder of another task.
        """
        from heedful.pretrained import read_card
        from heedful.pretrained.folder import find

        estimator = cls(**settings)
        estimator._check_hold(trains=False)
        found = find(Path(folder) if isinstance(folder, PathLike) else folder)
        estimator._keep(found)
        estimator.metrics_, estimator.verdict_ = dict(read_card(found).get("metrics", {})), None
        estimator._take_model(str(folder))
        return estimator

    def _take_model(self, folder: str) -> None:
        """Sets the attributes that ``fit`` sets from the data, of a model that was loaded from ``folder``."""
        raise NotImplementedError

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the fitted model as a folder, which ``heedful.pipeline``, ``heedful serve`` and others open.

        Raises ``HeedfulError`` if the folder is not empty.
        """
        check_is_fitted(self)
        target = Path(folder)
        if target.exists() and any(target.iterdir()):
            raise HeedfulError(f"the folder {target} is not empty; choose another one")
        self._write(target)

    def _write(self, folder: Path) -> None:
        files = _files_of(Path(self.folder_)) if self.folder_ is not None else self.files_ or {}
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state to copy and pickle, without the loaded model."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_pipe"}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "folder_")


class TextModel(HeldModel):
    """Base of the estimators whose inputs are texts, or pairs of texts."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags


class LabelModel(ClassifierMixin, HeldModel):
    """Base of the classifiers: labels of any type, as scikit-learn has them.

    After ``fit``, ``classes_`` (C,) are the labels, sorted, and ``class_prior_`` (C,) their shares of the examples.
    """

    def _fit(self, rows: list[dict[str, Any]], y: Any) -> Self:
        """Trains a classifier on ``rows`` without labels, whose labels are ``y``."""
        y = _targets(rows, y, type(self).__name__)
        try:
            check_classification_targets(y)
            classes, indices = np.unique(y, return_inverse=True)
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in y.tolist()}))
            raise HeedfulError(f"y has labels of several types ({kinds}); give labels of one type") from None
        if len(classes) < 2:
            raise HeedfulError(f"y has 1 class, {classes.tolist()[0]!r}; a classifier needs at least 2 classes")
        names = _label_names(classes.tolist())
        rows = [{**row, "label": names[index]} for row, index in zip(rows, indices, strict=True)]
        self._train(rows, **self._label_settings())
        self.classes_, self.class_prior_ = classes, np.bincount(indices) / len(indices)
        order = {name: index for index, name in enumerate(names)}
        self._order = [order[name] for name in self.pipeline_.labels]  # of the model's labels among ``classes_``
        return self

    def _take_model(self, folder: str) -> None:
        task, labels = self.pipeline_.task, self.pipeline_.labels
        if _learned_numbers(task):
            raise HeedfulError(f"the model in {folder} predicts numbers; use TextRegressor")
        if getattr(task, "multi_label", False):
            raise HeedfulError(f"the model in {folder} gives an input several labels; use heedful.pipeline")
        self.classes_, indices = np.unique(labels, return_inverse=True)
        self._order, self.class_prior_ = indices.tolist(), np.full(len(labels), 1 / len(labels))

    def _label_settings(self) -> dict[str, Any]:
        return {}

    def _probabilities(self, inputs: Sequence[Any]) -> np.ndarray:
        """Returns the probabilities (N, C); of an input without content ``class_prior_``."""
        pipe = self.pipeline_
        columns = dict(zip(pipe.labels, self._order, strict=True))
        found = np.tile(self.class_prior_, (len(inputs), 1))
        for start in range(0, len(inputs), PREDICTED):
            for row, prediction in enumerate(pipe.predict(inputs[start : start + PREDICTED], top_k=None), start):
                for each in prediction.output or ():
                    found[row, columns[each["label"]]] = each["score"]
        return found / found.sum(1, keepdims=True)


class TextClassifier(LabelModel, TextModel):
    """Classifies texts, or pairs of texts: ``heedful train text-classification``.

    ``X`` is a list, array or column of texts; a table, or a list of pairs, with two texts in a row is of pairs. Of the
    examples ``fit`` holds some out, which choose the best weights. See :class:`HeldModel` for the arguments.

    >>> from sklearn.model_selection import cross_val_score
    >>> texts = [f"film {n} is {word}" for n in range(50) for word in ("good", "bad")]
    >>> labels = [text.endswith("good") for text in texts]
    >>> classify = TextClassifier(max_epochs=20, random_state=0)
    >>> cross_val_score(classify, texts, labels, cv=2).round(2)  # doctest: +SKIP
    array([1., 1.])
    """

    task = "text-classification"

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a classifier; ``y`` (N,) are labels of any type."""
        return self._fit(_text_rows(texts_of(X)), y)

    def _label_settings(self) -> dict[str, Any]:
        return {"data_settings": {"label_kind": "class"}}

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities (N, C) of ``classes_``. A text without words gets their shares in ``fit``."""
        check_is_fitted(self)
        return self._probabilities(texts_of(X))

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable label (N,) of each input."""
        check_is_fitted(self)
        return self.classes_[self._probabilities(texts_of(X)).argmax(1)]


class TextRegressor(RegressorMixin, TextModel):
    """Predicts a number for a text, or for a pair of texts: ``heedful train text-classification`` on numbers.

    See :class:`TextClassifier` for ``X``, and :class:`HeldModel` for the arguments.
    """

    task = "text-classification"

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a model; ``y`` (N,) are finite numbers."""
        rows = _text_rows(texts_of(X))
        numbers = np.asarray(_targets(rows, y, "TextRegressor"), dtype=np.float64)
        if not np.isfinite(numbers).all():
            raise HeedfulError("y has NaN or infinity; leave these examples out")
        self._train(
            [{**row, "label": number} for row, number in zip(rows, numbers.tolist(), strict=True)],
            data_settings={"label_kind": "number"},
        )
        self.mean_ = float(numbers.mean())
        return self

    def _take_model(self, folder: str) -> None:
        if not _learned_numbers(self.pipeline_.task):
            raise HeedfulError(f"the model in {folder} predicts labels; use TextClassifier")
        self.mean_ = float(self.pipeline_.task.mean)

    def predict(self, X: Any) -> np.ndarray:
        """Returns a number (N,) for each input; for a text without words the mean of ``fit``."""
        check_is_fitted(self)
        predictions = self.pipeline_.predict(texts_of(X))
        return np.array([self.mean_ if one.output in ("", None) else float(one.output) for one in predictions])


class ImageClassifier(LabelModel):
    """Classifies images: ``heedful train image-classification``.

    ``X`` is a list of images (arrays, PIL images or paths) or an array (N, H, W) or (N, H, W, 3). Rows of an array
    (N, pixels) are square images. Arrays of floating point begin at 0, and their largest number in ``fit`` is white.
    See :class:`HeldModel` for the arguments.
    """

    task = "image-classification"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = tags.input_tags.positive_only = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Trains a classifier; ``y`` (N,) are labels of any type."""
        X = _array_of_images(X)
        white = None
        if isinstance(X, np.ndarray) and X.dtype.kind == "f":
            white = float(X.max()) if X.size and X.max() > 0 else 1.0
        self._fit([{"image": image} for image in _images(X, white)], y)
        self.white_ = white
        return self

    def _take_model(self, folder: str) -> None:
        super()._take_model(folder)
        self.white_ = None

    def predict_proba(self, X: Any) -> np.ndarray:
        """Returns the probabilities (N, C) of ``classes_``."""
        check_is_fitted(self)
        return self._probabilities(_images(_array_of_images(X), self.white_))

    def predict(self, X: Any) -> np.ndarray:
        """Returns the most probable label (N,) of each image."""
        check_is_fitted(self)
        return self.classes_[self._probabilities(_images(_array_of_images(X), self.white_)).argmax(1)]


class TextEmbedder(TransformerMixin, ClassNamePrefixFeaturesOutMixin, TextModel):
    """Maps texts to vectors, near those of like texts: ``heedful train feature-extraction``.

    Without ``fine_tune``, ``fit`` trains nothing and ignores its inputs. With it, ``fit`` trains on pairs of texts that
    mean about the same, and with ``y`` on pairs whose similarity is ``y``, from 0 to 1.

    Args:
        model: a folder, or a name on the Hub.
        fine_tune: train in ``fit``.
        **others: see :class:`HeldModel`. With ``hold="path"`` and without ``fine_tune`` the estimator holds the path of
            ``model``.
    """

    task = "feature-extraction"

    def __init__(
        self,
        model: str | PathLike[str] | None = "sentence-transformers/all-MiniLM-L6-v2",
        *,
        fine_tune: bool = False,
        preset: str | None = None,
        max_steps: int | None = None,
        max_epochs: int | None = None,
        max_minutes: float | None = None,
        settings: Mapping[str, Any] | None = None,
        out: str | PathLike[str] | None = None,
        hold: str = "files",
        device: str | None = None,
        dtype: str | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            model,
            preset=preset,
            max_steps=max_steps,
            max_epochs=max_epochs,
            max_minutes=max_minutes,
            settings=settings,
            out=out,
            hold=hold,
            device=device,
            dtype=dtype,
            random_state=random_state,
            verbose=verbose,
        )
        self.fine_tune = fine_tune

    @classmethod
    def load(cls, folder: str | PathLike[str], **settings: Any) -> Self:
        """Returns an estimator of the model in ``folder``: see ``HeldModel.load``. Its clones open the folder, too."""
        return super().load(folder, **{"model": folder, **settings})

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # vectors are float32
        return tags

    def fit(self, X: Any = None, y: Any = None) -> Self:
        """Fine-tunes the model on pairs of texts with ``fine_tune``; else opens it."""
        from heedful.pretrained.folder import find

        if self.fine_tune:
            rows = _text_rows(texts_of(X))
            if rows and "text_pair" not in rows[0]:
                raise HeedfulError(
                    "fine-tuning takes pairs of texts; give a table with two columns, or a list of pairs"
                )
            if y is not None:
                check_consistent_length(rows, y)
                scores = np.asarray(column_or_1d(y, warn=True), dtype=np.float64).tolist()
                rows = [{**row, "score": score} for row, score in zip(rows, scores, strict=True)]
            _check_samples(rows)
            self._train(rows)
        else:
            if self.model is None:
                raise HeedfulError("model is None; give a folder or a name on the Hub, or fine_tune=True")
            self._check_hold(trains=False)
            self._keep(find(Path(self.model) if isinstance(self.model, PathLike) else self.model))
        self._take_model(str(self.model))
        return self

    def _take_model(self, folder: str) -> None:
        self._n_features_out = self.pipeline_.model.main.dim

    def transform(self, X: Any) -> np.ndarray:
        """Returns the vectors (N, D) of the texts, in float32; zeros for a text without words."""
        check_is_fitted(self)
        texts = texts_of(X)
        found = np.zeros((len(texts), self._n_features_out), dtype=np.float32)
        for row, prediction in enumerate(self.pipeline_.predict(texts)):
            if prediction.output:
                found[row] = prediction.output
        return found


def texts_of(X: Any) -> list[Any]:
    """Returns the texts of a list, an array, a column or a table with one column; of two columns the pairs of texts.

    Raises ``HeedfulError`` for other inputs, and for a value that is no text.

    >>> texts_of(["a", "b"]), texts_of([("a", "b")])
    (['a', 'b'], [('a', 'b')])
    """
    if isinstance(X, str | bytes | Mapping) or not (hasattr(X, "__len__") or hasattr(X, "__array__")):
        raise HeedfulError(f"X is of type {type(X).__name__}; give a list, array or column of texts")
    if hasattr(X, "toarray"):
        raise HeedfulError("X is a sparse matrix; give a list, array or column of texts")
    array = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X) if hasattr(X, "__array__") else None
    shape = () if array is None else array.shape
    columns = shape[1:]
    rows = list(X) if array is None else array.reshape(-1).tolist() if columns in ((), (1,)) else array.tolist()
    if columns not in ((), (1,), (2,)):
        raise HeedfulError(f"X has the shape {shape}; give texts, or pairs of texts in two columns")
    rows = [(tuple(row) if len(row) > 1 else row[0]) if isinstance(row, list | tuple) and row else row for row in rows]
    pairs = sum(isinstance(row, tuple) for row in rows)
    if pairs not in (0, len(rows)):
        raise HeedfulError(f"X has {pairs} pairs of texts among {plural(len(rows), 'example')}; give one kind")
    for number, row in enumerate(rows):
        values = row if isinstance(row, tuple) else (row,)
        if len(values) > 2 or not all(isinstance(value, str) for value in values):
            found = next((type(value).__name__ for value in values if not isinstance(value, str)), "three texts")
            raise HeedfulError(f"X[{number}] is {found}, not a text; give texts, and '' where one is missing")
    return rows


def _targets(rows: Sequence[Any], y: Any, name: str) -> np.ndarray:
    """Returns ``y`` as an array (N,); raises ``HeedfulError`` for too few examples and for missing values."""
    if y is None:
        raise HeedfulError(f"{name} requires y to be passed, but the target y is None; give the labels")
    for number, value in enumerate(y):
        if (
            value is None
            or type(value).__name__ in ("NAType", "NaTType")
            or (isinstance(value, float) and value != value)
        ):
            raise HeedfulError(f"y[{number}] is missing (NaN); leave this example out")
    y = column_or_1d(y, warn=True)
    check_consistent_length(rows, y)
    _check_samples(rows)
    return np.asarray(y)


def _check_samples(rows: Sequence[Any]) -> None:
    if len(rows) < 2:
        raise HeedfulError(f"n_samples = {len(rows)}, {plural(len(rows), 'example')}; give more")


def _array_of_images(X: Any) -> Any:
    """Returns a table of pixels or of paths as an array; other images as they are."""
    if isinstance(X, str | bytes | Mapping) or not (hasattr(X, "__len__") or hasattr(X, "__array__")):
        raise HeedfulError(f"X is of type {type(X).__name__}; give a list or an array of images")
    if hasattr(X, "toarray"):
        raise HeedfulError("X is a sparse matrix; give an array, X.toarray()")
    array = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X) if hasattr(X, "__array__") else X
    if isinstance(array, np.ndarray) and array.dtype.kind not in "fiub":
        return array.reshape(-1).tolist() if array.ndim == 1 or array.shape[1:] == (1,) else list(array)
    return array


def _images(X: Any, white: float | None) -> list[Any]:
    """Returns images, those of an array in bytes; ``white`` is the number of white in an array of floating point, None
    where ``fit`` had bytes.
    """
    if not isinstance(X, np.ndarray):
        return list(X)
    if X.ndim == 2:
        side = round(X.shape[1] ** 0.5)
        if side * side != X.shape[1]:
            raise HeedfulError(f"a row of X has {X.shape[1]} pixels, no square; give an array (N, H, W)")
        X = X.reshape(len(X), side, side)
    if X.ndim not in (3, 4):
        raise HeedfulError(f"X has the shape {X.shape}; give images (N, H, W) or (N, H, W, 3)")
    if (X.dtype.kind == "f") != (white is not None):
        kinds = ("whole numbers", "floating-point numbers")
        raise HeedfulError(f"X has {kinds[X.dtype.kind == 'f']}, but fit had {kinds[white is not None]}; give the same")
    if white is not None:
        if not np.isfinite(X).all() or (X < 0).any():
            raise HeedfulError("X has NaN, infinity or numbers below 0; give images whose black is 0")
        X = (X * (255 / white)).round().clip(0, 255)
    elif X.size and (X.min() < 0 or X.max() > 255):
        raise HeedfulError(f"X has whole numbers from {X.min()} to {X.max()}; give bytes, 0 to 255")
    return list(X.astype(np.uint8))


def _text_rows(texts: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns the rows of texts or pairs, as :func:`heedful.train` takes them."""
    names = ("text", "text_pair")
    return [dict(zip(names, text, strict=True)) if isinstance(text, tuple) else {"text": text} for text in texts]


def _label_names(classes: Sequence[Any]) -> list[str]:
    """Returns a name for each label: its own text, or numbered names where texts are equal or begin with a blank."""
    names = [str(label) for label in classes]
    is_usable = all(name and name == " ".join(name.split()) for name in names) and len(set(names)) == len(names)
    return names if is_usable else [f"class {number}" for number in range(len(names))]


def _files_of(folder: Path) -> dict[str, bytes]:
    """Returns the files of a model by name: whole ones, with an adapter merged, and weights in safetensors."""
    from heedful.adapters import merge
    from heedful.export.target import copy_beside
    from heedful.pretrained import load, read_card, save
    from heedful.pretrained.peft import is_adapter
    from heedful.pretrained.upload import model_files

    files = model_files(folder)
    if is_adapter(folder) or not any(name.endswith(".safetensors") for name in files):
        with tempfile.TemporaryDirectory() as temporary:
            model, whole = load(folder, device="cpu"), Path(temporary) / "whole"
            save(model if model.adapter is None else merge(model), whole, extra=read_card(folder))
            copy_beside(folder, whole)
            inner = {name: part for name, part in files.items() if "/" in name and not name.endswith(".safetensors")}
            return {name: _content(part) for name, part in {**inner, **model_files(whole)}.items()}
    return {name: _content(part) for name, part in files.items()}


def _learned_numbers(task: Any) -> bool:
    from heedful.tasks.text_regression import TextRegression

    return isinstance(task, TextRegression)


def _content(part: Path | bytes) -> bytes:
    return part if isinstance(part, bytes) else part.read_bytes()


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings by section, those that are ``given`` before our ``own``."""
    sections = {*own, *given}
    return {name: _merged_section(own.get(name), given.get(name)) for name in sections}


def _merged_section(own: Any, given: Any) -> Any:
    if isinstance(own, Mapping) and isinstance(given, Mapping):
        return {**own, **given}
    return own if given is None else given
