"""
Try an installed package, with no more than it needs itself.

    python tests/smoke.py                    # import it and build graphs, which loads no backend
    python tests/smoke.py --backend numba    # and compile a layer and a stream for one
"""

import argparse
import sys
from importlib.metadata import version
from importlib.resources import files

import numpy as np
import pytensor
import pytensor.tensor as pt

import pytensor_rope as rope

BACKENDS_AND_EXTRAS = {"gguf", "jax", "mlx", "numba", "pymc", "pytensor_ml", "safetensors", "tokenizers"}
CONFIG = rope.DecoderConfig(
    vocab_size=11,
    hidden_size=16,
    intermediate_size=16,
    n_layer=1,
    n_head=2,
    n_kv_head=1,
    head_dim=8,
    context_length=32,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=("c", "numba", "jax", "mlx"), action="append", default=[])
    parser.add_argument("--tag", help="the version that it must be, after a v")
    options = parser.parse_args()
    check_package(options.tag)
    check_graphs()
    for backend in options.backend:
        check_backend(backend)


def check_package(tag: str | None) -> None:
    assert version("pytensor-rope") == rope.__version__
    assert tag in (None, f"v{rope.__version__}"), f"the tag is {tag}, the version {rope.__version__}"
    package = files("pytensor_rope")
    assert package.joinpath("py.typed").is_file()
    assert package.joinpath("lowering", "c", "arrays.h").is_file()
    print(f"pytensor-rope {rope.__version__} in {package}")


def check_graphs() -> None:
    before = BACKENDS_AND_EXTRAS & set(sys.modules)  # what PyTensor loads by itself
    q = pt.tensor("q", shape=(None, 2, None, 8), dtype="float32")
    rotated = rope.rms_norm(rope.rotary_embedding(q, pt.lvector("position_ids")))
    assert rotated.type.dtype == "float32"
    assert pytensor.grad(rotated.sum(), q).type == q.type
    logits = rope.Decoder(config=CONFIG, seed=0)(pt.lmatrix("token_ids"))
    assert logits.type.shape == (None, None, 11)
    loaded = BACKENDS_AND_EXTRAS & set(sys.modules) - before
    assert not loaded, f"building graphs loaded {sorted(loaded)}"
    print("graphs are built, and no backend is loaded")


def check_backend(backend: str) -> None:
    x = pt.tensor("x", shape=(1, 8), dtype="float32")
    f = rope.function([x], rope.rotary_embedding(x, np.arange(5, 6)), backend=backend)
    (turned,) = np.asarray(f(np.ones((1, 8), "float32")))
    angle = 5 * 10_000.0 ** (-np.arange(4) / 4)
    exact = np.concatenate([np.cos(angle) - np.sin(angle), np.cos(angle) + np.sin(angle)])
    np.testing.assert_allclose(turned, exact, atol=1e-6)

    stream = rope.Stream(rope.Decoder(config=CONFIG, seed=0), rope.SinkCache(2, 6), backend=backend)
    tokens = list(stream.generate([1, 2, 3], max_tokens=20))
    assert len(tokens) == 20
    print(f"{backend}: a layer is right, and a stream runs past its window")


if __name__ == "__main__":
    main()
