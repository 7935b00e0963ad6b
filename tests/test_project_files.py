"""Files that other programs read agree with the project: workflows, citation, site, forms of issues."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
COMMIT = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")


def text_of(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, their environment's folder left out."""
    match = re.search(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    assert match is not None, target
    return [line.strip().removeprefix("$(BIN)/") for line in match[1].splitlines()]


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(text_of(path))["jobs"].values()
    return [step for job in jobs for step in job.get("steps", [])]


def test_the_addresses_are_those_of_the_project() -> None:
    """Of the repository and the site, wherever they are named."""
    urls = PROJECT["urls"]
    assert urls["Homepage"] == urls["Source"]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.*")]
    text = "\n".join(map(text_of, [*pages, "CITATION.cff", "docs/conf.py"]))
    named = set(re.findall(r"https://github\.com/(?=[\w-]*heedful)[\w.-]+/[\w-]+", text))
    assert named == {urls["Source"]}
    assert set(re.findall(r"https://[\w-]*heedful[\w-]*\.readthedocs\.io", text)) == {urls["Documentation"]}
    assert all(urls[name].startswith(urls["Source"] + "/") for name in ("Changelog", "Issues"))


def test_the_citation_is_of_this_project() -> None:
    """It has no version, which stands in one place."""
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]
    assert (citation["repository-code"], citation["url"]) == (
        PROJECT["urls"]["Source"],
        PROJECT["urls"]["Documentation"],
    )
    assert not {"version", "date-released"} & set(citation)


# ----------------------------------------------------------------------------------------------------------- workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_and_may_do_little(path: Path) -> None:
    text = text_of(path)
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert [use for use in used if not COMMIT.fullmatch(use) and not (ROOT / use).is_file()] == []
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        publishes = any("pypi-publish" in step.get("uses", "") for step in job.get("steps", []))
        assert job.get("permissions") == ({"id-token": "write"} if publishes else None), name
        assert bool(job.get("environment")) == publishes, name
        checkouts = [step for step in job.get("steps", []) if "checkout" in step.get("uses", "")]
        assert all(step["with"]["persist-credentials"] is False for step in checkouts), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_workflows_exist(path: Path) -> None:
    commands = [line for step in steps(path) for line in step.get("run", "").splitlines()]
    for line in commands:
        words = shlex.split(line)
        if words[0] == "make":
            assert recipe(words[1])
        for word in words:
            if word.startswith(("@", ".ci/")):
                assert (ROOT / word.removeprefix("@")).is_file()
    used = {" ".join(line.split()[:2]) for line in commands} & {
        "make test",
        "make lint",
        "make docs",
        "python .ci/package.py",
    }
    assert len(used) == (path.name != "release.yml")


def test_the_versions_that_are_tested() -> None:
    """The lowest of Python and torch, and every Python of the classifiers, on Linux."""
    jobs = yaml.safe_load(text_of(".github/workflows/tests.yml"))["jobs"]
    suite, portable = jobs["suite"]["strategy"]["matrix"], jobs["portable"]["strategy"]["matrix"]
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert [entry["python"] for entry in suite["include"]] == classified
    assert set(classified) <= set(portable["python"])
    assert f">={classified[0]}" == PROJECT["requires-python"]
    (floor,) = [name.removeprefix("torch>=") for name in PROJECT["dependencies"] if name.startswith("torch>=")]
    for matrix in (suite, portable):
        oldest = [entry for entry in matrix["include"] if entry["python"] == classified[0]]
        assert {entry["torch"] for entry in oldest} == {f"=={floor}.0"}


def test_the_portable_selection_exists() -> None:
    """Each file once, and none that starts a fork, which Windows has not."""
    names = text_of(".ci/portable-tests").split()
    assert len(set(names)) == len(names) > 20
    for name in names:
        assert "fresh_process" not in text_of(name), name


def test_other_checkers_run_what_make_runs() -> None:
    site = yaml.safe_load(text_of(".readthedocs.yaml"))["build"]["jobs"]["build"]["html"]
    assert site == [recipe("docs")[0].replace(" build/site", " $READTHEDOCS_OUTPUT/html")]
    (repository,) = yaml.safe_load(text_of(".pre-commit-config.yaml"))["repos"]
    entries = [
        hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude") for hook in repository["hooks"]
    ]
    assert entries == [command.removesuffix(" .") for command in recipe("lint")]


# --------------------------------------------------------------------------------------------------- forms and the site


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_of_issues_are_whole(path: Path) -> None:
    """By GitHub's rules: a name and a description, a label for each field, names that differ, a required answer."""
    form = yaml.safe_load(text_of(path))
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert all(field["attributes"]["label"] for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_llms_txt_has_every_page(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    index, address = text_of("docs/index.md"), "https://example.org/"
    text = import_module("parts.llms").llms_text(index, address)
    assert text.startswith("# Heedful\n\n> Heedful is the classic Transformer ")
    assert "toctree" not in text
    linked = re.findall(r"\]\(https://example\.org/([\w/]+)\.html", text)
    assert len(linked) == text.count("](")
    listed = [name for table in re.findall(r"```\{toctree\}(.*?)```", index, re.S) for name in table.split()]
    assert set(linked) == {name for name in listed if not name.startswith(":")} - {"1", "Understand", "Use", "Develop"}
    for name in linked:
        assert (ROOT / "docs" / f"{name}.md").is_file() or name == "transformer/index"
