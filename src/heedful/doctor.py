"""``heedful doctor``: versions, device, kernels, threads, memory and disk of this machine, and missing packages.

Imports only Python's library at first, so that it also works if a requirement is broken: ``python -m heedful.doctor``
runs without the command line's packages.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from heedful import __version__
from heedful.util import machine
from heedful.util.downloads import PATIENCE, ServerCheck

REQUIRED = {  # lowest versions, as in pyproject.toml
    "torch": "2.11",
    "safetensors": "0.5",
    "tokenizers": "0.21",
    "huggingface_hub": "0.30",
    "numpy": "1.26",
    "rich": "13.7",
    "cyclopts": "5.3",
    "sacrebleu": "2.4",
    "scikit-learn": "1.6",
    "jinja2": "3.1.6",
    "tomli-w": "1.0",
    "pillow": "10.3",
    "babel": "2.14",
}
EXTRAS = {
    "data": ("pyarrow", "zstandard"),
    "sentencepiece": ("sentencepiece", "protobuf"),
    "faiss": ("faiss-cpu",),
    "figures": ("typst",),
    "serve": ("fastapi", "uvicorn", "prometheus-client"),
    "onnx": ("onnx", "onnxscript"),
    "ctranslate2": ("ctranslate2", "transformers"),
    "gguf": ("gguf",),
    "openvino": ("openvino", "nncf"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
}
PURPOSE = {
    "data": "Parquet and .zst files",
    "sentencepiece": "tokenizers in .model and .spm files",
    "faiss": "nearest --engine faiss",
    "figures": "figures as .png and .pdf",
    "serve": "heedful serve",
    "onnx": "export --to onnx",
    "ctranslate2": "export --to ctranslate2",
    "gguf": "export --to gguf",
    "openvino": "export --to openvino",
    "tensorboard": "--training.report tensorboard",
    "wandb": "--training.report wandb",
    "trackio": "--training.report trackio",
}
VARIABLES = (  # environment variables that change speed or the location of files
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "MKL_NUM_THREADS", "KMP_AFFINITY", "ATEN_CPU_CAPABILITY"),
    *("CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ENABLE_MPS_FALLBACK", "TOKENIZERS_PARALLELISM"),
    *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE"),
)
INSTRUCTIONS = ("avx2", "avx512_f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8", "sve", "bf16")
LITTLE_DISK = 2 << 30  # bytes of a run with a model of 100 M parameters and its checkpoints
BUSY = 0.5  # runnable processes per core from which on training is slowed down


def report(folder: str | os.PathLike[str] = ".") -> dict[str, Any]:
    """Returns the report as one JSON-ready mapping; a section that fails is ``{"error": its reason}``.

    Keys: ``ok`` (no problem found), ``problems`` (each with ``"what"`` and ``"remedy"``), ``notes`` (sentences),
    ``versions``, ``packages`` and ``extras`` (version by name, None if missing), ``torch``, ``device``, ``kernels``,
    ``threads``, ``memory`` and ``disk`` (bytes), ``hub``, ``environment``.

    Args:
        folder: folder for runs, whose free disk space is checked.
    """
    facts: dict[str, Any] = {
        name: _guarded(section)
        for name, section in {
            "versions": _versions,
            "packages": lambda: {name: _version(name) for name in REQUIRED},
            "extras": lambda: {extra: {name: _version(name) for name in names} for extra, names in EXTRAS.items()},
            "torch": _torch,
            "device": _device,
            "kernels": _kernels,
            "threads": _threads,
            "memory": _memory,
            "disk": lambda: _disk(Path(folder)),
            "hub": _hub,
            "environment": _environment,
        }.items()
    }
    problems = list(_problems(facts))
    return {"ok": not problems, "problems": problems, "notes": list(_notes(facts)), **facts}


def _environment() -> dict[str, str]:
    """Returns the variables of ``VARIABLES`` that are set, and those that set options of heedful."""
    ours = sorted(name for name in os.environ if name.startswith("HEEDFUL_"))
    return {name: os.environ[name] for name in (*VARIABLES, *ours) if name in os.environ}


def report_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields the report as text: a line a topic, then extras, notes and problems with their remedies."""
    versions = facts["versions"]
    yield _line("heedful", versions, "{heedful}, Python {python}, {system}")
    yield _line("torch", facts["torch"], "{version}, built for {build}")
    yield _line("device", facts["device"], "{default}: {name}")
    for device in facts["device"].get("others", ()):
        yield f"{'':<13}{device}"
    yield _line("kernels", facts["kernels"], "{capability}, {libraries}; bfloat16 {bfloat16}, float16 {float16}")
    if facts["kernels"].get("instructions"):
        yield f"{'':<13}{', '.join(facts['kernels']['instructions'])}"
    if facts["kernels"].get("attention"):
        yield f"{'':<13}attention: {facts['kernels']['attention']}"
    yield _line("threads", facts["threads"], "{torch} of {cores} cores; load {load}")
    yield _line("memory", _in_gb(facts["memory"]), "{available} available of {total}")
    yield _line("disk", _in_gb(facts["disk"]), "{free} free of {total} in {folder}")
    yield _line("hub", facts["hub"], "{mode}; cache in {cache}")
    yield from (f"{'environment':<13}{name}={value}" for name, value in facts["environment"].items())
    yield ""
    yield "packages     " + ", ".join(f"{name} {version or 'MISSING'}" for name, version in facts["packages"].items())
    for name, versions in facts["extras"].items():
        state = f"missing: pip install 'heedful[{name}]'" if None in versions.values() else "installed"
        yield f"{'extra':<13}{name:<14} {PURPOSE[name]:<36} {state}"
    yield ""
    yield from (f"note: {note}" for note in facts["notes"])
    yield from (f"problem: {problem['what']}; {problem['remedy']}" for problem in facts["problems"])
    yield "no problem found" if facts["ok"] else f"problems found: {len(facts['problems'])}"


