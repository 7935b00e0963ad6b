"""Settings that some tasks use and others do not, as "section" or "section.name", by the class of a task.

The help of a task shows the settings of its classes, and a run refuses the others. The table stands apart from the
classes since it can be read without importing torch, which takes seconds.
"""

from __future__ import annotations

TEXTS = frozenset({"data.max_length", "tokenizer", "training.batch_tokens"})  # of all tasks of texts
SPAN_MASKING = frozenset({"masking", "masking.unit", "masking.span_length"})  # of models that mask spans
OBJECTIVE = frozenset({"masking.objective", "masking.generator"})  # of encoders
ENCODER_DECODER = TEXTS | {"model.encoder_depth", "model.decoder_depth", "model.window", "model.tied"}
SEQUENCES = ENCODER_DECODER | {"data.prefix", "tokenizer.shared", "tokenizer.dropout", "model.r_drop"}
TRANSLATION = SEQUENCES | {"data.source_language", "data.target_language"}
LABELS = TEXTS | {"data.label_kind", "data.label_separator", "model.r_drop", "model.members", "pooling.kind"}
DECODER = TEXTS | {"model.decoder_depth", "model.window", "model.tied"}
GENERATION = DECODER | {"data.document_mask", "preference", "tokenizer.chat_template"}
PATCHES = frozenset({"image", "model.patch_size", "model.class_token"})

USED_SETTINGS = {
    "Translation": TRANSLATION,
    "Summarization": SEQUENCES,
    "GenerativeQuestionAnswering": SEQUENCES | {"data.stride"},
    "DecoderQuestionAnswering": DECODER | {"data.stride"},
    "TextGeneration": GENERATION,
    "PreferenceTuning": GENERATION,
    "TextClassification": LABELS | {"teacher", "distillation"},
    "ClassifierEnsemble": LABELS | {"unlabelled", "distillation"},
    "TextRegression": TEXTS | {"data.label_kind", "pooling.kind"},
    "RewardModel": TEXTS,
    "ZeroShotClassification": frozenset(),  # never trained
    "TokenClassification": TEXTS | {"data.stride", "data.strip_prefix"},
    "QuestionAnswering": TEXTS | {"data.stride"},
    "FillMask": TEXTS | SPAN_MASKING | OBJECTIVE,
    "SpanCorruption": ENCODER_DECODER | SPAN_MASKING,
    "ReplacedTokens": TEXTS | SPAN_MASKING | OBJECTIVE,
    "PermutationFillMask": TEXTS | {"masking"},  # its spans have lengths of their own
    "FeatureExtraction": TEXTS
    | {"pooling.kind", "pooling.normalise", "pooling.temperature", "pooling.chunk", "pooling.symmetric"},
    "ImageClassification": PATCHES | {"image.mixup"},
    "ImageToText": ENCODER_DECODER | PATCHES,
}
