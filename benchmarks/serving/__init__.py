"""The speed of HTTP servers of one language model: ours beside others, over OpenAI's API.

    python -m benchmarks.serving MODEL            a folder with a tokenizer, such as stories15M: some minutes a server
    python -m benchmarks.serving --short          a tiny random model, seconds
    ... --servers ours,llama_cpp --dtype int8 --clients 1,8,32 --seconds 30 --long 900 --requests 10000 --out s.json

Each server runs in a process of its own, one after another, with the threads of ``--threads``. Clients ask in a closed
loop: each sends its next request when the last is answered. Prompts have 16 to 128 tokens and answers at most 32 to
128, drawn from one seed, greedily, streamed. What is printed for each server and number of clients:

    tokens/s        tokens of answers a second, counted with the model's tokenizer
    first, p50 p99  milliseconds from the request to the first token
    gap, p99        milliseconds between two tokens of an answer
    RSS             memory of the server's processes at the end, MiB

"own batch" is ``generate`` with as many rows of the mean lengths, compiled too, in the benchmark's own process.

``--long`` adds a load during which one more client sends a prompt of so many tokens again and again. Then the overload,
an open loop: ten times the requests a second that the server has completed, at random times for ``--overload`` seconds,
a tenth of them left by their clients in the middle; sent must be complete + refused + cancelled. Their times count from
when they were due, so that a delay of these clients is not hidden; how late they were sent is printed.
``--requests`` adds so many short requests, half of them not streamed and a third of them left by their clients, with
the memory after each tenth.

    servers     one class a server: how it is started; without its package it is left out, with a line
    load        the clients, over plain sockets
    shells      the servers that others put around an engine: a naive one, and CTranslate2 in batches
"""