def _guarded(section: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Returns the section's dictionary, or ``{"error": reason}`` if it fails."""
    try:
        return section()
    except Exception as error:  # a broken installation may raise anything
        return {"error": _reason(error)}


def _reason(error: BaseException) -> str:
    first = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first}"[:300].rstrip(": ")


def _versions() -> dict[str, Any]:
    return {
        "heedful": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "executable": sys.executable,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except Exception:  # absent, or its metadata are damaged
        return None


def _torch() -> dict[str, Any]:
    import torch

    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU"
    if getattr(torch.version, "hip", None):
        build = f"ROCm {torch.version.hip}"
    return {"version": torch.__version__, "build": build, "debug": torch.version.debug}


def _device() -> dict[str, Any]:
    import torch

    processor = f"{machine.processor() or platform.machine()}, {machine.cores()} cores"
    devices: list[tuple[str, str]] = []
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            card = torch.cuda.get_device_properties(number)
            devices.append(
                (f"cuda:{number}", f"{card.name}, {_gb(card.total_memory)}, compute {card.major}.{card.minor}")
            )
    if torch.backends.mps.is_available():
        devices.append(("mps", "the graphics processor of this Mac"))
    devices.append(("cpu", processor))
    default, name = devices[0]
    return {"default": default, "name": name, "others": [f"{device}: {name}" for device, name in devices[1:]]}


def _kernels() -> dict[str, Any]:
    import torch

    from heedful.kernels.onednn_linear import emulates_bfloat16

    mkldnn, cpu = torch.backends.mkldnn.is_available(), torch.device("cpu")
    half = getattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False) if mkldnn else lambda: False
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    libraries = {
        "MKL": torch.backends.mkl.is_available(),
        "oneDNN": mkldnn,
        "OpenMP": torch.backends.openmp.is_available(),
    }
    q = torch.zeros(1, 1, 2, 8)
    choice = torch._fused_sdp_choice(q, q, q) if hasattr(torch, "_fused_sdp_choice") else None
    attention = "" if choice is None else f"{'explicit' if choice == 0 else 'fused'} on the CPU"
    if torch.cuda.is_available():
        kinds = ("flash", "mem_efficient", "cudnn", "math")
        usable = [kind for kind in kinds if getattr(torch.backends.cuda, f"{kind}_sdp_enabled")()]
        attention += f"; {', '.join(usable)} on the GPU"
    return {
        "capability": torch.backends.cpu.get_cpu_capability(),
        "libraries": ", ".join(name if available else f"no {name}" for name, available in libraries.items()),
        "instructions": [name for name in INSTRUCTIONS if capabilities.get(name)],
        "bfloat16": "emulated" if emulates_bfloat16(cpu) else "native",
        "float16": "native" if half() else "emulated and slow",
        "attention": attention,
    }


