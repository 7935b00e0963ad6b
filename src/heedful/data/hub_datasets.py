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
KINDS = ((".parquet",), (".jsonl", ".ndjson"), (".csv", ".tsv"), (".txt",))  # the first that a data set has is read
# beginning of the name of a file or folder that belongs to a split
PART = re.compile(r"(train|valid|val|dev|test)(?:ing|ation)?(?![a-z])", re.IGNORECASE)
PARTS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}


def files(source: str, split: str | None = None) -> list[str]:
    """Returns the paths of the files of one split of a data set, sorted by name. They are downloaded once.

    ``source`` is ``hub:ORG/NAME[@REVISION][/PATH][:SPLIT]``. The split is the one in ``source``, else ``split``, else
    "train". ``REVISION`` is a branch, a tag or a commit ("/" in it is written %2F), ``PATH`` a folder or a file of the
    data set. Of several formats only one is read: Parquet, else JSON lines, tables or text. A file belongs to a split
    if its name, or that of a folder around it, begins with train, val, valid, validation, dev or test. If any file
    belongs to a split, the files without one are ignored.

    Raises `HeedfulError` for a missing data set or split, and if the data set has several subsets and ``PATH`` chooses
    none.
    """
    named, by_split = _parse(source), _files_by_split(source)
    requested = named["split"] or split or "train"
    if "" in by_split and named["split"] is None:
        return by_split[""]
    chosen = PARTS.get(requested.removesuffix("ation"), requested)
    if chosen not in by_split:
        present = " and ".join(name for name in by_split if name) or "no splits"
        raise HeedfulError(
            f"no split {requested!r} in {source}; it has {present}; name a split: {_without_split(source)}:SPLIT"
        )
    return by_split[chosen]


def hub_splits(source: str) -> tuple[str, ...]:
    """Returns the splits of a data set ("train", "valid", "test"); () if the source names one."""
    by_split = {} if _parse(source)["split"] else _files_by_split(source)
    return tuple(name for name in ("train", "valid", "test") if name in by_split)


def _parse(source: str) -> dict[str, str | None]:
    match = FORM.fullmatch(source)
    if match is None:
        raise HeedfulError(
            f"{source} is not the name of a data set; write hub:ORG/NAME, and optionally @REVISION, /PATH, :SPLIT"
        )
    return match.groupdict()


def _without_split(source: str) -> str:
    return PREFIX + source.removeprefix(PREFIX).partition(":")[0]


def _files_by_split(source: str) -> dict[str, list[str]]:
    """Returns split → files of a data set; the only key is "" if there are no splits."""
    root, relative = _download(_without_split(source))
    paths = [root / path for path in relative]
    split_of = {path: _split_of(path.relative_to(root)) for path in paths}
    if not any(split_of.values()):
        return {"": [str(path) for path in paths]}
    split_files = [path for path in paths if split_of[path]]
    subsets = {_subset_of(path.relative_to(root)) for path in split_files}
    if len(subsets) > 1:
        names = ", ".join(sorted(subsets)[:8])
        raise HeedfulError(
            f"several subsets ({names}) in {source}; choose one: {_without_split(source).rstrip('/')}/{min(subsets)}"
        )
    by_split = {name: [str(path) for path in split_files if split_of[path] == name] for name in PARTS.values()}
    return {name: files for name, files in by_split.items() if files}


@lru_cache(maxsize=8)  # a run gets all splits from one revision
def _download(source: str) -> tuple[Path, list[str]]:
    """Downloads a data set. Returns its folder and the relative paths of its files."""
    named = _parse(source)
    name, path = str(named["name"]), (named["path"] or "").strip("/")
    revision = unquote(named["revision"]) if named["revision"] else None
    for kind in KINDS:
        ends = [end + compressed for end in kind for compressed in ("", *COMPRESSED)]
        patterns = [f"{path}/*{end}" if path else f"*{end}" for end in ends]
        if extension(path) in kind:
            patterns = [path]
        try:
            root = downloads.fetched(name, patterns, revision, "dataset")
        except downloads.Refused as refused:
            raise HeedfulError(
                f"cannot get the data set {name}: the Hub {refused}; check the name, or download the files and give "
                "their folder"
            ) from None
        if (root / path).is_file():
            return (root / path).parent, [PurePath(path).name]
        below = files_below(str(root / path)) if (root / path).is_dir() else ()
        data_files = [file for file in below if extension(file) in kind]
        if data_files:
            return root / path, [str(Path(file).relative_to(root / path)) for file in data_files]
    formats = ", ".join(end for kind in KINDS for end in kind)
    raise HeedfulError(f"no readable file ({formats}) in {source}; choose another data set, or convert its files")


def _split_of(path: PurePath) -> str | None:
    """Returns the split in the name of a file, else in that of its nearest folder; None if no name has one."""
    heads = (PART.match(name) for name in reversed(path.parts))
    return next((PARTS[head[1].lower()] for head in heads if head), None)


def _subset_of(path: PurePath) -> str:
    """Returns the folders of a file, without those named after splits."""
    return "/".join(name for name in path.parent.parts if not PART.match(name))
