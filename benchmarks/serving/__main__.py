"""Measures the servers: see the package."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.serving.load import Answer, Request, Target, closed_loops, figures, open_loop
from benchmarks.serving.servers import DTYPES, SERVERS, Absent, Setting, memory
from benchmarks.speed import machine, page, results
from benchmarks.speed.works import SERVING

HEAD = f"{'server':14}{'clients':>8}{'tokens/s':>10}{'first p50':>11}{'p99':>8}{'gap p99':>9}{'RSS MiB':>9}"


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("model", nargs="?", help="a folder of a language model with a tokenizer")
    parser.add_argument("--short", action="store_true", help="a tiny random model and a second a load")
    parser.add_argument("--servers", default=",".join(SERVERS), help="names, with commas")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of the weights")
    parser.add_argument("--clients", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each load")
    parser.add_argument("--overload", type=float, default=60.0, help="seconds of the overload; 0 leaves it out")
    parser.add_argument("--long", type=int, default=0, help="tokens of a prompt that comes again and again meanwhile")
    parser.add_argument("--requests", type=int, default=0, help="number of mixed requests, after the loads")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="how often each server is started and loaded, in turns")
    parser.add_argument("--out", help="a JSON file for the figures of each round")
    parser.add_argument("--docs", type=Path, help="the page of speeds, whose rows of this model are written")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server that runs is stopped too
    if given.short:
        given.clients, given.seconds, given.overload = "2", 1.0, 1.0
    elif given.model is None:
        parser.error("name a model's folder, or give --short")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(given.model) if given.model else tiny(Path(made) / "tiny")
        clients = [int(number) for number in given.clients.split(",")]
        # The overload is ten times as many requests as are answered: long answers make them few enough for one client.
        sizes = (range(4, 9), range(32, 49)) if given.short else (range(16, 129), range(32, 129))
        began = time.perf_counter()
        names = given.servers.split(",")
        rounds = [
            measure(folder, Path(made), names[:: -1 if turn % 2 else 1], clients, given, sizes)
            for turn in range(given.rounds)
        ]
        minutes = (time.perf_counter() - began) / 60
    if given.out:
        Path(given.out).write_text(json.dumps(rounds, indent=1), encoding="utf-8")
    if given.docs is not None:
        settings = {"rounds": given.rounds, "threads": given.threads, "device": "cpu", "short": given.short}
        settings["seconds"] = given.seconds
        told = served(folder.name, rounds, names, clients, given.dtype)
        told["runs"] = [{"date": date.today().isoformat(), "machine": machine.described(), "settings": settings}]
        told["runs"][0] |= {"ceilings": {}, "minutes": minutes}
        print("written: " + ", ".join(map(str, page.add(told, given.docs))))


def served(
    model: str, rounds: Sequence[dict[str, Any]], names: Sequence[str], clients: Sequence[int], dtype: str
) -> dict[str, Any]:
    """Returns the works of the page: a number of clients each, a token of all of them together as its unit."""
    pairs = [(name, one[name]) for one in rounds for name in names]
    left_out = {f"{name} {dtype}": told["absent"] for name, told in pairs if "absent" in told}
    works = []
    for number in clients:
        loads = {name: [one[name].get(str(number), {}) for one in rounds] for name in names}
        for name, of in loads.items():
            if not all(load.get("tokens_per_second") and load.get("first_p99") for load in of):
                left_out.setdefault(f"{name} {dtype}", f"no answer was complete, of {number} clients")
        present = [name for name in names if f"{name} {dtype}" not in left_out]
        ms = {name: [1e3 / load["tokens_per_second"] for load in loads[name]] for name in present}
        found = [
            {"name": f"{name} {dtype}", "program": name, "precision": dtype, "way": "", "ms": median(taken)}
            | {"rounds_ms": taken, "share": None, "apart": None, "agrees": None}
            | {"first_p99": median(load["first_p99"] for load in loads[name])}
            | ({"ours_faster": results.ratio(taken, ms["ours"])} if name != "ours" and "ours" in ms else {})
            for name, taken in ms.items()
        ]
        kind = "" if dtype == "float32" else f" in {dtype}"
        work = {"name": f"{model} served{kind}, {number} client{'s' * (number > 1)}", "row": SERVING}
        work |= {"model": model, "batch": number}
        works.append({"run": 0, "work": work, "unit": "ms a token", "bound_ms": {}, "results": found})
    return {"format": results.FORMAT, "works": works, "left_out": {SERVING: left_out}}


def measure(
    folder: Path, made: Path, names: Sequence[str], clients: Sequence[int], given: Any, sizes: tuple[range, range]
) -> dict[str, Any]:
    """Returns the figures of each server, and prints a line for each load."""
    from heedful.tasks.text_generation import TextGeneration

    task = TextGeneration.load(folder)
    asked = requests(task, sizes)
    context = max(sizes[0].stop + sizes[1].stop, given.long + 8)
    at = Setting(folder, made, max(clients), given.threads, given.dtype, min(context, task.context or context))

    def count(text: str) -> int:
        return len(task.tokenizer.encode([text])[0])

    told: dict[str, Any] = {}
    print(HEAD)
    if "ours" in names:
        told["static"] = {str(number): {"tokens_per_second": static(at, number, sizes)} for number in clients}
        for number in clients:
            print(f"{'own batch':14}{number:>8}{told['static'][str(number)]['tokens_per_second']:>10.1f}", flush=True)
    for name in names:
        server = SERVERS[name]
        try:
            with server.running(at) as (url, process):
                target = Target(url, server.model(at), server.chat)
                asyncio.run(closed_loops(target, asked, 1, min(1.0, given.seconds)))  # warm
                rows = told[name] = {"process": process}
                for number in clients:
                    rows[str(number)] = load(target, asked, number, given.seconds, count, process)
                    print(line(name, number, rows[str(number)]), flush=True)
                if given.long:
                    long = Request(task.tokenizer.decode([[words(task)[0]] * given.long])[0], 8)
                    rows["long"] = load(target, asked, max(clients), given.seconds, count, process, long)
                    print(line(f"{name}, long", max(clients), rows["long"]), flush=True)
                if given.overload:
                    full = rows[str(max(clients))]
                    rate = 10 * full["complete"] / full["seconds"]
                    rows["overload"] = overload(target, asked, rate, given.overload, count, process)
                    rows["overload"]["idle"] = server.is_idle(url)
                    print(line(f"{name} x10", max(clients), rows["overload"]), overloaded(rows["overload"]), flush=True)
                if given.requests:
                    rows["mixed"] = mixed(target, asked, max(clients), given.requests, process)
                    rows["mixed"]["idle"] = server.is_idle(url)
                    print(f"{name}, mixed: {rows['mixed']}", flush=True)
        except Absent as error:
            told[name] = {"absent": str(error)}
            print(f"{name}: left out: {error}", flush=True)
    return told


def load(
    target: Target,
    asked: Sequence[Request],
    clients: int,
    seconds: float,
    count: Any,
    process: int,
    long: Request | None = None,
) -> dict[str, Any]:
    """Returns the figures of a load of closed loops; the last answers may end after its seconds.

    Another client asks for ``long`` again and again; its answers do not count.
    """

    async def run() -> list[Answer]:
        loops = [closed_loops(target, asked, clients, seconds)]
        if long is not None:
            loops.append(closed_loops(target, [long], 1, seconds))
        return (await asyncio.gather(*loops))[0]

    return measured(run(), count, process)


def overload(
    target: Target, asked: Sequence[Request], rate: float, seconds: float, count: Any, process: int
) -> dict[str, Any]:
    """Returns the figures of ``rate`` requests a second, of which a tenth is left by its client."""
    return {"rate": rate} | measured(open_loop(target, asked, rate, seconds, 0.1), count, process)


def measured(answers: Coroutine[Any, Any, list[Answer]], count: Any, process: int) -> dict[str, Any]:
    """Returns the figures of the answers to a load, with its seconds and the memory of the server."""
    began, before = time.perf_counter(), memory(process)
    given = asyncio.run(answers)
    seconds = time.perf_counter() - began
    return figures(given, seconds, count) | {"seconds": seconds, "memory": memory(process), "memory_before": before}


def static(at: Setting, rows: int, sizes: tuple[range, range]) -> float:
    """Returns the tokens a second of one batch, without a server: prompts and answers of the mean lengths."""
    import torch

    import heedful

    torch.set_num_threads(at.threads)
    model = heedful.pipeline(None, at.folder, dtype=at.dtype).model
    length, new = (sum(size) // len(size) for size in sizes)
    ids = torch.arange(rows * length).view(rows, length) % 97 + 3
    model.generate(ids, max_new_tokens=2, min_new_tokens=2)  # warm
    began = time.perf_counter()
    for _ in range(3):
        model.generate(ids, max_new_tokens=new, min_new_tokens=new)
    return 3 * rows * new / (time.perf_counter() - began)


def mixed(target: Target, asked: Sequence[Request], clients: int, number: int, process: int) -> dict[str, Any]:
    """Returns what became of ``number`` short requests, and the memory in ten equal parts of them.

    A third of the clients hang up; half of the answers are streamed.
    """
    short = [replace(request, new=1 + request.new // 8) for request in asked]
    kinds: Counter[str] = Counter()
    memories = [memory(process)]
    while sum(kinds.values()) < number:
        part = asyncio.run(closed_loops(target, short, clients, 600.0, 1 / 3, 0.5, most=-(-number // 10)))
        kinds.update(answer.kind for answer in part)
        memories.append(memory(process))
    return {**kinds, "sent": sum(kinds.values()), "memory": [round(one) for one in memories]}


def words(task: Any) -> list[int]:
    """Returns the tokens of ASCII letters."""
    return [number for number in range(task.tokenizer.vocab_size) if word(task, number)]


def requests(task: Any, sizes: tuple[range, range]) -> list[Request]:
    """Returns 64 prompts of words that the tokenizer has, with lengths of prompts and answers from one seed."""
    chance = random.Random(0)
    numbers = words(task)
    made = []
    for _ in range(64):
        ids = chance.choices(numbers, k=chance.choice(sizes[0]))
        made.append(Request(task.tokenizer.decode([ids])[0], chance.choice(sizes[1])))
    return made


def word(task: Any, number: int) -> bool:
    """Returns True for a token of ASCII letters."""
    text = task.tokenizer.decode([[number]])[0].strip()
    return text.isascii() and text.isalpha()


def tiny(folder: Path) -> Path:
    """Writes a random GPT-2 of 64 numbers a token, with a tokenizer."""
    import heedful
    from heedful import presets
    from heedful.text import Tokenizer

    tokenizer = Tokenizer.train(["some words of a small text, and others of another"] * 3, size=300, template="none")
    config = presets.gpt2(64, 2, 4, vocab=tokenizer.vocab_size, length=64)
    heedful.create(config, seed=0).save_pretrained(folder)
    tokenizer.save(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 2, "bos_token_id": 2}', encoding="utf-8")
    return folder


def line(name: str, clients: int, row: dict[str, Any]) -> str:
    """Returns a load as a line of the table."""
    shown = [f"{row[key]:.0f}" if row[key] is not None else "-" for key in ("first_p50", "first_p99", "gap_p99")]
    numbers = f"{row['tokens_per_second']:>10.1f}{shown[0]:>11}{shown[1]:>8}{shown[2]:>9}{row['memory']:>9.0f}"
    return f"{name:14}{clients:>8}{numbers}"


def overloaded(row: dict[str, Any]) -> str:
    """Returns what became of the requests of an overload."""
    refusal = "-" if row["refusal_p99"] is None else f"{row['refusal_p50']:.0f}, {row['refusal_p99']:.0f} ms"
    kinds = ", ".join(f"{row[kind]} {kind}" for kind in ("complete", "refused", "cancelled", "cut", "failed"))
    grown = row["memory"] - row["memory_before"]
    sent = f"{row['sent']} sent, {row['rate']:.0f} a second (p99 late by {row['late_p99']:.0f} ms)"
    return f" {sent} = {kinds}; refusals p50, p99 {refusal}; {grown:+.0f} MiB; idle: {row['idle']}"


if __name__ == "__main__":
    main()
