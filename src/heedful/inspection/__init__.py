"""Looking inside: what a model computes, seen, changed, measured and counted.

- ``paths``: which tensors there are, and what they are called;
- ``record``, ``observe``: see them; ``tape`` puts what a generation showed in order; ``intervene``: change them;
  ``taps``, ``weights``: how readers and changers are put at a model's tensors, and taken away;
- ``attention_maps``, ``alignment``, ``head_scores``, ``finding``: what patterns say, and which head does what;
- ``lens``, ``gradients``: what each layer would say, and what an answer hangs on;
- ``ablation``, ``importance``, ``pruning`` (``kept``): what parts are worth, and a smaller model without some;
- ``embeddings``, ``positions``, ``images``: what tables hold;
- ``summary``: layers, shapes, parameters, operations, memory;
- ``evaluating``: evaluation mode while one looks.

Nothing here knows a tokenizer, a task or a picture: tensors in, tensors out.
"""

from heedful.inspection.ablation import ablate
from heedful.inspection.alignment import align, alignment_error_rate
from heedful.inspection.attention_maps import class_token_overlay, distance, entropy, head_similarity, rollout
from heedful.inspection.embedding_space import neighbours, picture, similarity, tables
from heedful.inspection.find_heads import find_heads
from heedful.inspection.gradients import gradient_x_input
from heedful.inspection.image_patches import feature_maps, patch_filters, patch_position_similarity
from heedful.inspection.importance import head_importance, weakest
from heedful.inspection.intervene import intervene
from heedful.inspection.logit_lens import logit_lens
from heedful.inspection.position_tables import position_bias, position_similarity
from heedful.inspection.pruning import prune
from heedful.inspection.record import observe, record
from heedful.inspection.summary import summary
from heedful.inspection.tensor_paths import paths

__all__ = [
    "ablate",
    "align",
    "alignment_error_rate",
    "class_token_overlay",
    "distance",
    "entropy",
    "feature_maps",
    "find_heads",
    "gradient_x_input",
    "head_importance",
    "head_similarity",
    "intervene",
    "logit_lens",
    "neighbours",
    "observe",
    "patch_filters",
    "patch_position_similarity",
    "paths",
    "picture",
    "position_bias",
    "position_similarity",
    "prune",
    "record",
    "rollout",
    "similarity",
    "summary",
    "tables",
    "weakest",
]
