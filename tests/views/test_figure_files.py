"""Figures as PNG and PDF, read back by Pillow and pypdf and compared with Chromium."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from heedful.errors import HeedfulError
from heedful.views import confusion_svg, figure_files, figures, loss_curve, patch_grid_svg
from heedful.views.attention_data import AttentionMaps

typst = pytest.importorskip("typst", reason="typst is not installed: pip install 'heedful[figures]'")
pypdf = pytest.importorskip("pypdf", reason="pypdf is not installed")

SVG = "{http://www.w3.org/2000/svg}"


def picture(pieces=("one", " two", " three")):
    weights = np.random.default_rng(0).dirichlet(np.ones(len(pieces)), size=(1, 1, len(pieces)))
    return figures.matrix(AttentionMaps.of("self-attention", pieces, pieces, weights), 0, 0, "A title: 25 %")


def pictures():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    box = figures.Box
    return {
        "matrix": picture(),
        "curve": loss_curve([{"step": i, "loss": 1 / (i + 1), "valid_loss": 0.5} for i in range(20)], "t"),
        "confusion": confusion_svg(["ham", "spam"], [[8, 2], [1, 9]], "mail"),
        "patches": patch_grid_svg(pixels, 4, "t"),
        "overlay": figures.overlay(pixels, np.eye(4), "t"),
        "functions": figures.functions([0, 1, 2], {"f": [0, 1, 4]}, "t"),
        "flow": figures.flow({"a": box(text="a"), "b": box(text="b", row=1)}, [figures.Arrow(start="a", end="b")], "t"),
    }


def opened(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


def pdf_page(data):
    reader = pypdf.PdfReader(io.BytesIO(data))
    assert len(reader.pages) == 1
    return reader.pages[0]


def resources(page, kind):
    """The fonts or the drawn objects of a page and of the forms on it."""
    values = {}
    pending = [page["/Resources"]]
    while pending:
        table = pending.pop()
        for key, value in table.get(kind, {}).items():
            values[key, value.idnum] = value.get_object()
        for drawn in table.get("/XObject", {}).values():
            pending += [drawn.get_object()["/Resources"]] if "/Resources" in drawn.get_object() else []
    return list(values.values())


def letters(text):
    return sorted("".join(text.split()))


def texts(svg):
    return "".join(element.text or "" for element in ET.fromstring(svg).iter(f"{SVG}text"))


def test_a_png_is_the_light_picture_at_its_scale():
    svg = picture()
    root = ET.fromstring(svg)
    for scale in (1.0, 3.0):
        pixels = opened(figure_files.png(svg, scale=scale))
        assert pixels.shape[:2] == (float(root.get("height")) * scale, float(root.get("width")) * scale)
    assert tuple(pixels[30, 200]) == (0xFB, 0xFA, 0xF7, 255)
    assert tuple(pixels[0, 0]) == (0, 0, 0, 0)  # outside the round corner
    ink = pixels[..., :3].astype(int).sum(-1)
    assert ink[100:-100, 100:-100].min() < 150


def test_cells_have_the_shade_of_their_weight_in_the_png():
    values = np.linspace(0.1, 1, 30).reshape(1, 30)  # over 24 columns: no numbers on the cells
    svg = figures.heat(values, title="t", signed=False)
    pixels = opened(figure_files.png(svg, scale=2.0)).astype(float)
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


def test_the_styles_of_dark_screens_do_not_count():
    svg = picture()
    light = re.sub(r"@media[^{]*\{(?:[^{}]*\{[^{}]*\})*\s*\}", "", svg)
    assert len(light) < len(svg) - 100
    assert figure_files.png(light) == figure_files.png(svg)


@pytest.mark.parametrize("kind", pictures())
def test_a_png_looks_as_in_a_browser(browser, kind):
    svg = pictures()[kind]
    root = ET.fromstring(svg)
    size = {side: int(float(root.get(side))) for side in ("width", "height")}
    context = browser.new_context(viewport=size, device_scale_factor=2, color_scheme="light")
    page = context.new_page()
    page.set_content(f'<body style="margin:0">{svg}</body>')
    expected = Image.open(io.BytesIO(page.screenshot(omit_background=True))).convert("RGBA")
    context.close()
    drawn = Image.open(io.BytesIO(figure_files.png(svg, scale=2))).convert("RGBA")
    assert drawn.size == expected.size
    coarse = [
        np.asarray(image.resize((size["width"] // 8, size["height"] // 8), Image.Resampling.BOX), dtype=float)
        for image in (drawn, expected)
    ]  # letters differ by a pixel, areas and lines by nothing
    difference = np.abs(coarse[0] - coarse[1])
    assert difference.mean() < 2.5
    assert np.quantile(difference, 0.97) < 40


@pytest.mark.parametrize("kind", pictures())
def test_a_pdf_holds_vectors_and_text_with_its_fonts(kind):
    svg = pictures()[kind]
    data = figure_files.pdf(svg)
    page, root = pdf_page(data), ET.fromstring(svg)
    assert letters(page.extract_text()) == letters(texts(svg))
    assert [float(side) for side in page.mediabox[2:]] == [float(root.get(side)) * 0.75 for side in ("width", "height")]
    fonts = resources(page, "/Font")
    assert fonts
    for font in fonts:
        descriptor = font["/DescendantFonts"][0].get_object()["/FontDescriptor"]
        assert {"/FontFile2", "/FontFile3"} & set(descriptor)
        assert re.match(r"/[A-Z]{6}\+", font["/BaseFont"])  # a subset
    images = [drawn for drawn in resources(page, "/XObject") if drawn["/Subtype"] == "/Image"]
    assert bool(images) == ("<image" in svg)
    assert figure_files.pdf(svg) == data


def test_a_pdf_has_the_title_and_description_of_the_figure():
    svg = picture(("one", " Größe", " √x → (y)\\"))
    root = ET.fromstring(svg)
    reader = pypdf.PdfReader(io.BytesIO(figure_files.pdf(svg)))
    assert reader.metadata.title == root.findtext(f"{SVG}title")
    assert reader.metadata.subject == root.findtext(f"{SVG}desc")
    assert letters(reader.pages[0].extract_text()) == letters(texts(svg))


def test_few_pixels_stay_squares_in_a_pdf():
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    page = pdf_page(figure_files.pdf(patch_grid_svg(pixels, 4, "t")))
    stored = np.asarray(page.images[0].image.convert("RGB"))
    assert stored.shape == (512, 512, 3)
    np.testing.assert_array_equal(stored[::32, ::32], stored[31::32, 31::32])


def test_a_character_without_a_font_is_named_below_the_picture():
    strange = chr(0x10FFFD)  # private: no font has it
    svg = picture(("one", f" {strange}"))
    high = float(ET.fromstring(svg).get("height"))
    assert opened(figure_files.png(svg, scale=1)).shape[0] == high + 22
    assert "No font of this machine has U+10FFFD" in pdf_page(figure_files.pdf(svg)).extract_text()


def test_the_missing_characters_are_those_that_no_glyph_of_the_pdf_stands_for():
    sample = "éßжΩ√→你字ཀꙮ" + chr(0x10FFFD) + chr(0xE000)
    parts = "".join(f'<text x="{9 + 20 * i}" y="20">{character}</text>' for i, character in enumerate(sample))
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="400" height="40">{parts}</svg>'
    root = figure_files._parsed(svg)
    shown = pdf_page(figure_files._drawn(root, "pdf")).extract_text()
    assert "".join(figure_files._missing(sample)) == "".join(c for c in sample if c not in shown)
    assert "é" in shown
    assert chr(0x10FFFD) not in shown


def test_the_font_to_install_is_named_by_script(monkeypatch):
    monkeypatch.setattr(figure_files, "_has_fonts_for", lambda text: all(ord(character) < 0x2FF for character in text))
    svg = picture(("one", " نعم", " 你好", " हाँ", " 😀", " שלום"))
    line = figure_files._with_font_note(figure_files._parsed(svg))[-1].text
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


def test_arabic_is_text_in_its_joined_forms():
    letter = "ب"
    if figure_files._missing(letter):
        pytest.skip("no font of this machine has Arabic letters")
    page = pdf_page(figure_files.pdf(picture(("one", 3 * letter))))
    assert page.extract_text().count(letter) == 6  # a row and a column
    assert not [drawn for drawn in resources(page, "/XObject") if drawn["/Subtype"] == "/Image"]
    tables = [font["/ToUnicode"].get_data().decode("latin-1") for font in resources(page, "/Font")]
    assert max(table.count(f"<{ord(letter):04X}>") for table in tables) == 3  # initial, medial and final glyph


def test_without_any_system_font_the_text_is_still_drawn(monkeypatch):
    alone = typst.Compiler(ignore_system_fonts=True)
    monkeypatch.setattr(figure_files, "_compiler", lambda: alone)
    figure_files._has_fonts_for.cache_clear()
    try:
        assert figure_files._missing("Aéж你") == ["你"]
        assert "one" in pdf_page(figure_files.pdf(picture())).extract_text()
    finally:
        figure_files._has_fonts_for.cache_clear()


@pytest.mark.parametrize(
    "part",
    [
        '<foreignObject width="5" height="5"><p xmlns="http://www.w3.org/1999/xhtml">text</p></foreignObject>',
        '<image href="http://localhost/a.png" width="5" height="5"/>',
        '<image href="/etc/hostname" width="5" height="5"/>',
    ],
)
@pytest.mark.parametrize("draw", [figure_files.png, figure_files.pdf])
def test_an_element_that_would_be_lost_is_refused(part, draw):
    with pytest.raises(HeedfulError, match=r"typst cannot draw.*write it as \.svg"):
        draw(f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9">{part}</svg>')


def test_files_are_written_by_their_suffix(tmp_path):
    svg = picture()
    assert figure_files.write_figure(svg, tmp_path / "new" / "a.svg").read_text(encoding="utf-8") == svg
    assert figure_files.write_figure(svg, tmp_path / "a.PNG", scale=1).read_bytes() == figure_files.png(svg, scale=1)
    assert figure_files.write_figure(svg, tmp_path / "a.pdf").read_bytes() == figure_files.pdf(svg)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PNG", "a.pdf", "new"]
    with pytest.raises(HeedfulError, match=r"'a.gif'.*\.svg, \.png, \.pdf"):
        figure_files.write_figure(svg, tmp_path / "a.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(HeedfulError, match="cannot write"):
        figure_files.write_figure(svg, tmp_path / "file" / "a.png")
    with pytest.raises(HeedfulError, match="not an SVG figure"):
        figure_files.write_figure("no picture", tmp_path / "b.png")


@pytest.mark.parametrize("draw", [figure_files.png, figure_files.pdf])
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, draw):
    figure_files._compiler.cache_clear()
    monkeypatch.setitem(sys.modules, "typst", None)
    with pytest.raises(HeedfulError, match=r"typst; run: pip install 'heedful\[figures\]'"):
        draw(picture())
