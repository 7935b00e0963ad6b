"""Data sets of the Hugging Face Hub: ``hub:ORG/NAME[@REVISION][/PATH][:SPLIT]`` in place of a file."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path, PurePath
from urllib.parse import unquote

from heedful.data.text_files import COMPRESSED, extension, files_below
from heedful.errors import HeedfulError
from heedful.util import downloads

PREFIX = "hub:"
FORM = re.compile(r"hub:(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.%-]+))?(/(?P<path>[^:]*))?(:(?P<split>\w+))?")
KINDS = ((".parquet",), (".jsonl", ".ndjson"), (".csv", ".tsv"), (".txt",))  # of a set that has several, the first
# how the name of a file or folder begins that belongs to a part
PART = re.compile(r"(train|valid|val|dev|test)(?:ing|ation)?(?![a-z])", re.IGNORECASE)
PARTS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}


def files(source: str, split: str | None = None) -> list[str]:
    """The files of a set, or of that part of it which the source names, or else `split` ("train" where neither does),
    in the order of their names; they are brought here once.

    ``REVISION`` is a branch, a tag or a commit ("/" in it written %2F), ``PATH`` a folder or a file of the set. It is
    read as Parquet, or where it has none as JSON lines, else as tables of cells, else as text. A file belongs to a part
    where its name, or that of a folder that it is in, begins with train, val, valid, validation, dev or test; where one
    does those that do not are left out.

    Raises `HeedfulError` for a set or a part that is not there, and for several sets in one.
    """
    told, found = _parse(source), _files_by_split(source)
    wanted = told["split"] or split or "train"
    if "" in found and told["split"] is None:
        return found[""]
    chosen = PARTS.get(wanted.removesuffix("ation"), wanted)
    if chosen not in found:
        there = " and ".join(part for part in found if part) or "no parts"
        raise HeedfulError(f"no part {wanted!r} in {source}; it has {there}; name one: {_without_split(source)}:PART")
    return found[chosen]


def splits(source: str) -> tuple[str, ...]:
    """Of "train", "valid" and "test" those that a set has; () where the source names one."""
    found = {} if _parse(source)["split"] else _files_by_split(source)
    return tuple(part for part in ("train", "valid", "test") if part in found)


def _parse(source: str) -> dict[str, str | None]:
    told = FORM.fullmatch(source)
    if told is None:
        raise HeedfulError(f"{source} names no data set; write hub:ORG/NAME, with @REVISION, /PATH or :SPLIT behind it")
    return told.groupdict()


def _without_split(source: str) -> str:
    """Without its part."""
    return PREFIX + source.removeprefix(PREFIX).partition(":")[0]


def _files_by_split(source: str) -> dict[str, list[str]]:
    """Part → its files; "" where there are no parts."""
    root, inner = _downloaded(_without_split(source))
    paths = [root / path for path in inner]
    told = {path: _split_of(path.relative_to(root)) for path in paths}
    if not any(told.values()):
        return {"": [str(path) for path in paths]}
    kept = [path for path in paths if told[path]]
    sets = {_subset_of(path.relative_to(root)) for path in kept}
    if len(sets) > 1:
        names = ", ".join(sorted(sets)[:8])
        raise HeedfulError(
            f"several sets ({names}) in {source}; choose one: {_without_split(source).rstrip('/')}/{min(sets)}"
        )
    there = {part: [str(path) for path in kept if told[path] == part] for part in PARTS.values()}
    return {part: found for part, found in there.items() if found}


@lru_cache(maxsize=8)  # so that a run has all parts from one revision
def _downloaded(source: str) -> tuple[Path, list[str]]:
    """Where a set's files lie, and their paths from there."""
    told = _parse(source)
    name, path = str(told["name"]), (told["path"] or "").strip("/")
    revision = unquote(told["revision"]) if told["revision"] else None
    for kind in KINDS:
        ends = [end + packed for end in kind for packed in ("", *COMPRESSED)]
        patterns = [f"{path}/*{end}" if path else f"*{end}" for end in ends]
        if extension(path) in kind:
            patterns = [path]
        try:
            root = downloads.fetched(name, patterns, revision, "dataset")
        except downloads.Refused as refused:
            raise HeedfulError(
                f"the Hub {refused}, asked for the data set {name}; check the name, or download it first"
            ) from None
        if (root / path).is_file():
            return (root / path).parent, [PurePath(path).name]
        there = files_below(str(root / path)) if (root / path).is_dir() else ()
        found = [one for one in there if extension(one) in kind]
        if found:
            return root / path, [str(Path(one).relative_to(root / path)) for one in found]
    forms = ", ".join(end for kind in KINDS for end in kind)
    raise HeedfulError(f"no file that can be read ({forms}) in {source}; choose another, or download it by hand")


def _split_of(path: PurePath) -> str | None:
    """The part that a file's own name tells, or that of the nearest folder."""
    heads = (PART.match(name) for name in reversed(path.parts))
    return next((PARTS[head[1].lower()] for head in heads if head), None)


def _subset_of(path: PurePath) -> str:
    """The folders that a file lies in, but for those that are named by parts."""
    return "/".join(name for name in path.parent.parts if not PART.match(name))
