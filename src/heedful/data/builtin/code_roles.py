"""`code-roles`: tokens of functions of Python's standard library, each name tagged with its role."""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from typing import Any

from heedful.data.builtin import stdlib
from heedful.errors import HeedfulError

MOST = {"test": 300, "valid": 200, "train": 1200}  # functions of a part; each is made before those behind it
LEAST, LONGEST = 12, 90  # tokens of a function
LINES = 30  # of a function, its docstring counted: of longer ones the tokens need not be counted
EACH = 40  # functions of a module at most, so that no module is a part by itself
LARGE = 60_000  # letters of a module from which on it is left out: it takes long to read
OUTSIDE = "O"
TEXT = 16  # letters of a string from which on it is cut short: what it says has no part in any role
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
# What binds names in ways of its own, or is cut into other tokens by another Python: no function with these is taken.
OTHERS = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom, ast.Global),
    *(ast.Nonlocal, ast.Match, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def rows(argument: str | None, part: str) -> list[dict[str, Any]]:
    """The functions of one part, "train", "valid" or "test": ``words``, their tokens, as many ``tags``, and ``module``.

    Every name has a role, all else is ``O``:

    - ``parameter`` and ``variable``: a parameter, and a name that the function binds otherwise, where it is bound and
      wherever it is used;
    - ``attribute`` and ``method``: what stands after a dot, ``method`` where it is called; and the name of a function
      that stands in a class;
    - ``keyword``: the name of an argument in a call;
    - ``module``, ``class`` and ``function``: a name of the module's own, or of Python's, that is one; ``global`` is any
      other of these names (constants, and what was imported from elsewhere).

    A function has 12 to 90 tokens, without decorators, docstring and comments; long strings are cut to ``"…"``. Those
    that hold a function, a class, an import, a comprehension or a formatted string are left out. The parts are those of
    `stdlib`, whole modules; no two rows of all parts have the same tokens. Another Python has other functions.

    Raises `HeedfulError` for an argument, which this set has none of, and where Python came without its source.
    """
    if argument:
        raise HeedfulError(f"unknown argument {argument!r}, in builtin:code-roles/{argument}; write builtin:code-roles")
    return [dict(row) for row in _every()[part]]


@cache
def _every() -> dict[str, list[dict[str, Any]]]:
    met: set[tuple[str, ...]] = set()
    return {part: list(islice(_new(part, met), most)) for part, most in MOST.items()}


def _new(part: str, met: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """The functions of a part that were not ``met`` before, module by module in the order of a hash."""
    small = (row for row in stdlib.rows(None, part) if len(row["text"]) < LARGE)
    for row in sorted(small, key=lambda row: blake2b(row["text"].encode(), digest_size=16).digest()):
        for words, tags in islice(functions(row["text"]), EACH):
            if words not in met:
                met.add(words)
                yield {"words": words, "tags": tags, "module": row["module"]}


def functions(source: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The tokens of each function of a module that can be taken, and their roles.

    >>> words, tags = next(functions("def area(self, unit=1):\\n    return self.wide * self.high() * unit\\n"))
    >>> [(word, tag) for word, tag in zip(words, tags) if tag != "O"][:3]
    [('area', 'function'), ('self', 'parameter'), ('unit', 'parameter')]
    """
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    known = {**_builtin(), **dict(_bound(tree.body))}
    for body, kind in _bodies(tree):
        for node in body:
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < LINES:
                text = "".join(lines[node.lineno - 1 : node.end_lineno])
                every = [*_inside(node)]
                whole = text.isascii() and not any(isinstance(one, OTHERS) for one in every)
                found = _tagged(text, node, _roles(node, every, known), kind) if whole else []
                if LEAST <= len(found) <= LONGEST:
                    words, tags = zip(*found, strict=True)
                    yield words, tags


def _bodies(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], str]]:
    """The statements of the module and of its classes, and what a function is there."""
    yield tree.body, "function"
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.body, "method"


def _inside(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """Returns the nodes of the function without itself and its decorators."""
    for part in (node.args, *node.body, *([node.returns] if node.returns else [])):
        yield from ast.walk(part)


def _builtin() -> dict[str, str]:
    own = vars(builtins).items()
    return {name: "class" if isinstance(one, type) else "function" if callable(one) else "global" for name, one in own}


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """The names that statements at the top of a module bind, and their roles."""
    for node in body:
        match node:
            case ast.Import():
                yield from (((one.asname or one.name).partition(".")[0], "module") for one in node.names)
            case ast.ImportFrom():
                yield from ((one.asname or one.name, "global") for one in node.names)
            case ast.ClassDef():
                yield node.name, "class"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, "function"
            case ast.If() | ast.Try() | ast.For() | ast.While() | ast.With():
                inner = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.stmt | ast.ExceptHandler)]
                for one in inner:
                    yield from _bound(one.body if isinstance(one, ast.ExceptHandler) else [one])
            case _:
                stored = (one for one in ast.walk(node) if isinstance(one, ast.Name))
                yield from ((one.id, "global") for one in stored if isinstance(one.ctx, ast.Store))


def _roles(
    node: ast.FunctionDef, every: Sequence[ast.AST], known: Mapping[str, str]
) -> dict[tuple[int, int] | str, str | None]:
    """The role of the name at each (line, column), and of each name that the function binds itself; None where it
    cannot be told.
    """
    own = {one.arg: "parameter" for one in every if isinstance(one, ast.arg)}
    for one in every:
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            own.setdefault(one.id, "variable")
        elif isinstance(one, ast.ExceptHandler) and one.name:
            own.setdefault(one.name, "variable")
    arguments = node.args
    before = [*arguments.defaults, *arguments.kw_defaults, node.returns]  # what is read before the function is entered
    before += [one.annotation for one in every if isinstance(one, ast.arg)]
    outer = {id(one) for part in before if part is not None for one in ast.walk(part)}
    called = {id(one.func) for one in every if isinstance(one, ast.Call)}
    roles: dict[tuple[int, int] | str, str | None] = {}
    roles.update(own)
    for one in every:
        match one:
            case ast.Name():
                bound = None if id(one) in outer else own.get(one.id)
                roles[one.lineno, one.col_offset] = bound or known.get(one.id)
            case ast.arg():
                roles[one.lineno, one.col_offset] = "parameter"
            case ast.Attribute(attr=name, end_lineno=int(line), end_col_offset=int(end)):
                roles[line, end - len(name)] = "method" if id(one) in called else "attribute"
            case ast.keyword(arg=str()):
                roles[one.lineno, one.col_offset] = "keyword"
    return roles


def _tagged(
    text: str, node: ast.FunctionDef, roles: Mapping[tuple[int, int] | str, str | None], kind: str
) -> list[tuple[str, str]]:
    """The tokens of a function and their roles; none where the role of a name cannot be told."""
    first = node.body[0]
    documented = ast.get_docstring(node, clean=False) is not None
    told = range(first.lineno, (first.end_lineno or first.lineno) + 1) if documented else range(0)
    found: list[tuple[str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word, (row, column) = token.string, token.start
        line = row + node.lineno - 1
        if token.type in SKIPPED or (token.type == tokenize.STRING and line in told):
            continue
        role: str | None = OUTSIDE
        if token.type == tokenize.NAME and not keyword.iskeyword(word):
            role = kind if len(found) == 1 else roles.get((line, column)) or roles.get(word)
        elif token.type == tokenize.STRING and (len(word) >= TEXT or "\n" in word):
            word = '"…"'
        if role is None:
            return []
        found.append((word, role))
    return found
