"""Trains a character model of Tiny Shakespeare and samples from it.

    python examples/character_model.py input.txt [STEPS]

input.txt is Tiny Shakespeare, data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn, as it is or gzipped. 850
steps of 24 windows of 64 characters take a hundred seconds on two cores; the run folder "shakespeare" is overwritten.
To expect, after the run's own lines:

    parameters: 810,368
    validation loss 1.63, 2.36 bits a character

(the losses to the second digit), and a scene of sixteen lines, with speakers. nanoGPT's recipe for the model
gives 1.88 in the same time, as published; `--recipe nanogpt-shakespeare-cpu` has its settings. The same without Python:

    heedful train text-generation --train input.txt --recipe shakespeare-cpu --out shakespeare
    heedful predict shakespeare "ROMEO:" --max-new-tokens 400
"""

from __future__ import annotations

import sys

import heedful
from heedful.settings import RunSettings
from heedful.training import train


def main(text: str, steps: int | None = None) -> None:
    """Train on ``text``, print the loss, and write on from a name as the characters come."""
    settings = RunSettings(
        task="text-generation",
        train=(text,),
        out="shakespeare",
        recipe="shakespeare-cpu",
        max_steps=steps,
        overwrite=True,
    )
    result = train(settings)
    print(f"parameters: {result['parameters']:,}")
    loss, bits = result["metrics"]["loss"], result["metrics"]["bits_per_byte"]
    print(f"validation loss {loss:.2f}, {bits:.2f} bits a character\n")

    write = heedful.pipeline("text-generation", "shakespeare")
    for piece in write.stream("ROMEO:", max_new_tokens=400, temperature=0.8, seed=1):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else None)
