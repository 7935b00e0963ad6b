"""How good it is: metrics as the field computes them, and a whole evaluation of a model folder."""
