"""CTranslate2, OpenNMT's engine: its own kernels in C++, weights through ``heedful export --to ctranslate2``."""

from __future__ import annotations

from typing import Any

from benchmarks.speed.programs import Call, Ready, Setting, need
from benchmarks.speed.works import Work


def _options(at: Setting) -> dict[str, Any]:
    need("ctranslate2")
    return {"device": at.device, "compute_type": at.precision, "inter_threads": 1, "intra_threads": at.threads}


def _words(work: Work) -> list[list[str]]:
    return [[f"t{number}" for number in row] for row in work.ids()]


def _numbers(rows: list[list[str]]) -> list[list[int]]:
    return [[int(word[1:]) for word in row] for row in rows]


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    options = _options(at)
    import ctranslate2

    engine = ctranslate2.Generator(str(at.model), **options)

    def ready(work: Work) -> Call:
        words = _words(work)
        told = {"sampling_topk": 1, "include_prompt_in_result": False}  # without the prompt lengths are of new tokens
        told |= {"max_length": work.new, "min_length": work.new}
        return lambda: [row.sequences_ids[0] for row in engine.generate_batch(words, **told)]

    return ready


def beam(at: Setting) -> Ready:
    """The best beam."""
    options = _options(at)
    import ctranslate2

    engine = ctranslate2.Translator(str(at.model), **options)

    def ready(work: Work) -> Call:
        words = _words(work)
        told = {"beam_size": work.beams, "max_decoding_length": work.new, "min_decoding_length": work.new}
        return lambda: _numbers([row.hypotheses[0] for row in engine.translate_batch(words, **told)])

    return ready
