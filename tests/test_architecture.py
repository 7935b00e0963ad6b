"""Import direction, no torch at start, and no behaviour that depends on a model's name: checked on the source."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

import heedful.config
import heedful.presets
import heedful.settings

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "heedful"

# a room imports rooms that stand before it, and itself
ROOMS = [
    *("errors", "util", "config", "presets", "recipes", "settings", "text", "data", "metrics"),
    *("layers", "cache", "stack", "heads", "models", "adapters", "kernels", "optimize_model", "pretrained"),
    *("generation", "inspection"),
    *("tasks", "inference", "evaluation", "training", "audit", "verify", "export", "views", "demos", "serving"),
    *("api", "sklearn", "registration", "doctor", "cli", "__main__"),
]
CORE = ("config", "presets", "layers", "cache", "stack", "heads", "models")
RUNTIME = ("layers", "cache", "stack", "heads", "models")
DOORS = {
    ("models.base", "generate"),
    ("models.base", "from_pretrained"),
    ("models.base", "save_pretrained"),
    ("models.base", "push_to_hub"),
}  # methods that call up, when called


@cache
def sources() -> dict[str, ast.Module]:
    """Every module by its dotted name below heedful ("" is the package itself)."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def room(module: str) -> str:
    return module.split(".")[0]


def rooms(*names: str) -> dict[str, ast.Module]:
    return {name: tree for name, tree in sources().items() if room(name) in names}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def within(tree: ast.AST, name: str) -> set[ast.AST]:
    """All nodes of the functions called ``name``."""
    return {child for node in functions(tree) if node.name == name for child in ast.walk(node)}


def strings(tree: ast.Module) -> Iterator[ast.Constant]:
    """String constants that are no docstring and no part of an error's sentence."""
    spoken = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in spoken:
            yield node


# -------------------------------------------------------------------------------------------------------------- imports


def homes() -> dict[str, str]:
    """Where the package's public names live."""
    for node in ast.walk(sources()[""]):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "_HOMES":
            return ast.literal_eval(node.value)
    raise AssertionError("heedful/__init__.py has no table _HOMES")


def resolve(name: str, attribute: str) -> str:
    """The module that ``from heedful.name import attribute`` reaches, below heedful."""
    inner = f"{name}.{attribute}".strip(".")
    if inner in sources():
        return inner
    return homes().get(attribute, "heedful.").partition(":")[0].removeprefix("heedful.") if name == "" else name


