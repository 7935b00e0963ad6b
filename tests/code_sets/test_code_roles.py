"""The set of names in code: roles by hand, by the compiler's own tables, and parts that share nothing."""

from __future__ import annotations

import io
import keyword
import symtable
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_sources import code_roles
from python_sources.code_roles import functions

SPLITS = ("train", "valid", "test")
OUTER = {"class", "function", "global", "module"}
ROLES = OUTER | {"attribute", "keyword", "method", "parameter", "variable"}

BY_HAND = '''
import os.path, numpy as np
from re import compile as made
try:
    import json
except ImportError:
    json = None
LIMIT = 3
class Shape: pass

class Box(Shape):
    @staticmethod
    def area(box, *rest, by: int = LIMIT, size=len, **more) -> Shape:
        """Its area."""
        # twice
        total, box.cache = made(box.wide, key=by), json.loads("0 and some more words")
        for one in rest:
            total += one * np.abs(by) + os.path.sep.count(more)
        try:
            print(total, len(size))
        except (ValueError, Shape) as error:
            raise error
        return helper(type(total))

def helper(x): return [y for y in x]
'''
EXPECTED = """
def area:method ( box:parameter , * rest:parameter , by:parameter : int:class = LIMIT:global , size:parameter =
len:function , ** more:parameter ) -> Shape:class : total:variable , box:parameter . cache:attribute = made:global (
box:parameter . wide:attribute , key:keyword = by:parameter ) , json:global . loads:method ( "…" ) for one:variable in
rest:parameter : total:variable += one:variable * np:module . abs:method ( by:parameter ) + os:module . path:attribute .
sep:attribute . count:method ( more:parameter ) try : print:function ( total:variable , len:function ( size:parameter )
) except ( ValueError:class , Shape:class ) as error:variable : raise error:variable return helper:function ( type:class
( total:variable ) )
"""


def test_roles_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("python_sources.code_roles.LONGEST", 200)
    ((words, tags),) = functions(BY_HAND)
    found = [word if tag == "O" else f"{word}:{tag}" for word, tag in zip(words, tags, strict=True)]
    assert found == EXPECTED.split()


@pytest.mark.parametrize(
    "body",
    [
        "return [x for x in numbers if x > 1 and x < 100]",
        "import os; return os.path.join(numbers, numbers)",
        "return sorted(numbers, key=lambda x: x, reverse=True)",
        "return f'{numbers} and {numbers}', numbers, numbers",
        "return unheard_of(numbers, numbers, numbers)",
        "return 'é', numbers, numbers, numbers, numbers",
        "return numbers",
    ],
)
def test_short_functions_are_left_out(body: str) -> None:
    assert not list(functions(f"def few(numbers):\n    {body}\n"))
    assert list(functions("def few(numbers):\n    return len(numbers) + 1, numbers\n"))


def tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from tables(child)


@pytest.mark.parametrize("name", ["heapq", "textwrap", "configparser", "http/cookies"])
def test_scopes_are_those_of_the_compiler(name: str) -> None:
    """Parameters, names bound in the function, and names from outside, by `symtable`."""
    source = (Path(sysconfig.get_path("stdlib")) / f"{name}.py").read_text(encoding="utf-8")
    made = [table for table in tables(symtable.symtable(source, name, "exec")) if isinstance(table, symtable.Function)]
    count = 0
    for words, tags in functions(source):
        told: dict[str, set[str]] = {}
        for word, tag in zip(words, tags, strict=True):
            told.setdefault("outer" if tag in OUTER else tag, set()).add(word)
        inner = {*told.get("parameter", ()), *told.get("variable", ())}
        fitting = [
            one
            for one in made
            if one.get_name() == words[1]
            and told.get("parameter", set()) == set(one.get_parameters())
            and inner == {*one.get_parameters(), *one.get_locals()}
            and set(one.get_globals()) <= told.get("outer", set()) | {"len"}
        ]
        assert fitting, words
        count += 1
    assert count > 2


def test_parts_share_no_module_and_no_function() -> None:
    made = {split: code_roles.rows(split) for split in SPLITS}
    words = [row["words"] for split in SPLITS for row in made[split]]
    assert len(words) == len(set(words))
    modules = [{row["module"] for row in made[split]} for split in SPLITS]
    assert sum(map(len, modules)) == len(set.union(*modules))
    assert [len(made[split]) for split in SPLITS] == [pytest.approx(size, rel=0.4) for size in (1200, 200, 300)]
    assert max(Counter(row["module"] for row in made["test"]).values()) <= 40
    tags = Counter(tag for row in made["train"] for tag in row["tags"])
    assert set(tags) == {"O", *ROLES}
    assert min(tags.values()) > 50
    for row in made["train"]:
        assert 12 <= len(row["words"]) == len(row["tags"]) <= 90
        for word, tag in zip(row["words"], row["tags"], strict=True):
            named = word.isidentifier() and not keyword.iskeyword(word)
            assert named == (tag != "O"), word


def test_strings_are_cut_and_words_are_tokens() -> None:
    for row in code_roles.rows("valid")[:50]:
        for word in row["words"]:
            assert len(word) < 16 or word.isidentifier() or word.replace(".", "").isalnum()
            if word != '"…"':
                first = next(tokenize.generate_tokens(io.StringIO(word).readline))
                assert first.string == word
