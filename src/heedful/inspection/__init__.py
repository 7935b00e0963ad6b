"""Looking inside: ``record`` keeps what layers compute, ``summary`` counts what a model is made of."""
