"""`code-roles`: functions of Python's standard library as tokens, with a role (tag) for each name."""

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

MOST = {"test": 300, "valid": 200, "train": 1200}  # maximum functions of a split; splits are drawn in this order
LEAST, LONGEST = 12, 90  # minimum and maximum tokens of a function
LINES = 30  # maximum lines of a function, with its docstring; the tokens of longer ones are not counted
EACH = 40  # maximum functions of a module, so that no module fills a split
LARGE = 60_000  # characters of a module from which it is left out: it would take long to parse
OUTSIDE = "O"
TEXT = 16  # characters of a string literal from which it is replaced by "…": no role depends on its content
SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
# Nodes that bind names in other ways, or that other versions of Python tokenize differently: functions with one of
# these are left out.
EXCLUDED_NODES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.Import, ast.ImportFrom, ast.Global),
    *(ast.Nonlocal, ast.Match, ast.JoinedStr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


def rows(split: str) -> list[dict[str, Any]]:
    """Returns the functions of a split ("train", "valid", "test"): ``words`` (tokens), ``tags`` (roles) and ``module``.

    Every name has a role; all other tokens have the tag ``O``:

    - ``parameter``: a parameter of the function; ``variable``: any other name that the function binds;
    - ``attribute``: a name after a dot; ``method``: a name after a dot that is called, and the
      name of a function in a class;
    - ``keyword``: the name of an argument in a call;
    - ``module``, ``class`` and ``function``: a name that the module defines or imports, or a builtin; ``global``: any
      other such name (constants, and names imported from other modules).

    A function has 12 to 90 tokens, without decorators, docstring and comments; long strings become ``"…"``. Functions
    that contain a function, a class, an import, a comprehension or an f-string are left out. All functions of a module
    are in one split, the same as in the set `stdlib`. No two rows have the same tokens. Other versions of Python have
    other functions.

    Raises `HeedfulError` if Python was installed without its source.
    """
    return [dict(row) for row in _all_rows()[split]]


@cache
def _all_rows() -> dict[str, list[dict[str, Any]]]:
    known: set[tuple[str, ...]] = set()
    return {split: list(islice(_new_rows(split, known), max_rows)) for split, max_rows in MOST.items()}


def _new_rows(split: str, known: set[tuple[str, ...]]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a split whose tokens are not ``known``, module by module in the order of a hash."""
    small = (row for row in stdlib.rows(None, split) if len(row["text"]) < LARGE)
    for row in sorted(small, key=lambda row: blake2b(row["text"].encode(), digest_size=16).digest()):
        for words, tags in islice(functions(row["text"]), EACH):
            if words not in known:
                known.add(words)
                yield {"words": words, "tags": tags, "module": row["module"]}


def functions(source: str) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yields the tokens and the roles of each function in a module's source.

    Functions that contain a function, a class, an import, a comprehension or an f-string are left out, and so are those
    that are not 12 to 90 tokens long.

    >>> words, tags = next(functions("def area(self, unit=1):\\n    return self.wide * self.high() * unit\\n"))
    >>> [(word, tag) for word, tag in zip(words, tags) if tag != "O"][:3]
    [('area', 'function'), ('self', 'parameter'), ('unit', 'parameter')]
    """
    tree, lines = ast.parse(source), source.splitlines(keepends=True)
    known = {**_builtin(), **dict(_bound(tree.body))}
    for body, name_role in _bodies(tree):
        for node in body:
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno < LINES:
                text = "".join(lines[node.lineno - 1 : node.end_lineno])
                inner_nodes = [*_inside(node)]
                is_included = text.isascii() and not any(isinstance(inner, EXCLUDED_NODES) for inner in inner_nodes)
                pairs = _tagged(text, node, _roles(node, inner_nodes, known), name_role) if is_included else []
                if LEAST <= len(pairs) <= LONGEST:
                    words, tags = zip(*pairs, strict=True)
                    yield words, tags


def _bodies(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], str]]:
    """Yields the statements of the module and of each of its classes, with the role of function names there."""
    yield tree.body, "function"
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.body, "method"


