"""The linear line beside text-classification: TF-IDF of words and pairs of words, logistic regression.

    python benchmarks/linear_text.py sst2.train.tsv sst2.test.tsv 2,1

Two files as `heedful train text-classification` takes them, and the columns where files do not name them: text, label.
A few seconds. Expect 81.1 % on SST-2's whole sentences and 88.4 %
on TREC's six kinds of questions.
"""

from __future__ import annotations

import sys

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from heedful.data import read


def main(train: str, test: str, columns: str | None = None) -> None:
    names = None if columns is None else columns.split(",")
    learned, asked = (read(file, {"text": "text", "label": "label"}, names=names) for file in (train, test))
    model = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10, max_iter=1000))
    model.fit([row.values["text"] for row in learned], [row.values["label"] for row in learned])
    score = model.score([row.values["text"] for row in asked], [row.values["label"] for row in asked])
    print(f"accuracy {100 * score:.1f} % of {len(asked):,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
