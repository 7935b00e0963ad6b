"""The shortest time that a work can take on a machine: what must be read and computed, by the measured ceilings.

Each step waits for the slower of the two. With N the weights of the matrices that a step multiplies by (each is read
once and costs two operations a row), L layers of width d, T tokens, B rows, and t tokens remembered:

    encoder and ViT, an input:   L (24 T d² + 4 T² d) operations, real tokens alone, and a read of the weights
    a decoder's step:            N · bytes + B · 2 · L · d · t · bytes to read; 2 N B operations
    a decoder's prompt:          2 N_blocks · (its tokens) operations; one row of the head for each prompt
    a beam search's step:        the same with B · K rows of their own memory, and the sources' memory, one a sentence
    a step of training:          6 N + 12 L d T operations a token, real ones alone; then AdamW's 28 bytes a parameter
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.speed.works import LABELS, LOADING, TEXTS, Work

# bytes a weight, and of a remembered number: what is computed in float32 is remembered in float32
BYTES = {"float32": (4, 4), "bfloat16": (2, 2), "float16": (2, 4), "int8": (1, 4), "int4": (0.5, 4)}
COMPUTED = {"float16": "float32", "int4": "float32"}  # weights that are unpacked to be computed with
Step = tuple[float, float, float]  # weights to read, operations, remembered numbers to read
TRAINED = {  # of the others that are trained
    "gpt2-4x128-whole": (128, 4, 65),
    "gpt2-6x384-whole": (384, 6, 65),
    "gpt2-4x128-tiny": (64, 2, 65),
    "gpt2-6x384-tiny": (64, 2, 65),
}
SIZES = {  # of the models in ``weights``: width, layers, and numbers to choose from
    "gpt2-whole": (768, 12, 50257),
    "llama-whole": (288, 6, 32000),
    "pair-whole": (512, 6, 32000),
    "bert-whole": (768, 12, 0),
    "deberta-whole": (768, 12, 0),
    "vit-whole": (768, 12, 1000),
    "gpt2-tiny": (64, 2, 300),
    "llama-tiny": (64, 2, 300),
    "pair-tiny": (64, 2, 300),
    "bert-tiny": (64, 2, 0),
    "deberta-tiny": (64, 2, 0),
    "vit-tiny": (64, 2, 10),
}


def milliseconds(work: Work, precision: str, ceilings: Mapping[str, float]) -> float | None:
    """At least, of one unit of the work; None where the machine's speed under this precision is not known, and
    of opening a model."""
    speed = ceilings.get(COMPUTED.get(precision, precision))
    if speed is None or work.row == LOADING:
        return None
    if work.steps:
        operations, parameters = _training(work)
        return 1e3 * (operations / speed + 28 * parameters / ceilings["copy"])
    read, kept = BYTES[precision]

    def longer(numbers: float, operations: float, remembered: float = 0.0) -> float:
        return max((numbers * read + remembered * kept) / ceilings["read"], operations / speed)

    steps = {"generation": _generation, "beam": _beam, "encoder": _encoder, "vit": _vit}[work.action](work)
    return 1e3 * sum(longer(*step) for step in steps) / work.units


def _generation(work: Work) -> list[Step]:
    dim, depth, vocab = SIZES[work.model]
    blocks, head, rows = 12 * depth * dim**2, vocab * dim, work.batch
    scores = depth * dim * work.longest**2  # causal: half of all pairs, once for the weights and once for the values
    steps: list[Step] = [(blocks + head, 2.0 * rows * (blocks * work.longest + head + scores), 0.0)]
    for made in range(1, work.new):
        kept = 2.0 * depth * dim * (work.longest + made) * rows
        steps.append((blocks + head, 2.0 * rows * (blocks + head) + 2 * kept, kept))
    return steps


def _beam(work: Work) -> list[Step]:
    dim, depth, vocab = SIZES[work.model]
    source, rows = work.longest, work.batch * work.beams
    encoder = depth * (24 * source * dim**2 + 4 * source**2 * dim)
    cross = 2 * depth * dim**2  # keys and values of the source, once
    steps: list[Step] = [(12.0 * depth * dim**2 + cross, work.batch * (encoder + 2.0 * source * cross), 0.0)]
    weights = 14 * depth * dim**2 + vocab * dim
    for made in range(work.new):
        lines = rows if made else work.batch  # all beams begin as one
        own, theirs = 2.0 * depth * dim * made * lines, 2.0 * depth * dim * source * work.batch
        computed = 2.0 * lines * weights + 2 * own + 2 * theirs * lines / work.batch
        steps.append((weights, computed, own + theirs))
    return steps


def _encoder(work: Work) -> list[Step]:
    dim, depth, _ = SIZES[work.model]
    return [(12.0 * depth * dim**2, float(sum(_stack(int(length), dim, depth) for length in work.lengths)), 0.0)]


def _vit(work: Work) -> list[Step]:
    dim, depth, labels = SIZES[work.model]
    patch = 8 if work.model.endswith("tiny") else 16
    patches, numbers = (work.image // patch) ** 2, 3 * patch**2
    once = numbers * dim + labels * dim
    operations = _stack(patches + 1, dim, depth) + 2 * patches * numbers * dim + 2 * labels * dim
    return [(12.0 * depth * dim**2 + once, float(work.batch * operations), 0.0)]


def _training(work: Work) -> tuple[float, float]:
    """Operations of a step, and how many parameters its matrices and tables have."""
    name = work.model.removesuffix("-train")
    dim, depth, vocab = {**SIZES, **TRAINED}[name]
    blocks, labels = 12 * depth * dim**2, LABELS
    if work.family == "vit":
        once = 3 * (8 if name.endswith("tiny") else 16) ** 2 * dim
        tokens = (work.image // (8 if name.endswith("tiny") else 16)) ** 2 + 1
        head = vocab * dim
        each = (6 * blocks + 12 * depth * dim * tokens) * tokens + 6 * once * (tokens - 1) + 6 * head
        return float(work.batch * each), blocks + once + head
    lengths = work.lengths.astype(float)
    scores = 12 * depth * dim * (lengths**2).sum()
    if work.family in TEXTS:
        head = dim**2 + labels * dim
        words = work.vocab * dim
        return 6 * blocks * lengths.sum() + scores + 6 * head * work.batch, blocks + head + words
    if work.family == "gpt2":
        return 6 * (blocks + vocab * dim) * lengths.sum() + scores, blocks + vocab * dim
    matrices = blocks + 16 * depth * dim**2 + vocab * dim  # a decoder's block has four more, d × d, for the source
    return 6 * matrices * lengths.sum() + 3 * scores, matrices  # targets are as long as their sources


def _stack(tokens: int, dim: int, depth: int) -> int:
    return depth * (24 * tokens * dim**2 + 4 * tokens**2 * dim)