def _inside(node: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yields the syntax nodes inside a function, without its decorators."""
    for part in (node.args, *node.body, *([node.returns] if node.returns else [])):
        yield from ast.walk(part)


def _builtin() -> dict[str, str]:
    return {
        name: "class" if isinstance(value, type) else "function" if callable(value) else "global"
        for name, value in vars(builtins).items()
    }


def _bound(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yields (name, role) for each name that statements at the top level of a module bind."""
    for node in body:
        match node:
            case ast.Import():
                yield from (((alias.asname or alias.name).partition(".")[0], "module") for alias in node.names)
            case ast.ImportFrom():
                yield from ((alias.asname or alias.name, "global") for alias in node.names)
            case ast.ClassDef():
                yield node.name, "class"
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name, "function"
            case ast.If() | ast.Try() | ast.For() | ast.While() | ast.With():
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.stmt | ast.ExceptHandler):
                        yield from _bound(child.body if isinstance(child, ast.ExceptHandler) else [child])
            case _:
                names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
                yield from ((name.id, "global") for name in names if isinstance(name.ctx, ast.Store))


def _roles(
    function: ast.FunctionDef, inner_nodes: Sequence[ast.AST], known: Mapping[str, str]
) -> dict[tuple[int, int] | str, str | None]:
    """Returns the role of the name at each (line, column), and of each name that the function binds.

    The role is None if it is unknown. ``known`` has the roles of the module's names and of builtins.
    """
    local_roles = {node.arg: "parameter" for node in inner_nodes if isinstance(node, ast.arg)}
    for node in inner_nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            local_roles.setdefault(node.id, "variable")
        elif isinstance(node, ast.ExceptHandler) and node.name:
            local_roles.setdefault(node.name, "variable")
    arguments = function.args
    # Expressions that are evaluated outside of the function: defaults and annotations.
    outer_expressions = [*arguments.defaults, *arguments.kw_defaults, function.returns]
    outer_expressions += [node.annotation for node in inner_nodes if isinstance(node, ast.arg)]
    outer = {id(node) for expression in outer_expressions if expression is not None for node in ast.walk(expression)}
    called = {id(node.func) for node in inner_nodes if isinstance(node, ast.Call)}
    roles: dict[tuple[int, int] | str, str | None] = {}
    roles.update(local_roles)
    for node in inner_nodes:
        match node:
            case ast.Name():
                local_role = None if id(node) in outer else local_roles.get(node.id)
                roles[node.lineno, node.col_offset] = local_role or known.get(node.id)
            case ast.arg():
                roles[node.lineno, node.col_offset] = "parameter"
            case ast.Attribute(attr=name, end_lineno=int(line), end_col_offset=int(end)):
                roles[line, end - len(name)] = "method" if id(node) in called else "attribute"
            case ast.keyword(arg=str()):
                roles[node.lineno, node.col_offset] = "keyword"
    return roles


def _tagged(
    text: str, node: ast.FunctionDef, roles: Mapping[tuple[int, int] | str, str | None], name_role: str
) -> list[tuple[str, str]]:
    """Returns (token, role) for each token of a function; [] if the role of a name is unknown.

    ``name_role`` is the role of the function's own name.
    """
    first = node.body[0]
    has_docstring = ast.get_docstring(node, clean=False) is not None
    docstring_lines = range(first.lineno, (first.end_lineno or first.lineno) + 1) if has_docstring else range(0)
    pairs: list[tuple[str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        word, (row, column) = token.string, token.start
        line = row + node.lineno - 1
        if token.type in SKIPPED or (token.type == tokenize.STRING and line in docstring_lines):
            continue
        role: str | None = OUTSIDE
        if token.type == tokenize.NAME and not keyword.iskeyword(word):
            role = name_role if len(pairs) == 1 else roles.get((line, column)) or roles.get(word)
        elif token.type == tokenize.STRING and (len(word) >= TEXT or "\n" in word):
            word = '"…"'
        if role is None:
            return []
        pairs.append((word, role))
    return pairs
