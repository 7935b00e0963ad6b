"""Names of modules, files and parts of tasks on the pages are those of the tree."""

from __future__ import annotations

import ast
import inspect
import io
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import heedful
from heedful import inspection, layers, registration
from heedful.tasks.task import Task
from test_architecture import CORE, ROOMS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "heedful"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")] + sorted(
    [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "tasks").glob("*.md")]
)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NO_OBJECTS = {"heedful.json", "heedful.run"}  # a file, a logger


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def section(heading: str) -> str:
    match = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", CONTRIBUTING, re.M | re.S)
    assert match is not None, heading
    return match[1]


def named(path: str) -> Any:
    """The object of a dotted path below heedful."""
    value: Any = import_module("heedful")
    for part in path.split(".")[1:]:
        value = getattr(value, part, None) or import_module(f"{value.__name__}.{part}")
    return value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_exist(page: Path) -> None:
    tests = [path.relative_to(ROOT / "tests").as_posix() for path in (ROOT / "tests").rglob("*.py")]
    for name in set(re.findall(r"`([\w/.-]+/[\w.-]*\.(?:py|md|svg))`", text_of(page))):
        own = (ROOT / name).is_file() or (PACKAGE / name).is_file() or (PACKAGE / "pretrained" / name).is_file()
        assert own or name in tests or name.startswith("runs/"), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_exist(page: Path) -> None:
    for name in set(re.findall(r"`(heedful(?:\.[A-Za-z_]\w*)+)\b(?!\.json)[^`]*`", text_of(page))):
        if name not in NO_OBJECTS:
            assert named(name) is not None, name


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/decisions.md"])
def test_classes_exist(name: str) -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    classes = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z]\w*)?)[`.(]", text_of(ROOT / name)))
    missing = {name for name in classes if not re.search(rf"\b{name}\b", source)}
    assert missing <= {"BertForMaskedLM", "DistributedDataParallel"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text_of(page)):
        if not target.startswith("transformer/"):  # the tour, which is made when the site is built
            assert (page.parent / target).is_file(), target


# ------------------------------------------------------------------------------------------------------- the reference

LISTED = re.findall(r"^   (heedful[\w.]+)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
USED = [page for page in PAGES if page.name not in ("CHANGELOG.md", "CONTRIBUTING.md", "decisions.md", "api.md")]


def imported(path: str) -> Any:
    """The object of a dotted path, where a function may have the name of its module."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError:
        return named(path)


def test_the_reference_has_every_public_name_once() -> None:
    assert len(LISTED) == len(set(LISTED))
    reference = [imported(path) for path in LISTED]
    assert len(reference) == len(set(map(id, reference)))  # nor under two names
    for path, value in zip(LISTED, reference, strict=True):
        assert inspect.getdoc(value), path
    public = {f"heedful.{name}": getattr(heedful, name) for name in heedful.__all__}
    for room in (layers, inspection):
        public |= {f"{room.__name__}.{name}": getattr(room, name) for name in room.__all__}
    public |= {
        f"heedful.registration.{name}": value for name, value in vars(registration).items() if name.endswith("Factory")
    }
    assert [path for path, value in public.items() if id(value) not in set(map(id, reference))] == []


@pytest.mark.parametrize("path", LISTED)
def test_a_public_name_is_imported_from_a_package(path: str) -> None:
    assert path.count(".") <= 2 or path.startswith("heedful.metrics."), "import it in the package's __init__.py"
    module, _, name = path.rpartition(".")
    assert name in getattr(import_module(module), "__all__", [name])


def is_ours(part: Any) -> bool:
    """False for a default with a docstring of PyTorch's, and for methods that scikit-learn adds."""
    return part is not torch.nn.functional.dropout and not type(part).__module__.startswith("sklearn")


def test_docstrings_of_the_reference_are_valid_markup() -> None:
    """The site has them as reStructuredText, after Sphinx has read their sections (Args, Returns, ...)."""
    core, roles, nodes = (pytest.importorskip(f"docutils.{name}") for name in ("core", "parsers.rst.roles", "nodes"))
    napoleon = pytest.importorskip("sphinx.ext.napoleon")
    config = napoleon.Config(napoleon_use_ivar=True)
    for name in ("class", "func", "mod", "meth"):
        roles.register_generic_role(name, nodes.literal)
    settings = {"report_level": 2, "halt_level": 5, "warning_stream": io.StringIO()}
    for path in LISTED:
        value = imported(path)
        members = vars(value).items() if isinstance(value, type) else ()
        own = [(name, part) for name, part in members if not name.startswith("_") and is_ours(part)]
        for name, part in [("", value), *own]:
            text = napoleon.GoogleDocstring(inspect.getdoc(part) or "", config, what="function")
            core.publish_doctree(str(text), settings_overrides=settings)
            assert settings["warning_stream"].getvalue() == "", f"{path}.{name}"


@pytest.mark.parametrize("page", USED, ids=lambda page: page.name)
def test_the_reference_has_what_the_pages_call(page: Path) -> None:
    """Functions and classes, in sentences and in code; a method is in the reference if its class is."""
    text = text_of(page)
    paths = set(re.findall(r"(?<![\w/.-])heedful(?:\.[A-Za-z_]\w*)+", text)) - NO_OBJECTS
    for module, names in re.findall(r"^from (heedful[\w.]*) import (\([\w, \n]+|[\w, ]+)", text, re.M):
        paths |= {f"{module}.{name}" for name in re.findall(r"\w+", names)}
    reference = {id(imported(path)) for path in LISTED}
    for path in paths:
        parts = path.split(".")
        objects = [imported(".".join(parts[:end])) for end in range(2, len(parts) + 1)]
        assert isinstance(objects[-1], ModuleType) or any(id(value) in reference for value in objects), path


@pytest.mark.parametrize("page", [page for page in USED if page.parent == ROOT / "docs"], ids=lambda page: page.name)
def test_the_reference_is_linked(page: Path) -> None:
    """From every page but those of results; a link to a section names a heading of the reference."""
    headings = re.findall(r"^## (.*)$", (ROOT / "docs" / "api.md").read_text(encoding="utf-8"), re.M)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    links = re.findall(r"\]\(api\.md(?:#([\w-]+))?\)", text_of(page))
    assert links or page.name in ("results.md", "benchmarks.md", "processes.md")
    assert set(filter(None, links)) <= anchors


# ----------------------------------------------------------------------------------------------------------- the tables


def test_the_map_has_every_room_in_the_order_of_imports() -> None:
    rooms = re.search(r"\| room \| holds \|\n\|---\|---\|\n(.*?)\n\n", section("The map"), re.S)
    assert rooms is not None
    listed = [name for row in rooms[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert set(listed) == set(ROOMS) - {"__main__"}
    assert listed == sorted(listed, key=ROOMS.index)


def test_the_map_has_every_file_of_the_core() -> None:
    paths = [path for room in CORE for path in (PACKAGE / room).glob("*.py") if path.name != "__init__.py"]
    paths += [PACKAGE / f"{room}.py" for room in CORE if (PACKAGE / f"{room}.py").is_file()]
    listed = re.findall(r"`([\w/]+\.py)`", section("The map").partition("| file | holds |")[2].partition("\n\n")[0])
    assert sorted(listed) == sorted(path.relative_to(PACKAGE).as_posix() for path in paths)


def test_the_parts_of_a_task_are_those_of_the_class() -> None:
    table = section("Add a task").partition("|---|---|---|\n")[2].partition("\n\n")[0]
    listed = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    annotated = {name for owner in Task.__mro__ for name in getattr(owner, "__annotations__", {})}
    assert len(listed) > 20
    assert listed <= {*dir(Task), *annotated}
    assert set(Task.__abstractmethods__) <= listed


def test_the_tables_that_are_extended_are_where_the_page_says() -> None:
    tables = re.findall(r"`([A-Z_]+)`\s*\(`([\w/]+\.py)`\)", CONTRIBUTING)
    assert {name for name, _ in tables} >= {"TASKS", "METHODS", "MODEL_TYPES"}
    for name, path in tables:
        file = next(place for place in (ROOT / path, PACKAGE / path, PACKAGE / "pretrained" / path) if place.is_file())
        tree = ast.parse(file.read_text(encoding="utf-8"))
        bound = {target.id for node in tree.body for target in targets(node) if isinstance(target, ast.Name)}
        assert name in bound, f"{name} in {path}"


def targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
