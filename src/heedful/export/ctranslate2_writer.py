"""CTranslate2: the engine's own converter, run on the model in Hugging Face's layout.

Its reader of Marian models assumes a published model: the target begins with the padding token, which is embedded as
zeros and is the last of a vocabulary that both sides share. A Marian model with its own start token or with two
vocabularies is read by ``PlainLoader``, which does not assume this. ``PlainLoader`` also reads every BART model and
its relatives, because the engine's BART reader needs configuration keys that ``transformers`` no longer has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from heedful.config import DecoderConfig, EncoderConfig, EncoderDecoderConfig, patches_of
from heedful.errors import HeedfulError
from heedful.export import hugging_face
from heedful.export.target import copy_beside
from heedful.models import Model
from heedful.text import Tokenizer
from heedful.text.tokenizer import TARGET_NAME
from heedful.util.files import write as write_file
from heedful.verify.reference import quiet_transformers

# layouts that ``PlainLoader`` reads: classes of configuration and model
PLAIN = {
    "marian": ("MarianConfig", "MarianMTModel"),
    "bart": ("BartConfig", "BartForConditionalGeneration"),
    "mbart": ("MBartConfig", "MBartForConditionalGeneration"),
    "m2m_100": ("M2M100Config", "M2M100ForConditionalGeneration"),
    "pegasus": ("PegasusConfig", "PegasusForConditionalGeneration"),
}
# what the converter's reader of a layout leaves out
MISREAD = {"gemma2": "caps of scores and logits, windows and the scale of scores"}
WINDOWLESS = ("qwen2", "qwen3")  # layouts whose windows of attention the converter's reader leaves out
# The converter has no error of its own for a model that it cannot read: which of these it is depends on where its
# reader, which finds parts by their names, or the loading by ``transformers`` fails.
UNREADABLE = (ValueError, NotImplementedError, KeyError, AttributeError, RuntimeError, OSError)


def write(source: Path, out: Path, quantization: str | None = None) -> dict[str, Any]:
    """Converts the model of ``source`` into the folder ``out``: ``model.bin``, ``config.json``, the vocabularies."""
    model = hugging_face.load_expressible(source)
    if isinstance(model.config, EncoderConfig) or patches_of(model.config) is not None:
        raise HeedfulError(
            f"CTranslate2 runs only models that generate text from text, and {source} does not; use --to onnx"
        )
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "hf"
        folder.mkdir()
        layout = hugging_face.write(source, folder)["layout"]
        if layout in MISREAD:
            raise HeedfulError(f"CTranslate2's reader of {layout} leaves out {MISREAD[layout]}; use --to onnx or gguf")
        assert isinstance(model.config, DecoderConfig | EncoderDecoderConfig)  # others are refused above
        window = min((size for size in model.config.decoder.windows if size is not None), default=None)
        if window is not None and layout in WINDOWLESS:
            raise HeedfulError(f"CTranslate2's reader of {layout} leaves out windows of attention; use --to onnx")
        if not Tokenizer.has_files(folder):
            raise HeedfulError(
                f"{source} has no tokenizer, and CTranslate2 needs its vocabulary; copy the tokenizer's files into "
                "the folder"
            )
        if not (folder / "tokenizer.json").exists() and layout != "marian":
            Tokenizer.load(folder).save(folder)  # of vocab.json and merges.txt
        with quiet_transformers(), _reader(layout, model, folder):
            from ctranslate2.converters import TransformersConverter

            try:
                TransformersConverter(str(folder)).convert(str(out), quantization=quantization, force=True)
            except UNREADABLE as error:
                reason = " ".join(str(error).split())[:300]
                raise HeedfulError(
                    f"CTranslate2 cannot convert this {layout} model ({reason}); use --to onnx"
                ) from None
    _name_special_tokens(out / "config.json", source)
    note = f"CTranslate2 may write another text after a prompt of more than {window} tokens, the window of attention"
    notes = [] if window is None else [f"{note}; give it shorter ones"]
    return {"layout": layout, "quantization": quantization, "notes": notes, "beside": copy_beside(source, out)}


def _name_special_tokens(path: Path, source: Path) -> None:
    """Gives each role without a token that of another role, since CTranslate2 opens no folder that leaves one out.

    A tokenizer over bytes, such as GPT-2's, has no unknown token.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    roles = [role for role in ("unk_token", "eos_token", "bos_token") if role in config]  # of a decoder
    named = [config[role] for role in roles if config[role] is not None]
    if roles and not named:
        raise HeedfulError(
            f"the tokenizer of {source} names no special token, and CTranslate2 needs one; use --to onnx"
        )
    config |= {role: named[0] for role in roles if config[role] is None}
    write_file(path, json.dumps(config, indent=2) + "\n")


