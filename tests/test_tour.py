"""The tour runs, shows source and figures, and its site needs no network; the names and tests on the page about
notebooks exist.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import heedful
import heedful.config
from heedful.views.svg import SvgFigure
from tolerances import assert_close

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "tour").glob("*.py"))
NOTEBOOKS = (DOCS / "from_notebooks.md").read_text(encoding="utf-8")

# the worked examples of the textbooks, and the counts, as they stand in the pages' assertions
NUMBERS = """
0.9093, -0.4161, 0.0200, 0.9998 | 0.9523, -0.3051 | 0.6325, -1.2649, 1.2649, -0.6325 | 2.449 | 17.3 | 0.707
0.7275, 0.2676, 0.0049 | 0.0351, 0.2595, 0.7054 | 26.05 | -4.5 | 0.999996, 0.000004 | [0.5, 0.5], [0.7604, 0.2396]
[0.35, 0.55], [0.4281, 0.6802] | 0.38, -0.097, 0.204, 0.128 | 2.833 | 197 | 590_592 | 2_363_904 | 4_723_968 | 7_087_872
85_054_464 | 85_056_000 | 632_045_800 | 22_979_536 | 7_813_968, 12_155_568, 3_010_000 | 10_788_929
"""


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


# ------------------------------------------------------------------------------------------------------------ the pages


def values(page: Path) -> Iterator[Any]:
    """Last values of the page's cells, run in order as in a notebook; warnings are errors."""
    names: dict[str, Any] = {"__name__": "__main__"}
    line = 0
    for cell in re.split(r"^(?=# %%)", read(page), flags=re.M):
        tree = ast.parse("\n" * line + cell)
        line += cell.count("\n")
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, str(page), "exec"), names)
        if isinstance(last, ast.Expr):
            yield eval(compile(ast.Expression(last.value), str(page), "eval"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
@pytest.mark.full
def test_a_page_runs_and_opens_with_a_picture(page: Path) -> None:
    """Six seconds at most, those that train a small model."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = [value for value in values(page) if value is not None]
    pictures = [value for value in shown if isinstance(value, SvgFigure)]
    assert isinstance(shown[0], SvgFigure)
    for picture in pictures:
        ElementTree.fromstring(picture)
    assert len(pictures) == len(set(pictures))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_lead_an_equation_and_our_code(page: Path) -> None:
    text = read(page)
    docstring = ast.get_docstring(ast.parse(text)) or ""
    assert ".. lead::" in docstring
    assert ".. math::" in text
    assert ".. ours:: heedful." in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_worked_examples_are_asserted() -> None:
    asserted = " ".join(
        re.sub(r"\s+", " ", ast.unparse(node))
        for page in PAGES
        for node in ast.walk(ast.parse(read(page)))
        if isinstance(node, ast.Assert)
    )
    for numbers in filter(None, (part.strip() for part in re.split(r"[|\n]", NUMBERS))):
        plain = ast.unparse(ast.parse(f"[{numbers}]")).strip("[]")  # as Python writes them
        assert plain in asserted, numbers


def test_a_picture_shows_itself_in_a_notebook() -> None:
    picture = SvgFigure("<svg><title>a &amp; b</title></svg>")
    shown = ElementTree.fromstring(picture._repr_html_().replace(">", "/>"))
    assert shown.get("alt") == "a & b"
    assert shown.get("src", "").startswith("data:image/svg+xml;base64,")


# ------------------------------------------------------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole site, of a copy of docs/; three quarters of a minute on one core."""
    for needed in ("sphinx", "sphinx_gallery", "myst_parser", "furo", "latex2mathml"):
        if not _installed(needed):
            pytest.skip(f"{needed} is not installed; pip install 'heedful[docs]'")
    folder = tmp_path_factory.mktemp("docs")
    shutil.copytree(DOCS, folder / "docs", ignore=shutil.ignore_patterns("transformer", "__pycache__"))
    command = [sys.executable, "-W", "error::SyntaxWarning", "-m", "sphinx"]
    command += ["-W", "--keep-going", "-q", "-b", "html", "docs", "site"]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr[-4000:]
    return folder / "site"


def _installed(name: str) -> bool:
    try:
        import_module(name)
    except ModuleNotFoundError:
        return False
    return True


def test_our_source_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its docstring; shortened, with dots for what is left out."""
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS)
    piece = import_module("parts.ours").piece
    source = piece("heedful.layers.mask.padding_mask")
    lines, first = inspect.getsourcelines(heedful.layers.padding_mask)
    assert source.location == f"heedful/layers/mask.py, line {first}: layers.mask.padding_mask"
    assert source.text.splitlines() == [lines[0].rstrip(), lines[-1].rstrip()]
    short = piece("heedful.layers.attention.Attention.__init__", "self.scale =").text.splitlines()
    assert [line.strip() for line in short] == ["def __init__(", "...", short[2].strip(), "..."]
    assert short[2].startswith("    self.scale = ")


def test_shown_source_exists_and_has_the_marked_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(DOCS)
    piece = import_module("parts.ours").piece
    directive = re.compile(r"^#? ?\.\. ours:: (\S+)\n(?:#?    :(?:mark|only): (.*)\n)?", re.M)
    shown = [match for page in PAGES for match in directive.findall(read(page))]
    assert len(shown) > 30
    for path, wanted in shown:
        assert wanted in piece(path).text, path


def test_the_site_is_whole_and_fetches_nothing(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES) + 4
    loading = re.compile(r"""<(?:script|img|iframe|source|video|object)\b[^>]*?(?:src|data)=["'](?!data:)([^"']+)""")
    linked = re.compile(r"""<link\b(?![^>]*\brel=["']canonical)[^>]*\bhref=["']([^"']+)""")  # that one is not fetched
    for page in pages:
        text = page.read_text(encoding="utf-8")
        addresses = [*loading.findall(text), *linked.findall(text)]
        assert len(addresses) > 3
        for address in addresses:
            assert not re.match(r"(\w+:)?//", address), (page.name, address)
            if not address.startswith("#"):
                assert (page.parent / address.partition("?")[0]).exists(), (page.name, address)
        assert "mathjax" not in text.lower()
    for style in site.rglob("*.css"):
        assert not re.findall(r"@import|url\(\s*['\"]?(?:https?:)?//", style.read_text(encoding="utf-8")), style.name


def test_pages_of_the_site_show_equations_code_and_pictures(site: Path) -> None:
    for page in PAGES:
        text = (site / "transformer" / f"{page.stem}.html").read_text(encoding="utf-8")
        assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in text
        assert 'class="ours' in text
        assert text.count('class="hll"') >= read(page).count(":mark:") + read(page).count(":only:")
        first = re.search(r'<img[^>]+class="picture"', text)
        assert first is not None, page.stem
        assert text.index("<h1>") < first.start() < text.index('class="highlight')


def test_the_site_shows_every_figure_once(site: Path) -> None:
    """As the file that the build wrote of it; none is embedded besides, as a value that a notebook shows."""
    for page in PAGES:
        shown = re.findall(r'<img[^>]+\bsrc="([^"]+)"', read(site / "transformer" / f"{page.stem}.html"))
        files = sorted((site / "_images").glob(f"sphx_glr_{page.stem}_0*.svg"))
        assert len(files) > 1
        assert shown == [f"../_images/{file.name}" for file in files]


def test_the_sidebar_of_a_page_marks_that_page_alone(site: Path) -> None:
    """Pages of the reference share one list of all pages."""
    listed = set()
    for page in (*(site / "api").glob("*.html"), *(site / "transformer").glob("*.html"), site / "serving.html"):
        sidebar = re.search(r'<div class="sidebar-tree">(.*?)\n</div>', page.read_text(encoding="utf-8"), re.S)
        assert sidebar is not None
        marked = re.search(r'<li class="[^"]*\bcurrent-page\b[^"]*"><a class="current [^>]* href="#">', sidebar[1])
        assert marked is not None, page.name
        others = re.findall(r'href="(?!#)([^"]+)"', sidebar[1])
        assert all((page.parent / other).exists() for other in others)
        listed.add(frozenset({page.resolve(), *((page.parent / other).resolve() for other in others)}))
        assert sidebar[1].count('href="#"') == 1, page.name
    assert len(listed) == 1
    assert len(*listed) > len(list((site / "api").glob("*.html")))


def test_notebooks_and_scripts_can_be_downloaded(site: Path) -> None:
    for page in PAGES:
        (script,) = site.rglob(page.name)
        assert ast.dump(ast.parse(read(script))) == ast.dump(ast.parse(read(page)))
        (found,) = site.rglob(f"{page.stem}.ipynb")
        cells = json.loads(read(found))["cells"]
        prose = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        assert ".. " not in re.sub(r"\.\.\. ", "", prose)
        assert "```python\ndef " in prose
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(ast.parse(read(page)).body[1:], []))


# --------------------------------------------------------------------------------------------------- the notebooks page


def rows(heading: str) -> list[list[list[str]]]:
    """The table below a heading: its rows, their cells, each cell's code spans."""
    section = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", NOTEBOOKS, re.M | re.S)
    assert section is not None, heading
    table = [line for line in section[1].splitlines() if line.startswith("|")]
    return [[re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split("|")] for line in table[2:]]


@cache
def ours() -> set[str]:
    """The path of every part and parameter of a model of each family."""
    with torch.device("meta"):
        models = [heedful.create(name) for name in ("gpt-micro", "bert-base", "transformer-tiny", "vit-micro")]
    return {name for model in models for name, _ in [*model.named_modules(), *model.named_parameters()]}


def ends(names: set[str], wanted: str) -> bool:
    return any(f".{name}".endswith(f".{wanted}") for name in names)


def test_our_names_exist() -> None:
    for _, (name,), *_ in rows("Sizes"):
        owner, _, field = name.partition(".")
        assert field in {f.name for f in heedful.config.fields(getattr(heedful.config, owner))}, name
    for row in rows("Parts"):
        assert row[1]
        for name in row[1]:
            assert ends(ours(), name), name
    for _, names in rows("Calls"):
        for name in names:
            for path in re.findall(r"\bheedful((?:\.\w+)+)", name):
                found: Any = heedful
                for part in path.strip(".").split("."):
                    found = getattr(found, part, None) or import_module(f"{found.__name__}.{part}")


def test_pytorchs_names_exist() -> None:
    takes = {*inspect.signature(nn.TransformerEncoderLayer).parameters, *dir(nn.MultiheadAttention(8, 2))}
    takes |= {*inspect.signature(nn.TransformerDecoder).parameters}
    for _, _, names, *_ in rows("Sizes"):
        assert set(names) <= takes
    layer = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    parts = {name for name, _ in [*layer.named_modules(), *layer.named_parameters()]}
    for _, _, names, *_ in rows("Parts"):
        for name in names:
            assert hasattr(nn, name.removeprefix("nn.")) if name.startswith("nn.") else ends(parts, name), name


def test_transformers_names_exist() -> None:
    library = pytest.importorskip("transformers")
    kinds = [library.BertConfig, library.GPT2Config, library.LlamaConfig, library.ViTConfig]
    known = {name for kind in kinds for name in dir(kind())}
    for row in rows("Sizes"):
        assert set(row[3]) <= known, row[3]
    with torch.device("meta"):
        models = [
            library.BertForSequenceClassification(library.BertConfig(num_hidden_layers=1)),
            library.GPT2LMHeadModel(library.GPT2Config(n_layer=1)),
            library.ViTForImageClassification(library.ViTConfig(num_hidden_layers=1)),
        ]
    parts = {name for model in models for name, _ in [*model.named_modules(), *model.named_parameters()]}
    for row in rows("Parts"):
        for name in row[3]:
            assert ends(parts, name), name


def test_masks_mean_what_is_said() -> None:
    """The same weights, each given the mask in its own meaning."""
    torch.manual_seed(0)
    theirs, mine = nn.MultiheadAttention(8, 2, batch_first=True), heedful.layers.Attention(8, heads=2)
    with torch.no_grad():
        for part, weight in zip((mine.query, mine.key, mine.value), theirs.in_proj_weight.chunk(3), strict=True):
            part.weight.copy_(weight)
            part.bias.zero_()
        mine.out.load_state_dict(theirs.out_proj.state_dict())
    x, may = torch.randn(1, 4, 8), heedful.layers.causal_mask(4)
    assert_close(theirs(x, x, x, attn_mask=~may)[0], mine(x, mask=may))
    real = torch.tensor([[True, True, True, False]])
    padded = mine(x, mask=heedful.layers.padding_mask(real))
    assert_close(theirs(x, x, x, key_padding_mask=~real)[0], padded)


def test_the_tests_that_hold_a_mistake_exist() -> None:
    table = rows("Common mistakes")
    assert len(table) >= 25
    for row in table:
        assert row[-1], row
        for name in row[-1]:
            path, _, test = name.partition("::")
            tree = ast.parse(read(ROOT / path))
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name
