"""The shape of the code, held by reading it: who imports whom, how much branches, what is called by name."""

from __future__ import annotations

import ast
import dataclasses
import io
import os
import re
import subprocess
import sys
import tokenize
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

# a room may import rooms of a lower number, and of its own; text and data are leaves, used from the upper rooms only
ROOMS = {
    "errors": 0,
    "util": 0,
    "config": 1,
    "presets": 1,
    "recipes": 1,
    "settings": 1,
    "layers": 2,
    "cache": 3,
    "stack": 3,
    "heads": 3,
    "models": 4,
    "adapters": 4,
    "checkpoints": 5,
    "generation": 5,
    "inference": 5,
    "inspection": 5,
    "tasks": 6,
    "training": 6,
    "evaluation": 6,
    "views": 7,
    "answering": 6,
    "auditing": 6,
    "verification": 7,
    "export": 7,
    "serving": 7,
    "demos": 8,
    "doctor": 8,
    "looking": 8,
    "watching": 8,
    "cli": 9,
    "__main__": 9,
}
LEAVES = {"text", "data"}
CORE = ("config", "presets", "layers", "cache", "stack", "heads", "models")
RUNTIME = ("layers", "cache", "stack", "heads", "models")
DOORS = {
    ("models.base", "generate"),
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
    if importer == imported:
        return True
    if importer in LEAVES:
        return imported in ("errors", "util")
    if imported in LEAVES:
        return ROOMS[importer] > ROOMS["models"]
    return ROOMS[importer] >= ROOMS[imported]


def test_every_room_has_its_place() -> None:
    assert {room(name) for name in sources()} - {""} <= ROOMS.keys() | LEAVES


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


def test_probes_import_only_torch() -> None:
    tree = sources().get("layers.probe")
    if tree is None:
        pytest.skip("layers/probe.py is absent")
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    ours = {name for name in names if name.split(".")[0] not in sys.stdlib_module_names}
    assert {name.split(".")[0] for name in ours} == {"torch"}


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


# ------------------------------------------------------------------------------------------------------------- branches


class Code:
    """The package's functions, and which of them a function calls."""

    def __init__(self) -> None:
        self.function: dict[tuple[str, str], ast.AST] = {}
        self.base: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.name: dict[str, dict[str, tuple[str, str]]] = {}
        for module, tree in sources().items():
            names = self.name[module] = {}
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "heedful":
                    for alias in node.names:
                        owner = (node.module or "").removeprefix("heedful").removeprefix(".")
                        names[alias.asname or alias.name] = (owner, alias.name)
            for node in tree.body:
                if isinstance(node, ast.FunctionDef):
                    names[node.name] = (module, node.name)
                    self.function[module, node.name] = node
                elif isinstance(node, ast.ClassDef):
                    names[node.name] = (module, node.name)
                    self.base[module, node.name] = []
                    for part in node.body:
                        if isinstance(part, ast.FunctionDef):
                            self.function[module, f"{node.name}.{part.name}"] = part
            for node in tree.body:
                if isinstance(node, ast.ClassDef):
                    found = [names[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in names]
                    self.base[module, node.name] = found

    def method(self, owner: tuple[str, str], name: str) -> tuple[str, str] | None:
        """Where a class, or the nearest of its bases, defines ``name``."""
        key = (owner[0], f"{owner[1]}.{name}")
        if key in self.function:
            return key
        found = (self.method(base, name) for base in self.base.get(owner, []))
        return next((key for key in found if key), None)

    def used(self, key: tuple[str, str]) -> Iterator[tuple[str, str] | None]:
        """The functions that the function ``key`` names: of the package, or methods of itself."""
        module, owner = key[0], key[1].rpartition(".")[0]
        for node in ast.walk(self.function[key]):
            if isinstance(node, ast.Name) and node.id in self.name[module]:
                target = self.name[module][node.id]
                yield target if target in self.function else self.method(target, "__init__")
            elif isinstance(node, ast.Attribute) and owner:
                text = ast.unparse(node.value)
                if text in ("self", "cls"):
                    yield self.method((module, owner), node.attr)
                elif text == "super()":
                    found = (self.method(base, node.attr) for base in self.base[module, owner])
                    yield next((k for k in found if k), None)

    def reached(self, key: tuple[str, str]) -> set[tuple[str, str]]:
        """``key`` and all that it calls, and they in turn, each once."""
        found, waiting = set(), [key]
        while waiting:
            key = waiting.pop()
            if key not in found:
                found.add(key)
                waiting += [helper for helper in self.used(key) if helper in self.function]
        return found


def branches(node: ast.AST) -> int:
    """If, ternary, while, case, each and/or, each condition of a comprehension."""
    count = 0
    for part in ast.walk(node):
        count += isinstance(part, ast.If | ast.IfExp | ast.While | ast.match_case)
        count += len(part.values) - 1 if isinstance(part, ast.BoolOp) else 0
        count += len(part.ifs) if isinstance(part, ast.comprehension) else 0
    return count


def steps() -> Iterator[tuple[str, str]]:
    """What runs when a model runs: every forward; every method of a part that is handed over (a cache, a place, a
    scheme of positions) and not made for building; every function kept in a table or an attribute.
    """
    code = Code()
    built = {"__init__", "of", "select", "begin", "count", "device", "dtype", "generate", "save_pretrained"}
    for module, name in code.function:
        if room(module) in RUNTIME and "." in name and name.split(".")[1] not in built:
            yield module, name
    for module, tree in rooms(*RUNTIME).items():
        held = [part for part in tree.body if isinstance(part, ast.Assign | ast.AnnAssign) and part.value]
        held += [node for node in functions(tree) if node.name == "__init__"]
        for part in held:
            for node in ast.walk(part):
                key = code.name[module].get(node.id) if isinstance(node, ast.Name) else None
                calls = {call.func for call in ast.walk(part) if isinstance(call, ast.Call)}
                if key in code.function and node not in calls:
                    yield key
    yield "layers.attention", "explicit_attention"


def test_branches_are_counted() -> None:
    """The counter itself: one of each kind, and one of a helper's."""
    text = "def f(x):\n if x and x or x: pass\n y = 1 if x else 2\n while x: pass\n return [a for a in x if a if a]"
    assert branches(ast.parse(text)) == 7
    assert branches(ast.parse("match x:\n case 1: pass\n case _: pass")) == 2
    code = Code()
    assert ("layers.mask", "padding_mask") in code.reached(("cache", "Seen.mask"))
    assert ("layers.attention", "Attention.project") in code.reached(("layers.attention", "Attention.forward"))
    assert ("models.decoder", "Decoder.hidden") in code.reached(("models.decoder", "Decoder.forward"))


@pytest.mark.parametrize("step", sorted(set(steps())), ids=".".join)
def test_at_most_three_branches(step: tuple[str, str]) -> None:
    code = Code()
    counts = {".".join(key): branches(code.function[key]) for key in code.reached(step)}
    assert sum(counts.values()) <= 3, {name: count for name, count in counts.items() if count}


def test_the_steps_are_found() -> None:
    names = {name for _, name in steps()}
    assert {"Attention.forward", "Stack.forward", "Block.forward", "Residual.forward", "Decoder.forward"} <= names
    assert {"Cache.see", "Growing.update", "Biased.join", "Rotary.prepare", "Learned.embed"} <= names
    assert {"fused_attention", "everything", "earlier", "recent", "_mean"} <= names


# ---------------------------------------------------------------------------------------------------- configs and names


def dataclasses_of(*modules: object) -> list[type]:
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value)
    ]


