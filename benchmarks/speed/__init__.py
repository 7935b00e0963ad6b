"""Ours beside the programs that people use today, on the same weights, in turns, in one run.

    python -m benchmarks.speed            everything: some hours on two cores
    python -m benchmarks.speed --rows train-gpt2,train-pair      of all that is measured, these two
    python -m benchmarks.speed --short    tiny models once: shows that it works, its times mean nothing

Programs whose packages are not installed are left out with a line. These are not among the development packages:

    pip install timm x-transformers
    pip install openvino nncf             OpenVINO; NNCF makes its int8 and int4 forms
    pip install xllamacpp gguf            llama.cpp; gguf writes its files

    works       what is measured: rows, sizes, inputs, and which programs take part
    weights     the models, and what the engines read of them
    programs    one file a program: a function a row, which returns the work as a call
    steps       the step of training that all programs take
    worker      the process that a program runs in; rounds starts them and has them take turns
    to_openvino     the models as OpenVINO reads them
    busy        a process that keeps the cores busy beside the programs of the rows "busy-..."
    ceilings    what the machine can do at most; bounds turns it into the shortest time a work can take
    judge       whether all gave the same answer
    machine     what all this ran on
    report      the table on the terminal
    page        adds results to docs/benchmarks.json, and writes docs/benchmarks.md and what other pages quote of it

A new program is a file in ``programs`` and a line in ``works.COMPETITORS``.
"""
