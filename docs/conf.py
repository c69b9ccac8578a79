"""Sphinx configuration."""

import pytensor_rope

project = "pytensor-rope"
author = "pytensor-rope maintainers"
project_copyright = "pytensor-rope maintainers"
version = release = pytensor_rope.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_member_order = "bysource"
# numpydoc lists a class's methods; autosummary would write a page for each of them.
numpydoc_class_members_toctree = False
numpydoc_show_inherited_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "pytensor-rope"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
