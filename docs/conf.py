"""Sphinx configuration of the documentation: ``make docs`` writes it to ``build/site``. No page needs a network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import heedful  # noqa: E402

project = "Heedful"
author = "The Heedful authors"
copyright = "Heedful, Apache-2.0"
version = release = heedful.__version__

extensions = [
    "sphinx_gallery.gen_gallery",
    "myst_parser",
    "parts.equations",
    "parts.ours",
    "parts.pictures",
    "parts.notebooks",
]
exclude_patterns = ["tour", "parts", "static"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
html_math_renderer = "mathml"
highlight_language = "text"  # of blocks that name none: commands, mostly

sphinx_gallery_conf = {
    "examples_dirs": "tour",
    "gallery_dirs": "transformer",
    "filename_pattern": r"\.py$",  # every page is executed
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("parts.pictures.scrape",),
    "capture_repr": ("_repr_html_",),
    "ignore_repr_types": r"\bPicture\b",  # the scraper shows them
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
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#3a3fb0", "color-brand-content": "#3a3fb0"},
    "dark_css_variables": {"color-brand-primary": "#ffc35c", "color-brand-content": "#ffc35c"},
}