def _threads() -> dict[str, Any]:
    import torch

    load = machine.mean_load()
    return {
        "torch": torch.get_num_threads(),
        "cores": machine.cores(),
        "load": None if load is None else round(load, 2),
    }


def _memory() -> dict[str, Any]:
    return {"total": machine.total_memory(), "available": machine.available_memory()}


def _disk(folder: Path) -> dict[str, Any]:
    folder = folder.expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())  # the folder may not exist yet
    usage = shutil.disk_usage(existing)
    return {"folder": str(folder), "total": usage.total, "free": usage.free, "writable": os.access(existing, os.W_OK)}


def _hub() -> dict[str, Any]:
    from huggingface_hub import constants

    place, offline = constants.ENDPOINT, bool(constants.HF_HUB_OFFLINE)
    reachable = None if offline else ServerCheck(place, PATIENCE).answers(PATIENCE)
    modes = {
        None: "offline: nothing is downloaded",
        True: f"online: {place} answers",
        False: f"{place} does not answer: folders and earlier downloads work, nothing else is downloaded",
    }
    return {
        "offline": offline,
        "reachable": reachable,
        "mode": modes[reachable],
        "cache": str(constants.HF_HUB_CACHE),
    }


def _problems(facts: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yields problems that keep a command from working."""
    packages: Mapping[str, str | None] = facts["packages"]
    for name, lowest in REQUIRED.items():
        version = packages.get(name)
        line = f"pip install '{name}>={lowest}'"
        if version is None:
            yield {"what": f"{name} is not installed", "remedy": line}
        elif _numbers(version) < _numbers(lowest):
            yield {"what": f"{name} {version} is older than {lowest}", "remedy": line}
    if "error" in facts["torch"] and packages.get("torch") is not None:
        yield {
            "what": f"torch is installed but cannot be imported ({facts['torch']['error']})",
            "remedy": "install it again: pip install --force-reinstall torch",
        }
    for name in ("device", "kernels", "threads", "hub"):
        if "error" in facts[name] and "error" not in facts["torch"]:
            yield {
                "what": f"{name} cannot be determined ({facts[name]['error']})",
                "remedy": "fix the error in brackets",
            }
    if "free" in facts["disk"] and facts["disk"]["free"] < LITTLE_DISK:
        free = _gb(facts["disk"]["free"])
        yield {"what": f"only {free} of disk space is free in {facts['disk']['folder']}", "remedy": "free some space"}
    if facts["disk"].get("writable") is False:
        yield {"what": f"{facts['disk']['folder']} is not writable", "remedy": "run heedful in another folder"}


def _notes(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yields notes on what makes commands slow."""
    if shutil.which("nvidia-smi") and facts["torch"].get("build") == "the CPU":
        yield (
            "there is an NVIDIA driver, but torch is built for the CPU; pytorch.org shows how to install it for the GPU"
        )
    load, cores = facts["threads"].get("load"), facts["threads"].get("cores")
    if load is not None and cores and load > BUSY * cores:
        yield f"other programs keep this machine busy (load {load} on {cores} cores); training takes longer"
    if facts["kernels"].get("bfloat16") == "emulated" and facts["device"].get("default") == "cpu":
        yield "this processor has no instructions for bfloat16; train and predict in float32"
    if not facts["memory"].get("available") and facts["memory"].get("total") is None:
        yield "the system does not report its memory"


def _numbers(version: str) -> tuple[int, ...]:
    """Returns a version as numbers: (2, 13, 0) of "2.13.0+cpu"."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _line(topic: str, section: Mapping[str, Any], form: str) -> str:
    if "error" in section:
        return f"{topic:<13}unknown ({section['error']})"
    shown = {name: "unknown" if value is None else value for name, value in section.items()}
    return f"{topic:<13}{form.format_map(shown)}"


def _in_gb(section: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _gb(value) if type(value) is int else value for name, value in section.items()}


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


if __name__ == "__main__":
    facts = report()
    print(json.dumps(facts, indent=2) if "--json" in sys.argv[1:] else "\n".join(report_lines(facts)))
    sys.exit(0 if facts["ok"] else 1)
