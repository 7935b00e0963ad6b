"""Nearest-neighbour search over texts: an index of their vectors, with saving and loading.

Exact: every vector is compared, with NumPy in blocks, or with ``faiss`` where that is asked for and installed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from heedful.data import Row, Rows, read
from heedful.errors import HeedfulError, nearest
from heedful.inference.pipeline import Pipeline, pipeline
from heedful.metrics.ranking import unit
from heedful.pretrained.folder import atomic_write, read_json, reason, to_json
from heedful.tasks import EMBEDDING_TASK
from heedful.tasks.task import Embeds
from heedful.util.files import parse_json

Vectors = NDArray[np.float32]
ENGINES = ("numpy", "faiss")
BLOCK = 1 << 16  # vectors that are compared at a time
ABOUT, TEXTS, VECTORS = "index.json", "texts.jsonl", "vectors.npy"
FORMAT = 1
SAME = 0.98  # the cosine from which on two vectors of a text are taken for the same model's, weights of 4 bits included


class Near(NamedTuple):
    """A text that was found."""

    text: str
    score: float  # the cosine of its vector and the question's, −1 to 1
    file: str  # where it stands, "" where nobody said
    line: int


class Index:
    """Texts and their vectors, to be asked for the nearest.

    >>> import heedful
    >>> pipe = heedful.pipeline("feature-extraction", "sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> index = Index(pipe).add(["A man eats.", "It rains."])  # doctest: +SKIP
    >>> index.nearest("Someone has a meal.", k=1)[0].text  # doctest: +SKIP
    'A man eats.'

    Args:
        pipe: of feature extraction.
        engine: what compares: "numpy", or "faiss" (its ``IndexFlatIP``, equally exact; the extra ``faiss``).
    """

    def __init__(self, pipe: Pipeline, engine: Literal["numpy", "faiss"] = "numpy") -> None:
        if engine not in ENGINES:
            raise HeedfulError(f"unknown engine {engine!r}; {nearest(engine, ENGINES)}")
        if not isinstance(pipe.task, Embeds):
            raise HeedfulError(
                f"texts are found by their vectors, and this model is for {pipe.task.name}; take one for "
                f"{EMBEDDING_TASK}"
            )
        self.pipe, self.task, self.engine = pipe, pipe.task, engine
        self.texts: list[str] = []
        self.places: list[tuple[str, int]] = []
        self._faiss = _faiss() if engine == "faiss" else None
        self._vectors: list[Vectors] = []
        self._made: Any = None  # faiss' own index of the vectors

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def vectors(self) -> Vectors:
        """(N, D), each of length 1."""
        if len(self._vectors) != 1:
            width = self.pipe.model.main.dim
            self._vectors = [np.concatenate(self._vectors or [np.zeros((0, width), np.float32)])]
        return self._vectors[0]

    def add(self, texts: Sequence[str] | Rows, tick: Callable[[int], object] | None = None) -> Self:
        """Put texts in, or rows with a ``text``, which are found with their file and line; a blank one is an error.
        ``tick`` is called with the number of texts that were read so far.
        """
        numbered = enumerate(texts, len(self) + 1)
        rows = [one if isinstance(one, Row) else Row({"text": one}, "", i) for i, one in numbered]
        found = [row.values["text"] for row in rows]
        blank = next((i for i, text in enumerate(found, 1) if not isinstance(text, str) or not text.strip()), None)
        if blank is not None:
            raise HeedfulError(f"text {blank} of {len(found):,} is blank or no text; leave it out")
        if found:
            self._vectors.append(self._read(found, tick))
            self.texts += found
            self.places += [(row.file, row.line) for row in rows]
            self._made = None
        return self

    @overload
    def nearest(self, query: str, k: int = 10) -> list[Near]: ...

    @overload
    def nearest(self, query: list[str], k: int = 10) -> list[list[Near]]: ...

    def nearest(self, query: str | list[str], k: int = 10) -> list[Near] | list[list[Near]]:
        """The ``k`` texts nearest to the query, the nearest first, equals in the order in which they were put in; for a
        list of queries a list of these. Fewer where there are fewer.
        """
        if k < 1:
            raise HeedfulError(f"the nearest {k} texts are none; ask for 1 or more")
        queries = [query] if isinstance(query, str) else list(query)
        blank = next((i for i, one in enumerate(queries, 1) if not isinstance(one, str) or not one.strip()), None)
        if blank is not None:
            raise HeedfulError(f"query {blank} of {len(queries):,} is blank or no text; leave it out")
        found: list[list[Near]] = [[] for _ in queries]
        if queries and len(self):
            scores, places = self._search(self._read(queries), min(k, len(self)))
            found = [
                [Near(self.texts[i], float(score), *self.places[i]) for i, score in zip(of, near, strict=True)]
                for of, near in zip(places.tolist(), scores, strict=True)
            ]
        return found[0] if isinstance(query, str) else found

    def _read(self, texts: Sequence[str], tick: Callable[[int], object] | None = None) -> Vectors:
        vectors = self.task.vectors(self.pipe.model, texts, tick=tick)
        return np.ascontiguousarray(unit(vectors), dtype=np.float32)

    def _search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Scores and places (Q, k) of the nearest."""
        if self._faiss is None:
            return nearest_vectors(queries, self.vectors, k)
        if self._made is None:
            self._made = self._faiss.IndexFlatIP(self.vectors.shape[1])
            self._made.add(self.vectors)
        scores, places = self._made.search(queries, k)
        return scores, places

    def save(self, folder: str | Path) -> None:
        """Write the texts, a JSON object a line, their vectors, as NumPy writes an array, and what model made them."""
        about = {"format": FORMAT, "model": self.pipe.model.source, "texts": len(self)}
        lines = (
            json.dumps({"text": text, "file": file, "line": line}, ensure_ascii=False)
            for text, (file, line) in zip(self.texts, self.places, strict=True)
        )
        with atomic_write(Path(folder).expanduser().resolve()) as place:
            (place / ABOUT).write_bytes(to_json(about))
            with (place / TEXTS).open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
            np.save(place / VECTORS, self.vectors, allow_pickle=False)

    @classmethod
    def open(
        cls, folder: str | Path, pipe: Pipeline | None = None, engine: Literal["numpy", "faiss"] = "numpy"
    ) -> Self:
        """Loads an index that ``save`` wrote, without encoding its texts again.

        Args:
            folder: the index's.
            pipe: of the model that made the vectors; None opens it where it was.
            engine: as for a new index.

        Raises:
            HeedfulError: for files that are missing or do not fit each other, and for another model's index.
        """
        folder = Path(folder).expanduser()
        about = read_json(folder / ABOUT)
        if about.get("format") != FORMAT:
            raise HeedfulError(f"{folder / ABOUT} is of no format that this version knows; make the index anew")
        made = cls(pipe or pipeline(EMBEDDING_TASK, str(about.get("model"))), engine)
        stored = list(_lines(folder / TEXTS))
        try:
            vectors = np.load(folder / VECTORS, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise HeedfulError(f"cannot read {folder / VECTORS} ({reason(error)}); make the index anew") from None
        if vectors.shape != (about.get("texts"), vectors.shape[-1]) or len(stored) != len(vectors):
            raise HeedfulError(
                f"{folder} holds {len(stored):,} texts and vectors of shape {vectors.shape}, not {about.get('texts')} "
                "of both; make the index anew"
            )
        made.texts = [one["text"] for one in stored]
        made.places = [(str(one.get("file", "")), int(one.get("line", 0))) for one in stored]
        made._vectors = [vectors]
        if made.texts:
            first = made._read(made.texts[:1])
            if first.shape != vectors[:1].shape or float((first * vectors[:1]).sum()) < SAME:
                raise HeedfulError(
                    f"{folder} was made by another model than the one in {made.pipe.model.source}, or that was trained "
                    "since; make the index anew"
                )
        return made


def nearest_vectors(queries: Vectors, vectors: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
    """The dot products (Q, k), the largest first, of queries (Q, D) with the nearest of vectors (N, D), and their
    places; of equals the first. Memory for Q × 65,536 products.

    >>> scores, places = nearest_vectors(np.eye(2, dtype=np.float32), np.array([[0, 1], [1, 0]], np.float32), k=1)
    >>> places.tolist()
    [[1], [0]]
    """
    scores, places = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for first in range(0, len(vectors), BLOCK):
        near = queries @ vectors[first : first + BLOCK].T
        scores = np.concatenate([scores, near], axis=1)
        own = np.broadcast_to(np.arange(first, first + near.shape[1]), near.shape)
        places = np.concatenate([places, own], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # those kept before come first among equals
        scores, places = np.take_along_axis(scores, order, 1), np.take_along_axis(places, order, 1)
    return scores, places


def similarity(pipe: Pipeline, texts: Sequence[str], others: Sequence[str]) -> Vectors:
    """The cosines (N, M) of the vectors of texts with those of others, −1 to 1."""
    index = Index(pipe)
    return index._read(list(texts)) @ index._read(list(others)).T


def texts_among(source: str | os.PathLike[str], column: str | None = None) -> Rows:
    """The texts of a file or a folder, each with its file and line, for ``Index.add``.

    A table has one in each row (``column``, or "text"), a plain file in each line, and of a folder's files each has one
    in each paragraph: lines that stand together.
    """
    if not os.path.isdir(source):
        return read(source, {"text": "text"}, names=None if column is None else [column])
    documents = read(source, {"text": "document"}, names=None if column is None else [column])
    return Rows((part for row in documents for part in _paragraphs(row)), documents.skipped, documents.columns)


def _paragraphs(row: Row) -> Iterator[Row]:
    lines = row.values["text"].split("\n")
    first = 0
    for i, line in enumerate([*lines, ""]):
        if not line.strip():
            if i > first:
                yield Row({"text": "\n".join(lines[first:i])}, row.file, row.line + first)
            first = i + 1


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line:
            yield parse_json(line, f"{path}:{number}", "make the index anew")


def _faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise HeedfulError(
            "the engine 'faiss' is not installed; pip install 'heedful[faiss]', or take numpy"
        ) from error
