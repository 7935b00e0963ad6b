"""Code of a model card: how ``heedful`` and ``transformers`` load a folder and predict. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

S = TypeVar("S", int, str)
LONGEST = 256  # tokens of an output; transformers' own limit, 20, cuts most of them
QUESTION, CONTEXT = "Who came?", "Ann came."
PAIR = '{"text": "A text.", "text_pair": "Another text."}'
# task of a pipeline of transformers: what the name of a class for it contains
PIPELINES = {
    "text-classification": ("ForSequenceClassification",),
    "token-classification": ("ForTokenClassification",),
    "fill-mask": ("ForMaskedLM", "ForPreTraining"),
    "text-generation": ("ForCausalLM", "LMHeadModel"),
    "feature-extraction": ("Model",),
    "image-classification": ("ForImageClassification",),
}
PIPELINE = """
from transformers import pipeline

predict = pipeline({task}, model={name})
print(predict({value}))
"""
DISCRIMINATOR = "ElectraForPreTraining"  # of replaced tokens, which fills no mask
ENCODER_DECODERS = ("MarianMTModel", "ForConditionalGeneration")
SEQUENCE_TO_SEQUENCE = """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForSeq2SeqLM.from_pretrained({name})
inputs = tokenizer({value}, return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={tokens})[0], skip_special_tokens=True))
"""
# (task, what the name of a class for it contains): the code of a task that the pipelines of transformers do not have,
# or that they do otherwise: they read every image in color
WRITTEN_OUT: dict[tuple[str, tuple[str, ...]], str] = {
    ("question-answering", ("ForQuestionAnswering",)): """
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForQuestionAnswering.from_pretrained({name})
inputs = tokenizer({question}, {context}, return_tensors="pt")
outputs = model(**inputs)
first, last = outputs.start_logits.argmax(), outputs.end_logits.argmax()
print(tokenizer.decode(inputs["input_ids"][0, first : last + 1]))
""",
    ("fill-mask", (DISCRIMINATOR,)): """
from transformers import AutoModelForPreTraining, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForPreTraining.from_pretrained({name})
inputs = tokenizer({value}, return_tensors="pt")
print(model(**inputs).logits.sigmoid())  # of each token: the probability that it was replaced
""",
    ("image-to-text", ("VisionEncoderDecoderModel",)): """
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageTextToText, AutoTokenizer

processor = AutoImageProcessor.from_pretrained({name})
tokenizer = AutoTokenizer.from_pretrained({name})
model = AutoModelForImageTextToText.from_pretrained({name})
inputs = processor(Image.open("image.png").convert({colors}), return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens={tokens})[0], skip_special_tokens=True))
""",
    ("image-classification", ("ForImageClassification",)): """
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

processor = AutoImageProcessor.from_pretrained({name})
model = AutoModelForImageClassification.from_pretrained({name})
inputs = processor(Image.open("image.png").convert({colors}), return_tensors="pt")
print(model.config.id2label[model(**inputs).logits.argmax().item()])
""",
    **{
        (task, ENCODER_DECODERS): SEQUENCE_TO_SEQUENCE
        for task in ("translation", "summarization", "generative-question-answering", "fill-mask")
    },
}


def heedful_code(name: str, task: str | None, card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns code that loads the model ``name`` and predicts; of an unknown task, code that loads its pipeline."""
    if task is None:
        return f"import heedful\n\nmodel = heedful.from_pretrained({_quoted(name)})"
    call = f"heedful.pipeline({_quoted(task)}, {_quoted(name)})"
    if task == "fill-mask" and config.get("architectures") == [DISCRIMINATOR]:
        return f'import heedful\n\nprint({call}("A text."))'
    if task == "fill-mask" and not _is_encoder_decoder(config):
        return f'import heedful\n\npredict = {call}\nprint(predict(f"A {{predict.task.mask_name}} text."))'
    value = {
        **dict.fromkeys((*PIPELINES, "translation", "summarization"), '"A text."'),
        **dict.fromkeys(("image-classification", "image-to-text"), '"image.png"'),
        "fill-mask": '"A <extra_id_0> text."',
        "question-answering": (question := f'{{"question": "{QUESTION}", "context": "{CONTEXT}"}}'),
        "generative-question-answering": question,
    }.get(task)
    if value is None:
        return f"import heedful\n\npredict = {call}"
    return f"import heedful\n\nprint({call}({PAIR if _reads_pairs(task, card) else value}))"


def transformers_code(name: str, task: str | None, card: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Returns code that does the same in ``transformers``; "" if ``config.json`` names no class.

    A task that the pipelines of ``transformers`` have is a pipeline; other tasks are written out with the auto class.
    """
    classes = config.get("architectures")
    if not (isinstance(classes, list) and classes):
        return ""
    architecture, is_gray = str(classes[0]), _channels(config) == 1
    if (
        any(part in architecture for part in PIPELINES.get(str(task), ()))
        and architecture != DISCRIMINATOR
        and not is_gray
    ):
        value = {
            "image-classification": '"image.png"',
            "fill-mask": 'f"A {predict.tokenizer.mask_token} text."',
        }.get(str(task), PAIR if _reads_pairs(task, card) else '"A text."')
        value += ", truncation=True" if task == "text-classification" else ""  # longer texts are an error otherwise
        return PIPELINE.format(task=_quoted(str(task)), name=_quoted(name), value=value).strip()
    for (written_task, parts), code in WRITTEN_OUT.items():
        if task == written_task and any(part in architecture for part in parts):
            text = {
                "generative-question-answering": f"question: {QUESTION} context: {CONTEXT}",
                "fill-mask": "A text." if architecture == DISCRIMINATOR else "A <extra_id_0> text.",
            }.get(str(task), "A text.")
            return code.format(
                name=_quoted(name),
                value=_quoted(_data_setting(card, "prefix", "") + text),
                question=_quoted(QUESTION),
                context=_quoted(CONTEXT),
                colors=_quoted("L" if is_gray else "RGB"),
                tokens=max(1, min(_data_setting(card, "max_length", LONGEST), LONGEST) - 1),  # and the start token
            ).strip()
    return f"from transformers import {architecture}\n\nmodel = {architecture}.from_pretrained({_quoted(name)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _data_setting(card: Mapping[str, Any], name: str, default: S) -> S:
    """Returns a setting of the run's section ``data``, or the default if it is unset or of another type."""
    settings = card.get("settings")
    data = settings.get("data") if isinstance(settings, Mapping) else None
    value = data.get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, type(default)) else default


def _reads_pairs(task: str | None, card: Mapping[str, Any]) -> bool:
    columns = card.get("columns")
    return task == "text-classification" and isinstance(columns, Mapping) and "text_pair" in columns


def _is_encoder_decoder(config: Mapping[str, Any]) -> bool:
    names = f"{config.get('kind')} {config.get('architectures')}"
    return any(part in names for part in ("encoder-decoder", *ENCODER_DECODERS))


def _channels(config: Mapping[str, Any]) -> Any:
    """Returns the number of color channels that a model of images reads; None for a model of texts."""
    encoder = config.get("encoder")
    return config.get("num_channels", encoder.get("num_channels") if isinstance(encoder, Mapping) else None)
