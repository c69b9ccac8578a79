"""
Small models of many families whose weights are made from their names, and what transformers gives for them.

``data/families.json`` holds for each model its ``config.json`` as transformers writes it, the names of its
tensors with their shape, mean and spread, token ids and the logits after them. ``data/make_families.py``
makes the file.
"""

import json
from pathlib import Path
from zlib import crc32

import numpy as np
from safetensors.numpy import save_file

FAMILIES = json.loads((Path(__file__).parent / "data" / "families.json").read_text())


def write_family(name, directory):
    """Write a model of ``FAMILIES`` as a Hugging Face directory; return its path."""
    return write_checkpoint(directory, FAMILIES[name]["config"], family_weights(name))


def family_weights(name):
    """Return the weights of a model by the names that transformers saves them under."""
    return make_weights(name, FAMILIES[name]["tensors"])


def make_weights(model, tensors):
    """Return the weights of ``model``; ``tensors`` gives the shape, mean and spread of each."""
    return {name: make_weight(model, name, *tensor) for name, tensor in tensors.items()}


def make_weight(model, name, shape, mean, spread):
    """
    Return a float32 tensor of uniform numbers with this mean and standard deviation.

    The bits of PCG64 are the same in every version of NumPy and on every machine, which NumPy doesn't promise
    of its normal numbers. What follows is exact or rounded once.
    """
    bits = np.random.PCG64([crc32(model.encode()), crc32(name.encode())]).random_raw(int(np.prod(shape)))
    symmetric = (bits >> np.uint64(11)) * 2.0**-52 - 1
    return (mean + spread * np.sqrt(3.0) * symmetric).astype("float32").reshape(shape)


def write_checkpoint(directory, config, weights):
    """Write a Hugging Face directory, ``config.json`` and ``model.safetensors``; return its path."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
