from __future__ import annotations

import base64
import io
import re
import sys
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest
from PIL import Image

from heedful.errors import HeedfulError
from heedful.views import confusion_svg, convert, figures, fonts, loss_curve, patch_grid_svg
from heedful.views.inline_style import lowered, parsed, steps
from heedful.views.map_data import Maps

reportlab = pytest.importorskip("reportlab", reason="reportlab is not installed: pip install 'heedful[figures]'")
pytest.importorskip("resvg_py", reason="resvg_py is not installed: pip install 'heedful[figures]'")

SVG = "{http://www.w3.org/2000/svg}"


def picture(pieces=("one", " two", " three")):
    weights = np.random.default_rng(0).dirichlet(np.ones(len(pieces)), size=(1, 1, len(pieces)))
    return figures.matrix(Maps.of("self-attention", pieces, pieces, weights), 0, 0, "A title: 25 %")


def opened(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def objects(pdf):
    """The objects of a PDF by number: their dictionary and their stream, decoded."""
    found = {}
    for match in re.finditer(rb"(?:^|\n)(\d+) 0 obj\n(.*?)(stream\n|endobj)", pdf, re.DOTALL):
        head, stream = match[2], b""
        if match[3] != b"endobj":
            stream = pdf[match.end() : match.end() + int(re.search(rb"/Length (\d+)", head)[1])]
            stream = base64.a85decode(b"<~" + stream.strip(), adobe=True) if b"ASCII85Decode" in head else stream
            stream = zlib.decompress(stream) if b"FlateDecode" in head else stream
        found[int(match[1])] = head, stream
    return found


def read(pdf):
    """The texts of a PDF, one for each string that is shown, by each font's own ToUnicode table."""
    every = objects(pdf)
    tables = {}
    for head, _ in every.values():
        unicode = re.search(rb"/ToUnicode (\d+) 0 R", head)
        name = re.search(rb"/Name /(\S+)", head)
        if unicode and name:
            cmap = every[int(unicode[1])][1].decode("latin-1")
            pairs = {int(code, 16): chr(int(to, 16)) for code, to in re.findall(r"<(\w\w)> <(\w{4})>", cmap)}
            tables[name[1]] = pairs
    found, table = [], {}
    for _, stream in every.values():
        for name, string in re.findall(rb"/(F\S+) [\d.]+ Tf|\(((?:[^\\()]|\\.)*)\) Tj", stream, re.DOTALL):
            if name:
                table = tables.get(name, {})
            else:
                codes = re.sub(rb"\\(\d{3}|.)", lambda m: bytes([int(m[1], 8)]) if m[1].isdigit() else m[1], string)
                found.append("".join(table.get(code, "?") for code in codes))
    return found


def test_a_png_is_the_light_picture_at_its_scale():
    svg = picture()
    root = ET.fromstring(svg)
    for scale in (1.0, 3.0):
        pixels = opened(convert.png(svg, scale=scale))
        assert pixels.shape[:2] == (float(root.get("height")) * scale, float(root.get("width")) * scale)
    assert tuple(pixels[30, 200]) == (0xFB, 0xFA, 0xF7, 255)
    ink = pixels[..., :3].astype(int).sum(-1)
    assert ink.min() < 150


def test_cells_have_the_shade_of_their_weight_in_the_png():
    values = np.linspace(0.1, 1, 30).reshape(1, 30)  # over 24 columns: no numbers on the cells
    svg = figures.heat(values, title="t", signed=False)
    pixels = opened(convert.png(svg, scale=2.0)).astype(float)
    root = ET.fromstring(svg)
    top = float(
        next(g.get("transform") for g in root.iter(f"{SVG}g") if "translate" in g.get("transform", "")).split()[1][:-1]
    )
    chip = next(path for path in root.iter(f"{SVG}path") if path.get("class") == "chip")
    x, y, wide = map(float, re.match(r"M([\d.]+) ([\d.]+)h([\d.]+)", chip.get("d")).groups())
    for i, value in enumerate(values[0]):
        found = pixels[round(2 * (y + top + wide / 2)), round(2 * (x + 24 + i * (wide + 1) + wide / 2)), :3]
        expected = (1 - value) * np.array([0xF0, 0xEE, 0xE8]) + value * np.array([0x3A, 0x3F, 0xB0])
        np.testing.assert_allclose(found, expected, atol=2.5)


def test_the_text_of_a_pdf_can_be_read_and_its_page_has_the_size():
    svg = picture(("one", " Größe", " √x → (y)\\"))
    pdf = convert.pdf(svg)
    root = ET.fromstring(svg)
    expected = [element.text for element in root.iter(f"{SVG}text")]
    assert "".join(read(pdf)) == "".join(expected)
    box = [float(n) for n in re.search(rb"/MediaBox \[([^\]]*)\]", pdf)[1].split()]
    assert box[2:] == [float(root.get("width")) * 0.75, float(root.get("height")) * 0.75]
    assert convert.pdf(svg) == pdf


def test_every_kind_of_picture_becomes_a_pdf():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    box = figures.Box
    for svg in (
        loss_curve([{"step": i, "loss": 1 / (i + 1), "valid_loss": 0.5} for i in range(20)], "t"),
        confusion_svg(["ham", "spam"], [[8, 2], [1, 9]], "mail"),
        patch_grid_svg(pixels, 4, "t"),
        figures.overlay(pixels, np.eye(4), "t"),
        figures.functions([0, 1, 2], {"f": [0, 1, 4]}, "t"),
        figures.flow({"a": box(text="a"), "b": box(text="b", row=1)}, [figures.Arrow(start="a", end="b")], "t"),
    ):
        pdf = convert.pdf(svg)
        texts = [element.text for element in ET.fromstring(svg).iter(f"{SVG}text") if element.text]
        assert "".join(read(pdf)) == "".join(texts)
        shown = [head for head, _ in objects(pdf).values() if b"/Subtype /Image" in head]
        assert bool(shown) == ("<image" in svg)


def test_what_no_font_has_is_told_in_the_picture():
    strange = chr(0x10FFFD)  # private: no font has it
    svg = picture(("one", f" {strange}"))
    high = float(ET.fromstring(svg).get("height"))
    assert opened(convert.png(svg, scale=1)).shape[0] == high + 22
    assert any("No font of this machine has U+10FFFD" in text for text in read(convert.pdf(svg)))


def test_the_font_to_install_is_named_by_script(monkeypatch):
    monkeypatch.setattr(fonts, "_has", lambda code: code < 0x2FF)
    svg = picture(("one", " نعم", " 你好", " हाँ", " 😀", " שלום"))
    line = next(text for text in read(convert.pdf(svg)) if text.startswith("No font"))
    for script, family in (
        ("Arabic", "Noto Sans Arabic"),
        ("Chinese", "Noto Sans CJK SC"),
        ("Devanagari", "Noto Sans Devanagari"),
        ("emoji", "Noto Color Emoji"),
        ("Hebrew", "Noto Sans Hebrew"),
    ):
        assert script in line
        assert family in line
        assert f"'{family}'" in svg  # a browser takes it where the machine has it


def test_text_from_right_to_left_is_a_picture_in_a_pdf():
    if fonts.missing("שלום"):
        pytest.skip("no font of this machine has Hebrew letters")
    pdf = convert.pdf(picture(("one", "שלום")))
    assert [head for head, _ in objects(pdf).values() if b"/Subtype /Image" in head]
    assert "one" in read(pdf)


@pytest.mark.parametrize("name", ["Vera.ttf", "DejaVuSans.ttf"])
def test_a_fonts_characters_are_those_that_reportlab_finds(name):
    from reportlab.pdfbase.ttfonts import TTFontFile

    if name not in fonts.files():
        pytest.skip(f"{name} is not on this machine")
    path = fonts.files()[name]
    expected = {code for code, glyph in TTFontFile(str(path)).charToGlyph.items() if glyph}
    assert {code for code in fonts.characters(path) if code < 0xFFFF} == {code for code in expected if code < 0xFFFF}


def test_without_any_system_font_the_text_is_still_drawn(monkeypatch):
    brought = {path.name: path for path in fonts.brought().glob("*.ttf")}
    monkeypatch.setattr(fonts, "files", lambda: brought)
    fonts._others.cache_clear()
    fonts._has.cache_clear()
    try:
        assert fonts.runs("Aé", False) == [(brought["Vera.ttf"], "Aé")]
        assert fonts.runs("A", True) == [(brought["VeraBd.ttf"], "A")]
        assert fonts.missing("Aж") == ["ж"]
        assert "one" in read(convert.pdf(picture()))
    finally:
        fonts._others.cache_clear()
        fonts._has.cache_clear()


def test_the_style_sheet_is_applied_in_its_light_form_as_a_browser_would():
    root = lowered(
        '<svg xmlns="http://www.w3.org/2000/svg"><style>text{fill:#111;font-size:13px}.a{fill:#222}text.a{fill:#333}'
        ".b{fill:#444}@media(prefers-color-scheme:dark){.a{fill:#fff}.b,.c{fill:#eee}}</style>"
        '<text>1</text><text class="a">2</text><rect class="a"/><text class="a b" fill="#000"/>'
        '<rect style="fill:#555"/></svg>'
    )
    assert [element.get("fill") for element in root] == ["#111", "#333", "#222", "#333", "#555"]
    assert root[0].get("font-size") == "13px"


@pytest.mark.parametrize(
    "sheet", ["g text{fill:red}", ".a:hover{fill:red}", "@media print{.a{fill:red}}", ".a{fill:var(--x)}"]
)
def test_a_style_that_would_be_lost_is_refused(sheet):
    with pytest.raises(HeedfulError, match="cannot be made a PNG or PDF"):
        parsed(sheet)


@pytest.mark.parametrize(
    "part",
    [
        "<foreignObject/>",
        '<g transform="skewX(3)"/>',
        '<path d="M0 0A1 1 0 0 0 2 2"/>',
        "<text>a<tspan>b</tspan></text>",
    ],
)
def test_an_element_that_would_be_lost_is_refused(part):
    with pytest.raises(HeedfulError, match="cannot be made a PDF"):
        convert.pdf(f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{part}</svg>')


def test_a_quadratic_curve_is_the_same_as_a_cubic_one():
    (_, begin), (call, cubic) = steps("M1 2q3 4 5 0")
    assert call == "curveTo"
    points = np.array([begin, cubic[:2], cubic[2:4], cubic[4:]])
    for t in np.linspace(0, 1, 5):
        weights = np.array([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
        expected = (1 - t) ** 2 * np.array([1, 2]) + 2 * t * (1 - t) * np.array([4, 6]) + t**2 * np.array([6, 2])
        np.testing.assert_allclose(weights @ points, expected)


def test_files_are_written_by_their_suffix(tmp_path):
    svg = picture()
    assert convert.write(svg, tmp_path / "new" / "a.svg").read_text(encoding="utf-8") == svg
    assert convert.write(svg, tmp_path / "a.PNG", scale=1).read_bytes() == convert.png(svg, scale=1)
    assert convert.write(svg, tmp_path / "a.pdf").read_bytes() == convert.pdf(svg)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PNG", "a.pdf", "new"]
    with pytest.raises(HeedfulError, match=r"'a.gif'; name a file that ends in .svg, .png, .pdf"):
        convert.write(svg, tmp_path / "a.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(HeedfulError, match="cannot write"):
        convert.write(svg, tmp_path / "file" / "a.png")
    with pytest.raises(HeedfulError, match="not an SVG picture"):
        convert.write("no picture", tmp_path / "b.png")


@pytest.mark.parametrize(("package", "draw"), [("resvg_py", convert.png), ("reportlab", convert.pdf)])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, package, draw):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HeedfulError, match=rf"{package}; run: pip install 'heedful\[figures\]'"):
        draw(picture())
