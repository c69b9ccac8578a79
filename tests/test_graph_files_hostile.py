"""Graph files made to do harm: each gets one error, and nothing runs."""

import sys
import time
import zipfile

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from hostile_graphs import archive_of, corpus, parts_of, replaced
from small_decoder import CONFIG

pytest.importorskip("pytensor_ml")
from pytensor.compile.builders import OpFromGraph
from pytensor.raise_op import Assert

from pytensor_rope import Decoder, GraphFileError, RMSNorm, RotaryEmbedding, load_graph, save_graph
from pytensor_rope.graph_files.archive import read_archive

HARMLESS = (
    "pytensor",
    "pytensor_rope",
    "pytensor_ml",
    "numpy",
    "scipy",
    "safetensors",
    "zipfile",
    "encodings",
)
FORBIDDEN = (
    "os.",
    "subprocess.",
    "ctypes.",
    "socket.",
    "marshal.",
    "pickle.",
    "shutil.",
    "code.",
    "webbrowser.",
)


class Canary:
    """Notes what a process does that loading a file must not do."""

    def __init__(self):
        self.watching = False
        self.events = []
        sys.addaudithook(self._hear)

    def _hear(self, event, args):
        if not self.watching:
            return
        if event in ("exec", "compile", "builtins.input") or event.startswith(FORBIDDEN):
            self.events.append((event, args))
        elif event == "import" and str(args[0]).partition(".")[0] not in HARMLESS:
            self.events.append((event, args[:1]))
        elif event == "open" and (args[1] not in ("r", "rb", None) or (args[2] or 0) & 3):
            self.events.append((event, args))

    def __enter__(self):
        self.events.clear()
        self.modules = set(sys.modules)
        self.watching = True
        return self

    def __exit__(self, *error):
        self.watching = False
        self.new_modules = {m for m in set(sys.modules) - self.modules if m.partition(".")[0] not in HARMLESS}


@pytest.fixture(scope="module")
def canary():
    return Canary()


def graphs():
    """Return small graphs that between them have every kind of op."""
    x = pt.tensor("x", shape=(None, 2), dtype="float32")
    s = pt.tensor3("s", dtype="float32")
    norm = RMSNorm("norm", n_in=2)
    norm.weight.set_value(np.float32([1, 2]))
    total = pytensor.scan(
        lambda a, b: a + b, sequences=[x], outputs_info=[pt.zeros(2, dtype="float32")], return_updates=False
    )
    ids = pt.tensor("ids", shape=(1, 2), dtype="int32")
    return {
        "norm": ([x], norm(x)),
        "inner": ([x], OpFromGraph([x], [x * 2])(x)),
        "check": ([x], Assert("no rows")(x, x.shape[0] > 0)),
        "elemwise": ([x], pt.exp(x)),
        "reshape": ([x], x.reshape((3, 4))),
        "rotary": ([x], RotaryEmbedding(head_dim=2)(x, np.arange(3))),
        "scan": ([x], total),
        "blockwise": ([s], pt.linalg.cholesky(s)),
        "decoder": ([ids], Decoder(config=CONFIG, seed=0)(ids)),
    }


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    with pytensor.config.change_flags(floatX="float32"):
        made = graphs()
    files = {}
    for name, (inputs, output) in made.items():
        save_graph(folder / name, inputs, output)
        load_graph(folder / name)  # what is imported on first use is imported now
        files[name] = (folder / name).read_bytes()
    return files


def test_no_hostile_file_runs_code_hangs_or_loads(good, canary, tmp_path):
    path = tmp_path / "hostile"
    count, failures, slowest = 0, [], (0.0, "")
    for name, content in corpus(good):
        count += 1
        path.write_bytes(content)
        started = time.process_time()
        with canary:
            try:
                load_graph(path)
                outcome = "loads"
            except GraphFileError as error:
                outcome = None if str(path) in str(error) and len(str(error)) < 1500 else str(error)
            except BaseException as error:
                outcome = repr(error)
        slowest = max(slowest, (time.process_time() - started, name))
        if outcome or canary.events or canary.new_modules:
            failures.append((name, outcome, canary.events[:3], canary.new_modules))
    assert not failures, failures[:20]
    assert count >= 200
    assert slowest[0] < 60, slowest  # a hang, not a slow machine


def test_the_canary_hears_what_it_should(canary, tmp_path):
    import importlib
    import pickle

    def heard(action):
        with canary:
            action()
        return {event for event, _ in canary.events} | canary.new_modules

    sys.modules.pop("this", None)
    assert "exec" in heard(lambda: eval("1 + 1"))
    assert "this" in heard(lambda: importlib.import_module("this"))
    sys.modules.pop("this")
    assert "import" in heard(lambda: __import__("this"))
    assert "os.system" in heard(lambda: __import__("os").system("true"))
    assert "pickle.find_class" in heard(lambda: pickle.loads(pickle.dumps(Canary)))
    assert "open" in heard(lambda: (tmp_path / "new").write_bytes(b""))
    assert heard(lambda: __import__("subprocess").run(["true"])) & {"subprocess.Popen", "os.posix_spawn"}
    assert heard(lambda: (tmp_path / "new").read_bytes()) == set()


def test_a_flipped_bit_is_refused_or_makes_no_difference(good, tmp_path):
    """Some bits of an archive mean nothing, such as those of its date."""
    data = good["norm"]
    path = tmp_path / "flipped"
    path.write_bytes(data)
    want_description, want_tensors = read_archive(path)
    rng = np.random.default_rng(0)
    refused = 0
    for place in rng.integers(0, len(data), 300):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            description, tensors = read_archive(path)
        except GraphFileError:
            refused += 1
            continue
        assert description == want_description
        assert all(np.array_equal(tensors[name], want_tensors[name]) for name in want_tensors)
    assert refused > 250


def test_nothing_is_computed_while_a_graph_is_built(tmp_path):
    """PyTensor folds constant shapes at once, and these would take all memory."""
    n = pt.lscalar("n")
    x = pt.vector("x", dtype="float32")
    save_graph(tmp_path / "small", [x, n], x.reshape((pt.arange(n).sum(), 2)))
    parts = parts_of((tmp_path / "small").read_bytes())
    import json

    description = json.loads(parts["graph.json"])
    huge = {"const": {"type": {"kind": "tensor", "dtype": "int64", "shape": []}, "value": 10**12}}
    ranges = [
        i
        for i, node in enumerate(description["graph"]["nodes"])
        if node["op"].get("type", "").endswith("ARange")
    ]
    (arange,) = ranges
    changed = replaced(description, ("graph", "nodes", arange, "inputs", 1), huge)
    (tmp_path / "huge").write_bytes(archive_of(changed, parts["weights.safetensors"]))
    _, (out,) = load_graph(tmp_path / "huge")
    assert out.type.shape == (None, 2)


def test_a_pipe_or_a_folder_is_no_graph(tmp_path):
    import os

    with pytest.raises(OSError):
        load_graph(tmp_path)
    with pytest.raises(OSError):
        load_graph(tmp_path / "missing")
    with pytest.raises(GraphFileError, match="no graph that save_graph wrote"):
        load_graph(os.devnull)
    assert issubclass(GraphFileError, ValueError)
    assert not zipfile.is_zipfile(os.devnull)
