"""Inspection: records, changes, measures and counts the tensors that a model computes.

- ``tensor_paths``: the tensors that can be recorded, and their names;
- ``record`` reads tensors (``record_generation`` those of a generation), ``intervene`` changes them; ``taps`` attaches
  readers and editors to a model and recomputes attention weights: where ``recorded[path]`` comes from;
- ``attention_maps``, ``alignment``, ``head_scores``, ``find_heads``: measures of attention patterns and heads;
- ``logit_lens``, ``gradients``: predictions of each layer, and attributions of an output to the input;
- ``ablation``, ``importance``, ``pruning``: the effect of removing parts, and smaller models without them;
- ``embedding_space``, ``position_tables``, ``image_patches``: contents of embedding and position tables;
- ``summary``: layers, shapes, parameters, operations, memory;
- ``eval_mode``: puts a model in evaluation mode for a while.

Tensors in, tensors out: nothing here knows a tokenizer, a task or a figure.
"""

from heedful.inspection.ablation import ablate
from heedful.inspection.alignment import align, alignment_error_rate
from heedful.inspection.attention_maps import class_token_overlay, distance, entropy, head_similarity, rollout
from heedful.inspection.embedding_space import (
    cosine_similarity,
    embedding_tables,
    neighbours,
    principal_components,
)
from heedful.inspection.find_heads import HeadMatch, find_heads
from heedful.inspection.gradients import Attribution, gradient_x_input
from heedful.inspection.image_patches import feature_maps, patch_filters, patch_position_similarity
from heedful.inspection.importance import head_importance, least_important_heads
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import LogitLens, logit_lens
from heedful.inspection.position_tables import position_bias, position_similarity
from heedful.inspection.pruning import prune
from heedful.inspection.record import observe, record
from heedful.inspection.summary import summary
from heedful.inspection.tensor_paths import paths

__all__ = [
    "Attribution",
    "HeadMatch",
    "LogitLens",
    "ablate",
    "align",
    "alignment_error_rate",
    "class_token_overlay",
    "cosine_similarity",
    "distance",
    "embedding_tables",
    "entropy",
    "feature_maps",
    "find_heads",
    "gradient_x_input",
    "head_importance",
    "head_similarity",
    "intervene",
    "least_important_heads",
    "logit_lens",
    "neighbours",
    "observe",
    "patch_filters",
    "patch_position_similarity",
    "paths",
    "position_bias",
    "position_similarity",
    "principal_components",
    "prune",
    "record",
    "rollout",
    "summary",
]
