"""Speed on one GPU, in three resumable parts of at most nine minutes, with random weights and without a network.

    python -m benchmarks.gpu --out gpu.json --text input.txt        all three parts, 25 minutes at most
    python -m benchmarks.gpu --out gpu.json --part 2                one part; what the file already has is not repeated
    python -m benchmarks.gpu --out dry.json --device cpu --short    tiny models on a CPU: shows that every row works

    rows        what is measured: a line a row, its part, its time limit and its sizes
    worker      the process that measures; it is started anew after a row that failed or left memory behind
    measure     timing, peak memory and the machine's ceilings
    training    rows that train: GPT-2, and the character model to its validation loss
    inference   rows that decode, encode, classify images and translate
    nanogpt     a GPT as nanoGPT describes it, to compare with

The JSON is replaced after each row. A row that fails is recorded with its error in one line. A row that runs out of
its part's time is not recorded, and the next call measures it.
"""
