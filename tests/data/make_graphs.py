"""Write the golden graph files of the current format version: once for each version, and never again."""

import sys
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt

sys.path.insert(0, str(Path(__file__).parents[1]))

from small_decoder import CONFIG

from pytensor_rope import Decoder, RMSNorm, function, save_graph
from pytensor_rope.graph_files.archive import FORMAT_VERSION

FOLDER = Path(__file__).parent / "graphs"


def graphs():
    rng = np.random.default_rng(0)
    ids = pt.tensor("ids", shape=(1, None), dtype="int32")
    yield "decoder", ids, Decoder(config=CONFIG, seed=0)(ids), rng.integers(0, 61, (1, 7)).astype("int32")
    x = pt.tensor("x", shape=(None, 4), dtype="float32")
    value = rng.standard_normal((5, 4)).astype("float32")
    weight = RMSNorm("norm", n_in=4)
    yield "norm_gradient", x, pt.grad((weight(x) ** 3).sum(), x), value
    start = pt.zeros(4, dtype="float32")
    total = pytensor.scan(lambda a, b: a + 2 * b, sequences=[x], outputs_info=[start], return_updates=False)
    yield "scan", x, total, value


def main():
    if (FOLDER / f"v{FORMAT_VERSION}.npz").exists():
        raise SystemExit(f"The golden files of version {FORMAT_VERSION} are there: they stay as they are.")
    FOLDER.mkdir(exist_ok=True)
    arrays = {}
    for name, variable, output, value in graphs():
        save_graph(FOLDER / f"v{FORMAT_VERSION}_{name}.graph", [variable], output)
        arrays[f"{name}_input"] = value
        arrays[f"{name}_output"] = function([variable], output, backend="c")(value)
    np.savez_compressed(FOLDER / f"v{FORMAT_VERSION}.npz", **arrays)


if __name__ == "__main__":
    main()