@pytest.mark.parametrize("made", dataclasses_of(heedful.config, heedful.settings), ids=lambda c: c.__name__)
def test_at_most_30_fields_frozen_and_by_keyword(made: type) -> None:
    assert len(dataclasses.fields(made)) <= 30
    assert made.__dataclass_params__.frozen
    assert made.__module__ != "heedful.config" or all(f.kw_only for f in dataclasses.fields(made))


def vocabulary() -> set[str]:
    """The words of the closed lists: they say what a thing is, not what it is called."""
    hints = (hint for made in dataclasses_of(heedful.config) for hint in get_type_hints(made).values())
    return {word for hint in hints if get_origin(hint) is Literal for word in get_args(hint)}


FAMILIES = {
    *("bart", "beit", "bert", "bloom", "deberta", "deit", "distilbert", "electra", "falcon", "gemma", "gpt", "gptj"),
    *("ijepa",),
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


# ------------------------------------------------------------------------------------------------- size and annotations


def code_lines(path: Path) -> int:
    """Lines that hold code: not blank, not a comment, not a docstring."""
    text = path.read_text(encoding="utf-8")
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def test_the_core_is_small(capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in CORE]
    count = sum(map(code_lines, files))
    with capsys.disabled():
        print(f"\nthe core: {count} lines of code in {len(files)} files")
    assert 500 < count <= 1800


@pytest.mark.parametrize("module", sorted(rooms(*CORE)))
def test_fully_annotated(module: str) -> None:
    bare = []
    for node in functions(sources()[module]):
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        bare += [f"{node.name}({a.arg})" for a in given if a and a.arg not in ("self", "cls") and a.annotation is None]
        bare += [f"{node.name} → ?" for _ in [0] if node.returns is None]
    assert bare == []


def test_nothing_in_the_core_makes_half_precision() -> None:
    """float16 on a CPU without it is hundreds of times slower: only a caller may ask for it."""
    for module, tree in rooms(*CORE).items():
        for node in ast.walk(tree):
            assert getattr(node, "attr", getattr(node, "id", "")) not in ("float16", "half"), f"heedful.{module}"
            assert not (isinstance(node, ast.Constant) and node.value in ("float16", "fp16")), f"heedful.{module}"


# --------------------------------------------------------------------------------------------------------------- README


def tree_of(text: str) -> dict[str, str]:
    """Path below src/heedful → gloss, from the fenced block that shows src/heedful/; folders end in a slash."""
    block = next((b for b in re.findall(r"```[^\n]*\n(.*?)```", text, re.S) if "src/heedful/" in b), None)
    assert block is not None, "README.md shows no tree of src/heedful/"
    found: dict[str, str] = {}
    open_folders: list[tuple[int, str]] = []
    for line in block.splitlines():
        match = re.match(r"(?P<indent>[\s│├└─|`+-]*)(?P<path>[\w./-]+)(?:\s\s+(?P<gloss>.*))?$", line)
        if match is None:
            continue
        indent, path = len(match["indent"]), match["path"]
        open_folders = [(i, p) for i, p in open_folders if i < indent]
        full = (open_folders[-1][1] if open_folders else "") + path
        if path.endswith("/"):
            open_folders.append((indent, full))
        if full.startswith("src/heedful/"):
            found[full.removeprefix("src/heedful/")] = (match["gloss"] or "").strip()
    return {path: gloss for path, gloss in found.items() if path}


def test_the_tree_is_read() -> None:
    text = "```\nsrc/heedful/     all\n  a.py    the a\n  b/     the b\n    c.py   the c\ntests/   t\n```"
    assert tree_of(text) == {"a.py": "the a", "b/": "the b", "b/c.py": "the c"}
    text = "```text\nREADME.md   this\nsrc/heedful/\n├── a.py   the a\n├── b/   the b\n│   └── c.py   the c\n```"
    assert tree_of(text) == {"a.py": "the a", "b/": "the b", "b/c.py": "the c"}


def test_readme_shows_the_real_tree() -> None:
    """Every file with its gloss; ``__init__`` and ``__main__`` may stay unsaid."""
    if not (ROOT / "README.md").exists():
        pytest.skip("README.md is absent")
    shown = tree_of((ROOT / "README.md").read_text(encoding="utf-8"))
    real = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    files = {path for path in shown if not path.endswith("/")}
    assert {path for path in files if not (PACKAGE / path).exists()} == set()
    assert {path for path in real - files if not Path(path).name.startswith("__")} == set()
    assert {path for path in shown if path.endswith("/") and not (PACKAGE / path).is_dir()} == set()
    assert {path for path in files if not shown[path]} == set()