def imports(module: str, tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Each import of the package's own modules, wherever it stands: written out, reached as ``heedful.name``, or named
    in a string, as lazy ones are.
    """
    package = module if (PACKAGE / module.replace(".", "/")).is_dir() else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name.split(".")[0] == "heedful" and name.name != "heedful":
                    yield node, name.name.removeprefix("heedful.")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join(["heedful", *above, *([base] if base else [])])
            if base.split(".")[0] == "heedful":
                for name in node.names:
                    yield node, resolve(base.removeprefix("heedful").removeprefix("."), name.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "heedful":
            yield node, resolve("", node.attr)
    for node in strings(tree):  # what import_module is given: a whole name, or the beginning of one
        match = re.fullmatch(r"heedful\.([\w.]+?)(:\w+|\.)?", node.value)
        if match and match[1] in sources():
            yield node, match[1]


def may_import(importer: str, imported: str) -> bool:
    return importer == imported or ROOMS.index(importer) > ROOMS.index(imported)


def test_every_room_has_its_place() -> None:
    assert {room(name) for name in sources()} - {""} <= {*ROOMS}


def test_imports_point_one_way() -> None:
    wrong = []
    for module, tree in sources().items():
        doors = {node for owner, name in DOORS if owner == module for node in within(tree, name)}
        for node, imported in imports(module, tree):
            if module != "" and imported and node not in doors and not may_import(room(module), room(imported)):
                wrong.append(f"heedful.{module}:{node.lineno} imports heedful.{imported}")
    assert wrong == []


def test_nothing_imports_the_command_line_or_the_server() -> None:
    users = {
        (room(module), room(imported)) for module, tree in sources().items() for _, imported in imports(module, tree)
    }
    assert {user for user, used in users if used == "cli"} <= {"cli", "__main__"}
    assert {user for user, used in users if used == "serving"} <= {"cli", "serving"}


def test_the_loop_and_generation_know_no_model_class() -> None:
    for module, tree in rooms("training", "generation").items():
        if room(module) == "training" and module != "training.loop":
            continue
        used = {imported for _, imported in imports(module, tree)}
        assert not {name for name in used if room(name) in ("models", "stack", "heads")}, f"heedful.{module}"


def test_no_circles() -> None:
    """Between modules, of the imports that run when a module is loaded."""
    edges = {}
    for module, tree in sources().items():
        inside = {child for node in functions(tree) for child in ast.walk(node)}
        checking = {
            child
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for child in ast.walk(node)
        }
        edges[module] = {
            to
            for node, to in imports(module, tree)
            if isinstance(node, ast.Import | ast.ImportFrom) and node not in inside | checking and to != module
        }

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, "a circle of imports: " + " → ".join((*path, module))
        if module not in done:
            for imported in edges.get(module, ()):
                walk(imported, (*path, module))
            done.add(module)

    done: set[str] = set()
    for module in edges:
        walk(module, ())


@pytest.mark.parametrize("module", ["", ".config", ".errors", ".presets", ".settings"])
def test_no_torch(module: str) -> None:
    code = f"import sys, heedful{module}; sys.exit('torch' in sys.modules)"
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_public_names_are_where_the_package_says() -> None:
    for name in heedful.__all__:
        assert getattr(heedful, name) is not None
    with pytest.raises(AttributeError, match="nothing"):
        heedful.nothing  # noqa: B018
    assert set(heedful.__all__) <= set(dir(heedful))


# ---------------------------------------------------------------------------------------------------- configs and names


def dataclasses_of(*modules: object) -> list[type]:
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    ]


@pytest.mark.parametrize("made", dataclasses_of(heedful.config, heedful.settings), ids=lambda c: c.__name__)
def test_frozen_and_by_keyword(made: type) -> None:
    assert made.__dataclass_params__.frozen
    assert made.__module__ != "heedful.config" or all(f.kw_only for f in dataclasses.fields(made))


def vocabulary() -> set[str]:
    """The words of the closed lists: they say what a thing is, not what it is called."""
    hints = (hint for made in dataclasses_of(heedful.config) for hint in get_type_hints(made).values())
    return {word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)}


FAMILIES = {
    *("bart", "beit", "bert", "bloom", "deberta", "deit", "distilbert", "electra", "falcon", "gemma", "gpt", "gptj"),
    *("albert", "camembert", "ijepa"),
    *("llama", "marian", "mbart", "minilm", "mistral", "mpnet", "mpt", "opt", "opus", "pegasus", "phi", "qwen"),
    *("roberta", "smollm", "stories", "swin", "t", "tinyllama", "vit", "whisper", "xlm", "xlnet"),  # t: t5
}


def test_no_name_is_sniffed() -> None:
    """No preset or family is named in what runs, and nothing asks what a class or a configuration is called."""
    families = FAMILIES | {re.match(r"[a-z]*", name.lower()).group() for name in heedful.presets.names()}
    families -= {"transformer"}
    wrong = []
    for module, tree in rooms(*RUNTIME).items():
        for node in strings(tree):
            tokens = {re.sub(r"\d+$", "", token) for token in re.split(r"[^a-z0-9]+", node.value.lower())}
            if node.value not in vocabulary() and (tokens | {node.value}) & (families | {*heedful.presets.names()}):
                wrong.append(f"heedful.{module}:{node.lineno} names {node.value!r}")
        for node in ast.walk(tree):
            asked = ()
            if isinstance(node, ast.Compare):
                asked = (node.left, *node.comparators)
            elif isinstance(node, ast.Match):
                asked = (node.subject,)
            elif isinstance(node, ast.Subscript):
                asked = (node.slice,)
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("startswith", "endswith"):
                asked = (node.func,)
            for part in asked:
                for inner in ast.walk(part):
                    if getattr(inner, "attr", "") in ("name", "kind", "model_type", "__name__", "__qualname__"):
                        wrong.append(f"heedful.{module}:{node.lineno} asks for a name: {ast.unparse(node)}")
    assert wrong == []


def test_nothing_in_the_core_makes_half_precision() -> None:
    """float16 on a CPU without it is hundreds of times slower: only a caller may ask for it."""
    for module, tree in rooms(*CORE).items():
        for node in ast.walk(tree):
            assert getattr(node, "attr", getattr(node, "id", "")) not in ("float16", "half"), f"heedful.{module}"
            assert not (isinstance(node, ast.Constant) and node.value in ("float16", "fp16")), f"heedful.{module}"
