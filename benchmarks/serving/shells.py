"""Servers that people put around an engine, each in a process of its own.

    python -m benchmarks.serving.shells KIND MODEL DTYPE PORT SLOTS THREADS CONTEXT

    naive          transformers, one request at a time
    ctranslate2    batches of what waits
    llama_cpp      llama.cpp's own server of a GGUF file

The first two answer ``POST /v1/completions`` with ``"stream": true``, greedily, and nothing else: a thread computes,
asyncio writes. A batch of CTranslate2 runs until its longest answer ends; requests that come meanwhile wait.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

Send = Callable[[str | None], None]  # a part of an answer; None ends it
Job = tuple[str, int, Send]  # prompt, most tokens of the answer, and where its parts go


def naive(folder: str, dtype: str, threads: int) -> Callable[[list[Job]], None]:
    """Returns what computes one job with ``transformers``, as its documentation streams."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, TextIteratorStreamer

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def compute(jobs: list[Job]) -> None:
        for prompt, new, send in jobs:
            streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
            inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
            options = {**inputs, "streamer": streamer, "max_new_tokens": new, "do_sample": False}
            worker = threading.Thread(target=model.generate, kwargs=options)
            worker.start()
            for text in streamer:
                send(text)
            worker.join()
            send(None)

    return compute


def ctranslate2(folder: str, dtype: str, threads: int) -> Callable[[list[Job]], None]:
    """Returns what computes a batch of jobs with CTranslate2, after the conversion of the folder."""
    from tempfile import TemporaryDirectory

    import ctranslate2 as engine

    from heedful.export import export
    from heedful.tasks.text_generation import TextGeneration

    task = TextGeneration.load(folder)
    with TemporaryDirectory() as converted:
        export(folder, "ctranslate2", f"{converted}/model", quantization=dtype)
        generator = engine.Generator(f"{converted}/model", intra_threads=threads, compute_type=dtype)
    names = task.tokenizer.backend.id_to_token

    def compute(jobs: list[Job]) -> None:
        prompts = [[*task.before, *task.tokenizer.encode([prompt])[0]] for prompt, _, _ in jobs]
        ids: list[list[int]] = [[] for _ in jobs]
        shown = [task.tokenizer.decode([prompt])[0] for prompt in prompts]
        ended = [False] * len(jobs)

        def token(step: Any) -> bool:
            row = step.batch_id
            if ended[row]:
                return True
            if step.token_id not in (task.end, *task.begins):
                ids[row].append(step.token_id)
            text = task.tokenizer.decode([prompts[row] + ids[row]])[0]
            if not text.endswith("\ufffd"):
                jobs[row][2](text[len(shown[row]) :])
                shown[row] = text
            if step.is_last or step.token_id == task.end or len(ids[row]) >= jobs[row][1]:
                ended[row] = True
                jobs[row][2](None)
            return ended[row]

        pieces = [[names(number) for number in prompt] for prompt in prompts]
        longest = max(new for _, new, _ in jobs)
        options = {"sampling_topk": 1, "include_prompt_in_result": False, "callback": token}
        generator.generate_batch(pieces, max_length=longest, **options)
        for row, is_ended in enumerate(ended):
            if not is_ended:
                jobs[row][2](None)

    return compute


def serve(compute: Callable[[list[Job]], None], port: int, most: int) -> None:
    """Answers completions on a port; a thread computes at most ``most`` of those that wait at a time."""
    jobs: queue.Queue[Job] = queue.Queue()

    def work() -> None:
        while True:
            batch = [jobs.get()]
            while len(batch) < most and not jobs.empty():
                batch.append(jobs.get())
            compute(batch)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length, line = 0, await reader.readline()
        while (header := (await reader.readline()).strip().lower()) != b"":
            if header.startswith(b"content-length:"):
                length = int(header.split(b":")[1])
        body = json.loads(await reader.readexactly(length)) if length else {}
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        if line.startswith(b"POST"):
            parts: asyncio.Queue[str | None] = asyncio.Queue()
            loop = asyncio.get_running_loop()

            def send(part: str | None) -> None:
                loop.call_soon_threadsafe(parts.put_nowait, part)

            jobs.put((body["prompt"], body["max_tokens"], send))
            try:
                while (part := await parts.get()) is not None:
                    event = {"choices": [{"index": 0, "text": part}]}
                    writer.write(f"data: {json.dumps(event)}\n\n".encode())
                    await writer.drain()
                writer.write(b"data: [DONE]\n\n")
            except ConnectionError:
                pass  # the engine computes on, as such servers do
        writer.close()

    async def run() -> None:
        threading.Thread(target=work, daemon=True).start()
        server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=2048)
        await server.serve_forever()

    asyncio.run(run())


def llama_cpp(file: str, port: int, slots: int, threads: int, context: int) -> None:
    """Runs llama.cpp's server of a GGUF file until the process is ended."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(Path(file))
    options.port = port
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
    options.n_parallel, options.n_ctx, options.n_gpu_layers = slots, slots * context, 0
    options.fit_params, options.cache_ram_mib, options.verbosity = False, 0, 1
    server = xllamacpp.Server(options)
    assert server.listening_address.endswith(f":{port}")
    threading.Event().wait()


def main(kind: str, model: str, dtype: str, port: str, slots: str, threads: str, context: str) -> None:
    """Runs one server."""
    if kind == "llama_cpp":
        llama_cpp(model, int(port), int(slots), int(threads), int(context))
        return
    compute = {"naive": naive, "ctranslate2": ctranslate2}[kind](model, dtype, int(threads))
    serve(compute, int(port), 1 if kind == "naive" else int(slots))


if __name__ == "__main__":
    main(*sys.argv[1:])
