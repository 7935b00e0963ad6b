"""Generation: tokens after tokens, for decoders and encoder-decoders.

``decode`` the public calls, with the table of the methods: ``one_by_one`` the loop of greedy decoding and sampling,
``assisted`` the same with proposed tokens, ``contrastive``, ``beam`` the search, ``groups`` and ``words`` its kinds;
``run`` what each is given; ``source`` a model with its memory, the one place that tells the two families apart;
``processors`` what changes scores; ``sampling`` the choice of a token; ``options`` their names, checked. It receives
models and imports none; every method must give a row the same result alone and in any batch.
"""

from heedful.generation.decode import Generated, decode, generate, stream

__all__ = ["Generated", "decode", "generate", "stream"]
