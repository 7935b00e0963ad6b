"""CTranslate2: the engine's own converter, run on the model in Hugging Face's layout.

Its reader of Marian models takes for granted what holds of the published ones: the target begins with padding, which is
embedded as zeros and stands last in a vocabulary that both sides share. A Marian model that begins with a token of its
own, or has two vocabularies, is read by ``Plain`` instead, which takes nothing for granted; and so is every BART, whose
reader asks for keys that ``transformers`` no longer has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heedful.config import EncoderConfig, EncoderDecoderConfig, ModelConfig, VisionConfig
from heedful.errors import HeedfulError
from heedful.export import hugging_face
from heedful.export.target import copy_beside
from heedful.models import Model
from heedful.text import Tokenizer
from heedful.text.tokenizer import TARGET
from heedful.verify.reference import quiet

# layouts that ``Plain`` reads: the configuration's and the model's class, and whether embeddings are normed
PLAIN = {
    "marian": ("MarianConfig", "MarianMTModel", False),
    "bart": ("BartConfig", "BartForConditionalGeneration", True),
}


def write(source: Path, place: Path, quantization: str | None = None) -> dict[str, Any]:
    """Converts the model of ``source`` into the folder ``place``: ``model.bin``, ``config.json``, the vocabularies."""
    model = hugging_face.opened(source)
    if isinstance(model.config, EncoderConfig | VisionConfig):
        raise HeedfulError(f"CTranslate2 runs models that write, and {source} does not; export it --to onnx")
    with TemporaryDirectory() as beside:
        folder = Path(beside) / "hf"
        folder.mkdir()
        layout = hugging_face.write(source, folder)["layout"]
        if not (folder / "tokenizer_config.json").exists():
            raise HeedfulError(
                f"{source} has no tokenizer, whose vocabulary CTranslate2 needs; put one beside the model"
            )
        with quiet(), _reader(layout, model, folder):
            from ctranslate2.converters import TransformersConverter

            try:
                TransformersConverter(str(folder)).convert(str(place), quantization=quantization, force=True)
            # the converter raises any of them for a model that it cannot read
            except (ValueError, NotImplementedError, KeyError, AttributeError, RuntimeError, OSError) as error:
                reason = " ".join(str(error).split())[:300]
                raise HeedfulError(f"CTranslate2 does not convert this {layout} model: {reason}") from None
    return {"layout": layout, "quantization": quantization, "beside": copy_beside(source, place)}


def as_published(model: Model, tokenizer: Tokenizer) -> bool:
    """Returns whether a Marian model's start token is its padding: zeros, last in the shared vocabulary."""
    config = model.config
    assert isinstance(config, EncoderDecoderConfig)
    table = model.get_parameter("embedding.token.weight")
    last = len(table) - 1
    begins = config.special.start == config.special.pad == last and tokenizer.backend.id_to_token(last) == "<pad>"
    return begins and config.target is None and not bool(table[last].any())


@contextmanager
def _reader(layout: str, model: Model, folder: Path) -> Iterator[None]:
    """Returns the converter's table of readers, with ours where its own would misread this model, while this lasts."""
    from ctranslate2.converters import transformers as readers

    if layout not in PLAIN or (layout == "marian" and as_published(model, Tokenizer.load(folder))):
        yield
        return
    known, architecture, embedding_norm = PLAIN[layout]
    target = Tokenizer.load(folder, TARGET) if (folder / f"{TARGET}.json").exists() else None
    config = model.config

    class Plain(readers.BartLoader):
        """A model as it is stored: post-norm, its own start token, every row of the table, two vocabularies if so."""

        architecture_name = architecture

        def get_model_spec(self, model: Any) -> Any:
            """Bart's, with the two facts that the configuration leaves unsaid."""
            model.config.normalize_before, model.config.normalize_embedding = False, embedding_norm
            return super().get_model_spec(model)

        def get_vocabulary(self, model: Any, tokenizer: Any) -> list[str]:
            """Returns the tokens in order; rows of the table that have none are named."""
            return _filled(super().get_vocabulary(model, tokenizer), model.config.vocab_size)

        def set_vocabulary(self, spec: Any, tokens: list[str]) -> None:
            """The source's tokens, and the target's own where it has them."""
            spec.register_source_vocabulary(tokens)
            own = tokens
            if target is not None:
                ids = sorted(target.backend.get_vocab().items(), key=lambda item: item[1])
                own = _filled([token for token, _ in ids], _target_size(config))
            spec.register_target_vocabulary(own)

    before = readers._MODEL_LOADERS[known]
    readers._MODEL_LOADERS[known] = Plain()
    try:
        yield
    finally:
        readers._MODEL_LOADERS[known] = before


def _target_size(config: ModelConfig) -> int:
    assert isinstance(config, EncoderDecoderConfig)
    return (config.target or config.source).vocab_size


def _filled(tokens: list[str], size: int) -> list[str]:
    """As many tokens as the table has rows."""
    return [*tokens[:size], *(f"<row {number}>" for number in range(len(tokens), size))]