def as_published(model: Model, tokenizer: Tokenizer) -> bool:
    """Returns True if CTranslate2's own reader of Marian models can read this model.

    It needs one vocabulary for both sides, with padding as the last token, embedded as zeros, and as the start token.
    """
    config, table = model.config, model.get_parameter("embedding.token.weight")
    last = len(table) - 1
    return (
        isinstance(config, EncoderDecoderConfig)
        and config.target is None
        and config.special.start == config.special.pad == last
        and tokenizer.backend.id_to_token(last) == "<pad>"
        and not bool(table[last].any())
    )


@contextmanager
def _reader(layout: str, model: Model, folder: Path) -> Iterator[None]:
    """Puts ``PlainLoader`` into the converter's table of readers if the usual reader would misread this model."""
    from ctranslate2.converters import transformers as readers

    config = model.config
    if (
        layout not in PLAIN
        or not isinstance(config, EncoderDecoderConfig)
        or (layout == "marian" and as_published(model, Tokenizer.load(folder)))
    ):
        yield
        return
    config_class, architecture = PLAIN[layout]
    stack = config.encoder
    target = Tokenizer.load(folder, TARGET_NAME) if (folder / f"{TARGET_NAME}.json").exists() else None
    target_size = config.tokens.vocab_size

    class PlainLoader(readers.BartLoader):
        """Reader of BART models and their relatives; start token, embeddings and vocabularies stay as in the folder."""

        architecture_name = architecture

        def get_model_spec(self, model: Any) -> Any:
            """Returns BART's specification, after setting ``normalize_before`` and ``normalize_embedding``, which the
            configurations of other models do not have.
            """
            model.config.normalize_before = stack.placement == "pre"
            model.config.normalize_embedding = stack.embedding_norm
            return super().get_model_spec(model)

        def set_position_encodings(self, spec: Any, module: Any) -> None:
            """Sets the rows of the positions; M2M-100's begin after the row of the padding token."""
            if hasattr(module, "weights"):
                spec.encodings = module.weights[module.padding_idx + 1 :]
            else:
                super().set_position_encodings(spec, module)

        def get_vocabulary(self, model: Any, tokenizer: Any) -> list[str]:
            """Returns the tokens in the order of their ids; an embedding row without a token gets a made-up name."""
            return _filled(super().get_vocabulary(model, tokenizer), model.config.vocab_size)

        def set_vocabulary(self, spec: Any, tokens: list[str]) -> None:
            """Registers the source's tokens, and the target's tokens if the target has its own vocabulary."""
            spec.register_source_vocabulary(tokens)
            target_tokens = tokens
            if target is not None:
                ids = sorted(target.backend.get_vocab().items(), key=lambda item: item[1])
                target_tokens = _filled([token for token, _ in ids], target_size)
            spec.register_target_vocabulary(target_tokens)

    before = readers._MODEL_LOADERS[config_class]
    readers._MODEL_LOADERS[config_class] = PlainLoader()
    try:
        yield
    finally:
        readers._MODEL_LOADERS[config_class] = before


def _filled(tokens: list[str], size: int) -> list[str]:
    """Returns the first ``size`` tokens; ``<row N>`` stands for an embedding row without a token."""
    return [*tokens[:size], *(f"<row {number}>" for number in range(len(tokens), size))]
