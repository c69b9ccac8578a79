"""
Graphs in files: a description that can be read, with weights beside it, loaded without running code.

A file is a zip archive of two parts, neither compressed:

- ``graph.json``: ``format``, "pytensor-rope graph"; ``format_version``, an integer, raised when an older
  reader would misread the file; ``written_by``, versions, for information; ``leaves``, what the graph starts
  from, inputs, shared variables and large constants, with their names; ``graph``, the nodes in order, as
  pytensor-ml's serializer describes them; ``output_names``; ``digest``, SHA-256 of all of the above and of
  the weights.
- ``weights.safetensors``: the values of shared variables and large constants.

See ``docs/graph_files.md`` for what each field holds.
"""

from pytensor_rope.graph_files.errors import GraphFileError
from pytensor_rope.graph_files.files import load_graph, save_graph

__all__ = ["GraphFileError", "load_graph", "save_graph"]
