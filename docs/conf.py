"""Sphinx configuration of the documentation: ``make docs`` writes it to ``build/site``. No page needs a network."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from pygments.lexers import TextLexer  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

import heedful  # noqa: E402
from heedful.views.svg import SvgFigure  # noqa: E402

project = "Heedful"
author = "Heedful contributors"
copyright = "Heedful, Apache-2.0"
version = release = heedful.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "myst_parser",
    "parts.equations",
    "parts.llms",
    "parts.ours",
    "parts.pictures",
    "parts.notebooks",
]
exclude_patterns = ["tour", "parts", "static"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
html_math_renderer = "mathml"
myst_heading_anchors = 2  # for links to sections
highlight_language = "text"  # of blocks that name none: commands, mostly

# the reference: a page for each name that api.md lists
templates_path = ["parts/templates"]
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # an attribute that a docstring lists is described once
napoleon_attr_annotations = False
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False

sphinx_gallery_conf = {
    "examples_dirs": "tour",
    "gallery_dirs": "transformer",
    "filename_pattern": r"\.py$",  # every page is executed
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("parts.pictures.scrape",),
    "capture_repr": ("_repr_html_",),
    "ignore_repr_types": re.escape(str(SvgFigure)),  # the scraper shows them
    "abort_on_example_error": True,
    "run_stale_examples": True,  # the library may have changed, though the page has not
    "reset_modules": (),
    "write_computation_times": False,
    "min_reported_time": 10**6,  # pages show no times
    "show_signature": False,
    "remove_config_comments": True,
    "download_all_examples": True,
}

html_theme = "furo"
html_title = "Heedful"
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "https://heedful.readthedocs.io/en/latest/")
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3a3fb0", "color-brand-content": "#3a3fb0"},
    "dark_css_variables": {"color-brand-primary": "#ffc35c", "color-brand-content": "#ffc35c"},
}


def shown_signature(app: Sphinx, what: str, name: str, value: Any, options: Any, signature: str, returned: str) -> Any:
    """Returns a signature as a person would write it: functions by their names, and dots for a computed default."""
    if signature is None:  # of a property
        return None
    named = re.sub(r"<function (\w+)>", r"\1", signature.replace("<factory>", "..."))
    return named.removeprefix("(*args, **kwargs)"), returned


def shown_text(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Removes Python's own text of the fields of named tuples."""
    if lines and lines[0].startswith("Alias for field number"):
        lines.clear()


def is_skipped(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Returns True for the method by which ``print(model)`` describes a part, and for methods of scikit-learn."""
    modules = (str(getattr(value, "__module__", "")), type(value).__module__)
    return True if name == "extra_repr" or any(module.startswith("sklearn.") for module in modules) else None


# what the sidebar's list of all pages says of a page of the reference, to itself and to the others of its folder
ITSELF = '<li class="toctree-l2 current{}"><a class="current reference internal" href="#">'
ANOTHER = '<li class="toctree-l2"><a class="reference internal" href="{}.html">'
listed: dict[str, str] = {}  # the list of the pages of a folder, which marks none of them


def share_list(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Gives all pages of the reference one list for the sidebar: to make it for each took almost half of a build."""
    folder, _, name = page.rpartition("/")
    own = context["toctree"]

    def shared(**options: Any) -> str:
        if folder not in listed:
            listed[folder] = own(**options).replace(ITSELF.format(""), ANOTHER.format(name))
        return listed[folder]

    if folder == "api":
        context["toctree"] = shared


def mark_page(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Marks a page of the reference in that list, as the theme marks the others in theirs."""
    folder, _, name = page.rpartition("/")
    if folder == "api":
        tree = context["furo_navigation_tree"].replace(" current-page", "")
        tree = tree.replace(ANOTHER.format(name), ITSELF.format(" current-page"))
        context["furo_navigation_tree"] = tree


def setup(app: Sphinx) -> None:
    """Connects what changes the reference and its sidebar; shows HAProxy's language, unknown to Pygments, as text."""
    app.add_lexer("haproxy", TextLexer)
    app.connect("autodoc-process-signature", shown_signature)
    app.connect("autodoc-process-docstring", shown_text)
    app.connect("autodoc-skip-member", is_skipped)
    app.connect("html-page-context", share_list, priority=400)  # before and after the theme's own, at 500
    app.connect("html-page-context", mark_page, priority=600)
