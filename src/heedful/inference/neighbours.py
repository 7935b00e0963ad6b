"""Nearest-neighbour search over texts: an index of their vectors, with saving and loading.

The search is exact: every vector is compared, with NumPy in blocks, or with ``faiss`` (an optional dependency).
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
from heedful.pretrained.folder import atomic_write, indented_json, read_required_json, reason
from heedful.tasks import EMBEDDING_TASK
from heedful.tasks.task import Embeds
from heedful.util.files import parse_json

Vectors = NDArray[np.float32]
ENGINES = ("numpy", "faiss")
BLOCK = 1 << 16  # vectors that are compared at a time
INDEX, TEXTS, VECTORS = "index.json", "texts.jsonl", "vectors.npy"
FORMAT = 1
MIN_COSINE = 0.98  # of two vectors of a text by the same model, weights of 4 bits included


class Near(NamedTuple):
    """Text that is near a query, with the cosine of their vectors and the text's file and line."""

    text: str
    score: float  #: cosine of its vector and the query's, −1 to 1
    file: str  #: of the text, "" if unknown
    line: int


class Index:
    """Index of texts and their vectors, which finds the nearest texts to a query.

    >>> import heedful
    >>> pipe = heedful.pipeline("feature-extraction", "sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> index = Index(pipe).add(["A man eats.", "It rains."])  # doctest: +SKIP
    >>> index.nearest("Someone has a meal.", k=1)[0].text  # doctest: +SKIP
    'A man eats.'

    Args:
        pipe: pipeline of feature extraction.
        engine: "numpy", or "faiss" (its ``IndexFlatIP``, equally exact; the extra ``faiss``).
    """

    def __init__(self, pipe: Pipeline, engine: Literal["numpy", "faiss"] = "numpy") -> None:
        if engine not in ENGINES:
            raise HeedfulError(f"unknown engine {engine!r}; {nearest(engine, ENGINES)}")
        if not isinstance(pipe.task, Embeds):
            raise HeedfulError(
                f"an index needs text vectors, but this model is for {pipe.task.name}; use a model for {EMBEDDING_TASK}"
            )
        self.pipe, self.task, self.engine = pipe, pipe.task, engine
        self.texts: list[str] = []
        self.origins: list[tuple[str, int]] = []  # file and line of each text
        self._faiss = _faiss() if engine == "faiss" else None
        self._vectors: list[Vectors] = []
        self._faiss_index: Any = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def vectors(self) -> Vectors:
        """Vectors of the texts, (N, D), each of length 1."""
        if len(self._vectors) != 1:
            width = self.pipe.model.main.dim
            self._vectors = [np.concatenate(self._vectors or [np.zeros((0, width), np.float32)])]
        return self._vectors[0]

    def add(self, texts: Sequence[str] | Rows, tick: Callable[[int], object] | None = None) -> Self:
        """Adds texts, or rows with a ``text``, whose file and line are stored. Returns the index itself.

        ``tick`` is called with the number of texts that have been read. Raises ``HeedfulError`` for a blank text.
        """
        numbered = enumerate(texts, len(self) + 1)
        rows = [item if isinstance(item, Row) else Row({"text": item}, "", i) for i, item in numbered]
        new_texts = [row.values["text"] for row in rows]
        blank = next((i for i, text in enumerate(new_texts, 1) if not isinstance(text, str) or not text.strip()), None)
        if blank is not None:
            raise HeedfulError(f"text {blank} of {len(new_texts):,} is blank or not a string; leave it out")
        if new_texts:
            self._vectors.append(self._read(new_texts, tick))
            self.texts += new_texts
            self.origins += [(row.file, row.line) for row in rows]
            self._faiss_index = None
        return self

    @overload
    def nearest(self, query: str, k: int = 10) -> list[Near]: ...

    @overload
    def nearest(self, query: list[str], k: int = 10) -> list[list[Near]]: ...

    def nearest(self, query: str | list[str], k: int = 10) -> list[Near] | list[list[Near]]:
        """Returns the ``k`` texts nearest to the query, the nearest first; all texts if there are fewer.

        Equal texts keep their order in the index. A list of queries gives a list of such lists.
        """
        if k < 1:
            raise HeedfulError(f"k is {k}; give 1 or more")
        queries = [query] if isinstance(query, str) else list(query)
        blank = next((i for i, text in enumerate(queries, 1) if not isinstance(text, str) or not text.strip()), None)
        if blank is not None:
            raise HeedfulError(f"query {blank} of {len(queries):,} is blank or not a string; leave it out")
        results: list[list[Near]] = [[] for _ in queries]
        if queries and len(self):
            scores, indices = self._search(self._read(queries), min(k, len(self)))
            results = [
                [Near(self.texts[i], float(x), *self.origins[i]) for i, x in zip(row, row_scores, strict=True)]
                for row, row_scores in zip(indices.tolist(), scores, strict=True)
            ]
        return results[0] if isinstance(query, str) else results

    def _read(self, texts: Sequence[str], tick: Callable[[int], object] | None = None) -> Vectors:
        vectors = self.task.vectors(self.pipe.model, texts, tick=tick)
        return np.ascontiguousarray(unit(vectors), dtype=np.float32)

    def _search(self, queries: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
        """Returns the scores and indices (Q, k) of the nearest texts."""
        if self._faiss is None:
            return nearest_vectors(queries, self.vectors, k)
        if self._faiss_index is None:
            self._faiss_index = self._faiss.IndexFlatIP(self.vectors.shape[1])
            self._faiss_index.add(self.vectors)
        scores, indices = self._faiss_index.search(queries, k)
        return scores, indices

    def save(self, folder: str | Path) -> None:
        """Writes the index into a folder: the texts as JSON lines, their vectors as a NumPy array, the name of the
        model.
        """
        facts = {"format": FORMAT, "model": self.pipe.model.folder.source, "texts": len(self)}
        lines = (
            json.dumps({"text": text, "file": file, "line": line}, ensure_ascii=False)
            for text, (file, line) in zip(self.texts, self.origins, strict=True)
        )
        with atomic_write(Path(folder).expanduser().resolve()) as path:
            (path / INDEX).write_bytes(indented_json(facts))
            with (path / TEXTS).open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(line + "\n" for line in lines)
            np.save(path / VECTORS, self.vectors, allow_pickle=False)

    @classmethod
    def open(
        cls, folder: str | Path, pipe: Pipeline | None = None, engine: Literal["numpy", "faiss"] = "numpy"
    ) -> Self:
        """Loads an index that ``save`` wrote, without encoding its texts again.

        Args:
            folder: folder of the index.
            pipe: pipeline of the model that computed the vectors; None loads the model that the index names.
            engine: "numpy" or "faiss".

        Raises:
            HeedfulError: files are missing or inconsistent, or the index was created with another model.
        """
        folder = Path(folder).expanduser()
        facts = read_required_json(folder / INDEX)
        if facts.get("format") != FORMAT:
            raise HeedfulError(f"{folder / INDEX} has a format that this version cannot read; create the index again")
        index = cls(pipe or pipeline(EMBEDDING_TASK, str(facts.get("model"))), engine)
        stored = list(_lines(folder / TEXTS))
        try:
            vectors = np.load(folder / VECTORS, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise HeedfulError(f"cannot read {folder / VECTORS} ({reason(error)}); create the index again") from None
        if vectors.shape != (facts.get("texts"), vectors.shape[-1]) or len(stored) != len(vectors):
            raise HeedfulError(
                f"{folder} should hold {facts.get('texts')} texts and vectors, but holds {len(stored):,} texts and "
                f"vectors of shape {vectors.shape}; create the index again"
            )
        index.texts = [item["text"] for item in stored]
        index.origins = [(str(item.get("file", "")), int(item.get("line", 0))) for item in stored]
        index._vectors = [vectors]
        if index.texts:
            first = index._read(index.texts[:1])
            if first.shape != vectors[:1].shape or float((first * vectors[:1]).sum()) < MIN_COSINE:
                raise HeedfulError(
                    f"{folder} was created with another model than the one in {index.pipe.model.folder.source}, or "
                    "that model was trained further since then; create the index again"
                )
        return index


def nearest_vectors(queries: Vectors, vectors: Vectors, k: int) -> tuple[Vectors, NDArray[np.int64]]:
    """Returns the k largest dot products of each query with all vectors, in order, and their indices, two arrays (Q,
    k).

    ``queries`` is (Q, D) and ``vectors`` (N, D). Of equal products the first is returned. Memory is needed for Q ×
    65,536 products.

    >>> scores, indices = nearest_vectors(np.eye(2, dtype=np.float32), np.array([[0, 1], [1, 0]], np.float32), k=1)
    >>> indices.tolist()
    [[1], [0]]
    """
    scores, indices = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for first in range(0, len(vectors), BLOCK):
        products = queries @ vectors[first : first + BLOCK].T
        scores = np.concatenate([scores, products], axis=1)
        block_indices = np.broadcast_to(np.arange(first, first + products.shape[1]), products.shape)
        indices = np.concatenate([indices, block_indices], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # earlier ones come first among equals
        scores, indices = np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)
    return scores, indices


def similarity(pipe: Pipeline, texts: Sequence[str], others: Sequence[str]) -> Vectors:
    """Returns the cosines of the vectors of N ``texts`` with those of M ``others``, (N, M), from −1 to 1."""
    index = Index(pipe)
    return index._read(list(texts)) @ index._read(list(others)).T


def texts_among(source: str | os.PathLike[str], column: str | None = None) -> Rows:
    """Reads the texts of a file or a folder, each with its file and line, for ``Index.add``.

    A text is a row of a table (its ``column``, by default "text"), a line of a plain file, or a paragraph of a file in
    a folder; blank lines separate paragraphs.
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
            yield parse_json(line, f"{path}:{number}", "create the index again")


def _faiss() -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise HeedfulError(
            "the engine 'faiss' is not installed; pip install 'heedful[faiss]', or use engine='numpy'"
        ) from error
