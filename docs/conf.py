"""Sphinx reads the same Markdown that the repository shows, and the docstrings: `sphinx-build -W docs docs/_build`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # document the checkout, not an installed one

from attention_core import __version__ as release

project = "array-attention"
copyright = "the array-attention authors"
version = release

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.xref_missing"]  # links that leave the pages for the repository's files

napoleon_custom_sections = [("Options", "params_style")]
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
default_role = "any"
add_module_names = False

html_theme = "furo"
html_title = "array-attention"
