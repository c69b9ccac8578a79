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
templates_path = ["_templates"]
# Every name that is marked as one of ours has to be documented. Those of other packages, and types that only
# annotations have, are not looked for.
nitpicky = True
nitpick_ignore_regex = [
    ("py:.*", r"(collections|numpy|os|pytensor)\..*|ArrayLike"),
    ("py:class", r"pytensor_rope\.(base\.Tensor|backends\._Device|prompts\.Prompts)"),
    ("py:class", r"pytensor_rope\.checkpoints\.base\.Checkpoint"),
]

myst_enable_extensions = ["deflist", "colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_member_order = "bysource"
# A class's page has its methods whole (_templates), and no table of them.
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = "pytensor-rope"
html_static_path = ["_static"]
html_css_files = ["layout.css"]
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
# Pages that have no others below them.
html_sidebars = {name: [] for name in ("index", "getting_started", "concepts", "contributing")}
