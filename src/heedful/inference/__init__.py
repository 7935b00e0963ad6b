"""A model made ready for answering alone: the same outputs, sooner. Nothing of it is needed for training.

linear     linear maps whose weights lie as one fast kernel reads them, in float32 down to four bits
attention  self-attention with one product for queries, keys and values
unpadded   an encoder that does no work on padding
last_block the last block, for the tokens that the head reads
memory     freed memory, kept for the next step
prepare    all of them, put into a model
"""

from heedful.inference.linear import direct
from heedful.inference.prepare import KINDS, prepare

__all__ = ["KINDS", "direct", "prepare"]
