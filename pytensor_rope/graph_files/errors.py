"""The one error of graph files."""


class GraphFileError(ValueError):
    """
    A graph that can't be kept in a file, or a file that can't be loaded.

    Raised by :func:`save_graph` for an op or a value that the format doesn't hold, and by
    :func:`load_graph` for a file that is damaged, not a graph's, written by a newer version, or that asks
    for something that is not allowed. Nothing has run then.
    """
