"""The docs site: `make docs-site` makes HTML of the pages of this folder and of the docstrings of the public names.

Pages are plain Markdown that reads well without Sphinx. What only the site needs is here and in `_site`: the order of
the pages, the reference (`_site/reference.py`), and comments that become columns (`_site/columns.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from _site.reference import ALIASES  # noqa: E402 (the path above comes first)

from asyncstate import __version__  # noqa: E402

project = "asyncstate"
author = "asyncstate"
copyright = "the authors of asyncstate, Apache License 2.0"
version = release = __version__
language = "en"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_design",
    "sphinx_copybutton",
    "_site.reference",
    "_site.examples",
    "_site.contents",
    "_site.columns",
]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
root_doc = "index"
exclude_patterns = ["_site"]
nitpicky = True
# Types in signatures: of Arrow, numpy, Spark and Python, whose inventories need a network, and type variables. Names
# that the text itself refers to are checked.
nitpick_ignore_regex = [("py:class", ".*")]
myst_enable_extensions = ["colon_fence"]

myst_heading_anchors = 4
myst_links_external_new_tab = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_type_aliases = {name: name for name in ALIASES}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 120
add_module_names = False
toc_object_entries_show_parents = "hide"

# What is printed is not for copying, nor are prompts.
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "asyncstate"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
