"""Position schemes whose bias depends on the queries and keys, small enough for short texts to reach every case."""

from __future__ import annotations

from heedful.config import DisentangledPosition, ShawPosition, TransformerXLPosition

CONTENT = [
    ShawPosition(distance=3),
    TransformerXLPosition(),
    DisentangledPosition(length=6, buckets=4, norm=True),
]
OTHER_CONTENT = [
    ShawPosition(distance=2, values=False, heads="shared"),
    TransformerXLPosition(biases="stack"),
    DisentangledPosition(length=4, terms="c2p", projections="own"),
    DisentangledPosition(length=4, terms="p2c", projections="own"),
]
