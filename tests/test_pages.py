"""Names of modules, files and parts of tasks on the pages are those of the tree."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from heedful import renamed
from heedful.tasks.task import Task
from test_architecture import CORE, ROOMS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "heedful"
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
RENAMED = re.compile(r"^### Renamed\n.*\Z", re.M | re.S)  # names of before


def text_of(page: Path) -> str:
    return RENAMED.sub("", page.read_text(encoding="utf-8"))


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
        if name not in ("heedful.json",):
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


def test_the_changelog_has_every_old_module_name() -> None:
    table = RENAMED.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert table is not None
    rows = dict(re.findall(r"^\| `heedful\.([\w.]+)` \| `heedful\.([\w.]+)` \|$", table[0], re.M))
    assert rows == renamed.MODULES | {old: new.replace(":", ".") for old, new in renamed.ATTRIBUTES.items()}


def targets(node: ast.stmt) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
