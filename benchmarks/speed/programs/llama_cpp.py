"""llama.cpp, through xllamacpp, on the GGUF files that ``heedful export`` writes.

xllamacpp gives Python the server alone, not ``llama_decode``; the server is called in this process, without HTTP:
prompts are lists of ids, the answer is the text of the tokens' names, which are their numbers.

Settings: ``threads`` threads for prompts and steps; a slot for each row of the batch, so that one step computes all of
them, and a context as long as the work; the cache of prompts is off; sampling is greedy (top_k 1, temperature 0) and
goes on after the end token. Keys and values are float32 under float32, and otherwise float16, the default. Under int8
and int4 llama.cpp rounds activations to eight bits, in blocks of 32.

The wheel of xllamacpp is compiled for AVX2: it uses neither AVX-512 nor AMX, which llama.cpp built on the machine
would (``xllamacpp.get_system_info()`` tells). Its threads wait for each other by spinning, many times a token: where
others keep the cores busy, a token takes ten times as long or more, unless OMP_WAIT_POLICY=PASSIVE is set for the run.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed.programs import Absent, Call, Ready, Setting, need
from benchmarks.speed.works import Work


def server(at: Setting, work: Work) -> Any:
    """Returns the server of the model with a slot for each row."""
    import xllamacpp

    options = xllamacpp.CommonParams()
    options.model.path = str(at.model / "model.gguf")
    options.cpuparams.n_threads = options.cpuparams_batch.n_threads = at.threads
    options.n_parallel, options.n_ctx = work.batch, work.batch * (work.longest + work.new)
    options.n_gpu_layers, options.fit_params = 0, False
    options.cache_prompt, options.cache_ram_mib = False, 0
    if at.precision == "float32":
        options.cache_type_k = options.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    options.verbosity = 1  # errors
    return xllamacpp.Server(options)


def generation(at: Setting) -> Ready:
    """Greedy tokens."""
    need("xllamacpp")
    if at.device != "cpu":
        raise Absent("measured on a CPU alone")

    def ready(work: Work) -> Call:
        running = server(at, work)
        asked: dict[str, Any] = {"prompt": work.ids().tolist(), "n_predict": work.new, "ignore_eos": True}
        asked |= {"samplers": ["top_k"], "top_k": 1, "temperature": 0.0, "cache_prompt": False}

        def call() -> list[list[int]]:
            answer = running.handle_completions(asked)
            if "choices" not in answer:
                raise RuntimeError(f"llama.cpp answers {answer}")
            rows = sorted(answer["choices"], key=lambda row: row["index"])
            return [[int(number) for number in row["text"].split("t")[1:]] for row in rows]

        return call

    return ready
