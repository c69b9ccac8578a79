"""
Graph files made to do harm: tables of mutations of good files, each by a name that says what is wrong.

Unless the damage is to the file itself, the digest is right: it is no secret, and must not be what protects.
"""

import io
import json
import pickle
import random
import struct
import zipfile
from copy import deepcopy

import numpy as np
import safetensors.numpy

from pytensor_rope.graph_files.archive import digest

FOREIGN_CLASSES = (
    *("os.system", "os.popen", "os.execv", "os.remove", "posix.system", "subprocess.Popen", "subprocess.run"),
    *("builtins.eval", "builtins.exec", "builtins.open", "builtins.__import__", "builtins.getattr"),
    *("functools.partial", "functools.reduce", "importlib.import_module", "operator.attrgetter"),
    *("operator.methodcaller", "pickle.loads", "marshal.loads", "ctypes.CDLL", "code.interact", "pty.spawn"),
    *(
        "types.FunctionType",
        "types.CodeType",
        "runpy.run_path",
        "shutil.rmtree",
        "webbrowser.open",
        "timeit.timeit",
    ),
    *("numpy.load", "numpy.fromfile", "numpy.f2py.compile", "cloudpickle.loads", "antigravity.fly", "this.s"),
    # Modules that are allowed, and what else they hold.
    *("pytensor.tensor.basic.os.system", "pytensor.tensor.basic.builtins", "pytensor.tensor.basic.as_tensor"),
    *("pytensor.tensor.basic.__builtins__", "pytensor.tensor.basic.__loader__", "pytensor.tensor.basic.np"),
    *("pytensor.tensor.shape.Reshape.__init__", "pytensor.tensor.shape.Reshape.make_node"),
    *("pytensor.tensor.shape.__dict__", "pytensor.tensor.math.dot", "pytensor.tensor.math.partial"),
    *("pytensor_rope.base.LayerOp", "pytensor_rope.base.Layer", "pytensor_rope.backends.function"),
    *(
        "pytensor_rope.atomic_files.write_atomically",
        "pytensor_rope.norm.rms_norm",
        "pytensor_rope.stream.Stream",
    ),
    # Ops that keep Python functions, C sources or files.
    *("pytensor.compile.ops.FromFunctionOp", "pytensor.compile.ops.as_op", "pytensor.compile.ops.wrap_py"),
    *("pytensor.printing.Print", "pytensor.printing.hex_digest", "pytensor.link.c.op.ExternalCOp"),
    *(
        "pytensor.link.jax.ops.JAXOp",
        "pytensor.tensor.optimize.MinimizeOp",
        "pytensor.tensor.optimize.RootOp",
    ),
    *(
        "pytensor.tensor.io.LoadFromDisk",
        "pytensor.misc.pkl_utils.load",
        "pytensor.configparser.change_flags",
    ),
    *("pytensor.compile.builders.SymbolicOp", "pytensor.tensor.blockwise.Blockwise", "pytensor.scan.op.Scan"),
    *(
        "pytensor.tensor.random.op.RandomVariable",
        "pytensor.graph.op.Op",
        "pytensor.compile.debug.debugmode.X",
    ),
    *(
        "pytensor_ml.checkpoint.load_state",
        "pytensor_ml.layers.linear.Linear",
        "pytensor_ml.serialize.base.resolve_class",
    ),
    # What is no path at all.
    *(
        "",
        ".",
        "..",
        "os",
        "system",
        "../../evil",
        "/etc/passwd",
        "pytensor.tensor.shape.Reshape ",
        "PYTENSOR.X",
    ),
    *(
        "pytensor.tensor.shape.Reshape\0",
        "__main__.Evil",
        "pytensor..shape",
        "x" * 5000,
        "пytensor.tensor.shape.Shape",
    ),
)
NO_STRINGS = (None, 0, True, 1.5, [], ["os.system"], {}, {"__tuple__": ["os", "system"]})
# What a prop may not be, whichever it is.
BAD_PROPS = (
    *({}, [], [1], {"__reduce__": ["os.system", "id"]}, {"__tuple__": "abc"}, {"__tuple__": [1], "x": 1}),
    *({"__slice__": [1, 2]}, {"__slice__": {}}, {"__tuple__": [[1]]}, {"__tuple__": [0] * 5000}),
    *(
        10**30,
        -(10**30),
        "__import__('os')",
        1e400,
        {"__float__": "nan"},
        {"family": "leaf", "type": "os.system"},
    ),
)
TYPES = (
    *(
        None,
        "tensor",
        {},
        {"kind": "tensor"},
        {"kind": "pickle"},
        {"kind": ["tensor"]},
        {"kind": "sparse", "dtype": "float32"},
    ),
    *(
        {"kind": "tensor", "dtype": dtype, "shape": [2]}
        for dtype in ("object", "O", "V8", "S4", "str", None, ["f"], "float32,float32")
    ),
    *(
        {"kind": "tensor", "dtype": "float32", "shape": shape}
        for shape in (
            *(
                None,
                "ab",
                {"0": 1},
                [-1],
                [1.5],
                ["2"],
                [True],
                [2**60],
                [10**30],
                [[2]],
                [1] * 33,
                [1] * 10_000,
            ),
        )
    ),
    {"kind": "tensor", "dtype": "float32", "shape": [2], "extra": 1},
    {"kind": "scalar", "dtype": "object"},
    {"kind": "random_generator", "state": "x"},
)
REFERENCES = (
    *(
        None,
        0,
        [],
        {},
        "input",
        {"input": -1},
        {"input": 99},
        {"input": "0"},
        {"input": True},
        {"input": 0.0},
    ),
    *(
        {"node": 0},
        {"node": 0, "out": 1},
        {"node": 0, "out": -1},
        {"node": -1, "out": 0},
        {"node": 99, "out": 0},
    ),
    *(
        {"node": True, "out": 0},
        {"node": 0, "out": 0, "x": 1},
        {"input": 0, "node": 0},
        {"pickle": "gASVAAAA"},
    ),
    *({"const": None}, {"const": {}}, {"const": {"type": {"kind": "none"}, "value": 1}}, {"shared": "os"}),
)
VECTOR = {"kind": "tensor", "dtype": "float32", "shape": [2]}
CONSTANTS = (
    *(
        {"type": VECTOR, "value": value}
        for value in (
            *(
                None,
                1,
                "12",
                [1],
                [1, 2, 3],
                [[1], [2]],
                [1, "2"],
                [1, None],
                [1, {}],
                [1, {"__float__": "__import__"}],
            ),
            *(
                [1, {"__float__": 1}],
                [1, True],
                [1, 10**30],
                {"__array__": [1, 2]},
                [1, [2]],
                {"0": 1, "1": 2},
            ),
        )
    ),
    {"type": {"kind": "tensor", "dtype": "int8", "shape": [1]}, "value": [300]},
    {"type": {"kind": "tensor", "dtype": "uint8", "shape": [1]}, "value": [-1]},
    {"type": {"kind": "tensor", "dtype": "bool", "shape": [1]}, "value": [1]},
    {"type": {"kind": "tensor", "dtype": "int32", "shape": [1]}, "value": [1.0]},
    {"type": {"kind": "tensor", "dtype": "complex64", "shape": [1]}, "value": [1.0]},
    {"type": {"kind": "tensor", "dtype": "float32", "shape": [None]}, "value": [1.0]},
    {"type": {"kind": "tensor", "dtype": "float32", "shape": [2**40, 2**40]}, "value": []},
    {"type": {"kind": "tensor", "dtype": "float32", "shape": [2**39]}, "tensor": "norm_weight"},
    {"type": VECTOR, "tensor": "../../etc/passwd"},
    {"type": VECTOR, "tensor": ["norm_weight"]},
    {"type": VECTOR, "tensor": "norm_weight", "value": [1, 2]},
    {"type": {"kind": "random_generator"}, "value": 0},
)
VERSIONS = (2, 10**9, 0, -1, True, "1", 1.5, None, [1], {})
LEAVES = (
    *(None, [], {}, {"kind": "input"}, {"kind": "pickle", "name": "x", "value": "gASV"}),
    *(
        {"kind": "shared", "name": "x", "value": value}
        for value in (None, 1, "missing", ["x"], "/etc/passwd")
    ),
    *({"kind": "input", "name": name, "value": None} for name in (1, [], {}, "x" * 5000)),
    *(
        {"kind": "generator", "name": "x", "value": value}
        for value in (None, "MT19937", {}, {"bit_generator": "os"})
    ),
    *(
        {"kind": "generator", "name": "x", "value": {"bit_generator": "MT19937", "state": state}}
        for state in (
            {"key": {"__array__": [0] * 624, "dtype": "uint32"}, "pos": 625},
            {"key": {"__array__": [0] * 624, "dtype": "V1000000000"}, "pos": 0},
            {"key": {"__array__": [0], "dtype": "object"}, "pos": 0},
            {"key": [0] * 624, "pos": 0},
        )
    ),
    {"kind": "generator", "name": "x", "value": {"bit_generator": "Generator", "state": {}}},
    {"kind": "input", "name": "x", "value": "os.system"},
    {"kind": ["input"], "name": "x", "value": None},
)


def archive_of(description, weights, sign=True):
    """Return a file of a description and the bytes of its weights."""
    if sign:
        description = description | {"digest": digest(description, weights)}
    return zip_of({"graph.json": json.dumps(description).encode(), "weights.safetensors": weights})


def zip_of(parts, compression=zipfile.ZIP_STORED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def parts_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def replaced(description, path, value):
    """Return a copy of a description with one of its parts replaced."""
    changed = deepcopy(description)
    *parents, last = path
    place = changed
    for key in parents:
        place = place[key]
    place[last] = value
    return changed


def ops_in(graph, path):
    """Yield the place of each op in a graph, and inside these."""
    for i, node in enumerate(graph["nodes"]):
        yield from _within(node["op"], (*path, "nodes", i, "op"))


def _within(op, path):
    yield path, op
    for key in ("scalar_op", "core_op"):
        if key in op:
            yield from _within(op[key], (*path, key))
    if "inner" in op:
        yield from ops_in(op["inner"], (*path, "inner"))


def corpus(good):
    """Yield names and contents of hostile files, made from good ones by name."""
    descriptions, weights = {}, {}
    for name, data in good.items():
        parts = parts_of(data)
        descriptions[name], weights[name] = json.loads(parts["graph.json"]), parts["weights.safetensors"]

    def mutants(of, path, values):
        for i, value in enumerate(values):
            changed = replaced(descriptions[of], path, value)
            yield f"{of}:{'.'.join(map(str, path))}:{i}:{value!r:.60}", archive_of(changed, weights[of])

    first = ("graph", "nodes", 0)
    yield from mutants("norm", (*first, "op", "type"), (*FOREIGN_CLASSES, *NO_STRINGS))
    yield from mutants(
        "inner", (*_first_with(descriptions["inner"], "inner_graph"), "type"), FOREIGN_CLASSES[:40]
    )
    yield from mutants(
        "check", (*_first_with(descriptions["check"], "pytensor_rope.check"), "type"), FOREIGN_CLASSES[:20]
    )
    yield from mutants(
        "check",
        (*_first_with(descriptions["check"], "pytensor_rope.check"), "exception"),
        (
            "SystemExit",
            "KeyboardInterrupt",
            "eval",
            "os.system",
            "BaseException",
            None,
            1,
            ["ValueError"],
            "ValueError.__init__",
        ),
    )
    yield from mutants("elemwise", (*first, "op", "scalar_op", "type"), (*FOREIGN_CLASSES[:20], *NO_STRINGS))
    yield from mutants(
        "elemwise",
        (*first, "op", "scalar_op"),
        (
            {"family": "leaf", "type": "os.system", "props": {}},
            {"family": "scan"},
            None,
            {"family": "scalar_cast", "dtype": "object"},
        ),
    )
    yield from mutants(
        "norm",
        (*first, "op", "family"),
        (
            "pickle",
            "pytensor_rope.node",
            "pytensor_rope.added",
            None,
            ["leaf"],
            {},
            "scan",
            "blockwise",
            "careduce",
        ),
    )
    tried = set()
    for of in ("norm", "reshape", "rotary", "decoder"):
        for path, op in ops_in(descriptions[of]["graph"], ("graph",)):
            for prop in op.get("props", ()):
                if (op["type"], prop) not in tried:
                    tried.add((op["type"], prop))
                    yield from mutants(of, (*path, "props", prop), BAD_PROPS)
    op = descriptions["norm"]["graph"]["nodes"][0]["op"]
    yield from mutants(
        "norm",
        (*first, "op", "props"),
        (
            None,
            [],
            {},
            op["props"] | {"input_types": []},
            op["props"] | {"inline": True},
            {"__class__": "os"},
        ),
    )
    yield from mutants("norm", ("graph", "inputs", 0), TYPES)
    yield from mutants(
        "norm", (*first, "outputs", 0), (*TYPES, VECTOR, VECTOR | {"dtype": "float64"}, {"kind": "none"})
    )
    yield from mutants("norm", (*first, "outputs"), (None, [], {}, [VECTOR] * 2, "x"))
    for path in ((*first, "inputs", 0), ("graph", "outputs", 0)):
        yield from mutants("norm", path, REFERENCES)
    yield from mutants(
        "norm", (*first, "inputs", 0), ({"node": 0, "out": 0}, {"node": 1, "out": 0})
    )  # cycles
    yield from mutants("norm", (*first, "inputs", 0), [{"const": constant} for constant in CONSTANTS])
    yield from mutants("norm", (*first, "inputs"), (None, [], {}, [{"input": 0}] * 5, "x"))
    yield from mutants("norm", ("leaves", 0), LEAVES)
    yield from mutants("norm", ("leaves", 1), LEAVES)
    yield from mutants("norm", ("format_version",), VERSIONS)
    yield from mutants("norm", ("format",), (None, 1, "", "pytensor-rope stream", ["pytensor-rope graph"]))
    yield from mutants("norm", ("output_names",), (None, [], [1], ["a", "b"], {"0": "y"}))
    for key in ("leaves", "graph"):
        yield from mutants("norm", (key,), (None, [], {}, "x", 1))
    for key in descriptions["norm"]:
        changed = {name: value for name, value in descriptions["norm"].items() if name != key}
        yield f"norm:without {key}", archive_of(changed, weights["norm"], sign=key != "digest")
    yield "norm:one key more", archive_of(descriptions["norm"] | {"__reduce__": "os.system"}, weights["norm"])
    scan = _first_with(descriptions["scan"], "scan")
    for key, values in {
        "truncate_gradient": (None, "x", 1.5, -(10**30), []),
        "inner": (None, [], {}, {"inputs": [], "nodes": [], "outputs": []}),
        "info": (None, {}, []),
        "name": (1, [], {}),
    }.items():
        yield from mutants("scan", (*scan, key), values)
    for field in descriptions["scan"]["graph"]:
        yield from mutants("scan", ("graph", field), (None, {}, 1))
    for field, value in _at(descriptions["scan"], scan)["info"].items():
        yield from mutants(
            "scan", (*scan, "info", field), (None, "x", 10**9, -1, {"__tuple__": [1]}, [], 1.5)
        )
        if isinstance(value, int) and not isinstance(value, bool):
            yield from mutants("scan", (*scan, "info", field), (value + 1, value + 1000))
    blockwise = _first_with(descriptions["blockwise"], "pytensor_rope.blockwise")
    yield from mutants(
        "blockwise",
        (*blockwise, "signature"),
        (None, 1, "", "()", "(a" * 1000, "__import__('os')", "(a),(b)->(c),(d)"),
    )
    yield from mutants(
        "blockwise", (*blockwise, "core_op"), (None, {}, {"family": "leaf", "type": "os.system", "props": {}})
    )
    yield from _shapes_that_contradict(descriptions, weights)
    yield from _nested(descriptions["inner"], weights["inner"])
    yield from _bad_weights(descriptions["norm"], weights["norm"])
    yield from _bad_json(descriptions["norm"], weights["norm"])
    yield from _bad_archives(good["norm"])


def _first_with(description, family):
    return next(path for path, op in ops_in(description["graph"], ("graph",)) if op["family"] == family)


def _at(description, path):
    for key in path:
        description = description[key]
    return description


def _shapes_that_contradict(descriptions, weights):
    """Yield static shapes that the op itself denies."""
    for of, shape in (("reshape", [7, 7]), ("norm", [None, 3])):
        last = len(descriptions[of]["graph"]["nodes"]) - 1
        path = ("graph", "nodes", last, "outputs", 0, "shape")
        yield f"{of}:contradicting shape", archive_of(replaced(descriptions[of], path, shape), weights[of])
    path = ("graph", "nodes", 0)
    wide = {"kind": "tensor", "dtype": "int32", "shape": [2**33]}
    indices = {"family": "leaf", "type": "pytensor_rope.base.AxisIndices", "props": {"axis": 0}}
    node = {"op": indices, "inputs": [{"input": 0}], "outputs": [wide]}
    changed = replaced(replaced(descriptions["norm"], path, node), ("graph", "inputs", 0), wide)
    yield "norm:2**33 indices", archive_of(changed, weights["norm"])
    turned = descriptions["rotary"]
    angles = turned["graph"]["nodes"][0]
    assert angles["op"]["type"].endswith("Angles")
    changed = deepcopy(turned)
    changed["graph"]["nodes"] = [
        replaced(replaced(angles, ("op", "props", "rotary_dim"), 4096), ("op", "props", "base"), 100.5 + i)
        | {"outputs": [replaced(of_output, ("shape", -1), 2048) for of_output in angles["outputs"]]}
        for i in range(40)
    ] + turned["graph"]["nodes"][1:]
    yield "rotary:frequencies without end", archive_of(changed, weights["rotary"])
    long_split = {
        "family": "leaf",
        "type": "pytensor.tensor.basic.Split",
        "props": {"len_splits": 10**9, "axis": 0},
    }
    path = ("graph", "nodes", 0, "op")
    yield (
        "norm:a split in 10**9",
        archive_of(replaced(descriptions["norm"], path, long_split), weights["norm"]),
    )


def _nested(description, weights):
    """Yield graphs inside ops inside graphs, without end."""
    path = _first_with(description, "inner_graph")
    op = _at(description, path)
    for depth in (20, 60):
        deep = deepcopy(op)
        for _ in range(depth):
            outer = deepcopy(op)
            outer["inner"]["nodes"][0] = {
                "op": deep,
                "inputs": [{"input": i} for i in range(len(op["inner"]["inputs"]))],
                "outputs": op["inner"]["nodes"][0]["outputs"],
            }
            deep = outer
        yield f"inner:{depth} deep", archive_of(replaced(description, path, deep), weights)
    many = [description["graph"]["nodes"][0]] * 3
    core = {"family": "pytensor_rope.blockwise", "core_op": op, "core_inputs": [], "signature": "()->()"}
    for _ in range(50):
        core = core | {"core_op": core}
    yield "inner:batched without end", archive_of(replaced(description, path, core), weights)
    path = ("graph", "nodes")
    yield "inner:too many nodes", archive_of(replaced(description, path, many * 7_000), weights)


def _bad_weights(description, weights):
    size = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + size])
    tensor = next(name for name in header if name != "__metadata__")

    def encoded(changed, data=weights[8 + size :], length=None):
        text = json.dumps(changed).encode()
        return (len(text) if length is None else length).to_bytes(8, "little") + text + data

    made = {
        "nothing": b"",
        "no header": weights[:8],
        "a header of 2**63 bytes": encoded(header, length=2**63),
        "a header of 99 MB": encoded(header, length=99_000_000),
        "a pickle": pickle.dumps(np.zeros(2)),
        "an npy file of objects": _object_array(),
        "truncated": weights[:-3],
        "longer": weights + b"\0" * 9,
        "another name": encoded({"other": header[tensor]}),
        "another dtype": encoded({tensor: header[tensor] | {"dtype": "I32"}}),
        "an unknown dtype": encoded({tensor: header[tensor] | {"dtype": "OBJECT"}}),
        "bfloat16": encoded({tensor: header[tensor] | {"dtype": "BF16"}}),
        "a huge shape": encoded({tensor: header[tensor] | {"shape": [2**62, 4]}}),
        "a negative shape": encoded({tensor: header[tensor] | {"shape": [-2]}}),
        "offsets outside": encoded({tensor: header[tensor] | {"data_offsets": [0, 2**40]}}),
        "another shape": safetensors.numpy.save({tensor: np.zeros((2, 2), "float32")}),
        "another size": safetensors.numpy.save({tensor: np.zeros(5, "float32")}),
        "float64": safetensors.numpy.save({tensor: np.zeros(2)}),
        "no tensors": safetensors.numpy.save({}),
    }
    for name, content in made.items():
        yield f"weights:{name}", archive_of(description, content)


def _object_array():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def _bad_json(description, weights):
    signed = json.dumps(description | {"digest": digest(description, weights)})
    made = {
        "empty": b"",
        "null": b"null",
        "a list": b"[]",
        "a number": b"1e999",
        "a pickle": pickle.dumps({"format": "pytensor-rope graph"}),
        "100,000 lists deep": b"[" * 100_000,
        "100,000 objects deep": b'{"a":' * 100_000,
        "a number of a million digits": b'{"format": ' + b"9" * 1_000_000 + b"}",
        "NaN": signed.replace('"format_version": 1', '"format_version": NaN').encode(),
        "Infinity": signed.replace('"format_version": 1', '"format_version": Infinity').encode(),
        "a key twice": signed.replace(
            '"format_version": 1', '"format_version": 1, "format_version": 1'
        ).encode(),
        "UTF-16": signed.encode("utf-16"),
        "no UTF-8": b"\xff\xfe" + signed.encode(),
        "truncated": signed[: len(signed) // 2].encode(),
        "a surrogate": signed.replace('"norm_output"', '"\\ud800"').encode(),
        "more after it": signed.encode() + b"{}",
        "Python": b"__import__('os').system('id')",
        "YAML": b"!!python/object/apply:os.system ['id']",
    }
    for name, content in made.items():
        yield f"json:{name}", zip_of({"graph.json": content, "weights.safetensors": weights})


def _bad_archives(data):
    parts = parts_of(data)
    rng = random.Random(0)
    for fraction in range(1, 20):
        yield f"archive:the first {fraction}/20", data[: len(data) * fraction // 20]
    for cut in (1, 2, 10, 22, 50):
        yield f"archive:without its last {cut} bytes", data[:-cut]
    start = data.index(b'{\n "format"')
    inside = [
        *range(start, start + len(parts["graph.json"])),
        *range(data.index(parts["weights.safetensors"]), data.index(parts["weights.safetensors"]) + 90),
    ]
    for place in rng.sample(inside, 60):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        yield f"archive:a bit flipped at {place}", bytes(flipped)
    for name in (
        "../graph.json",
        "/graph.json",
        "graph.json/",
        "a/../graph.json",
        "GRAPH.JSON",
        "C:\\graph.json",
        "__main__.py",
    ):
        yield (
            f"archive:named {name!r}",
            zip_of({name: parts["graph.json"], "weights.safetensors": parts["weights.safetensors"]}),
        )
        yield f"archive:with {name!r} too", zip_of({name: b"", **parts})
    yield "archive:compressed", zip_of(parts, zipfile.ZIP_DEFLATED)
    bomb = b"[" + b"0," * 10_000_000 + b"0]"
    yield "archive:a bomb", zip_of(parts | {"graph.json": bomb}, zipfile.ZIP_DEFLATED)
    yield (
        "archive:a bomb of weights",
        zip_of(parts | {"weights.safetensors": bytes(30_000_000)}, zipfile.ZIP_DEFLATED),
    )
    yield "archive:20,000 parts", zip_of({**parts, **{f"{i}": b"" for i in range(20_000)}})
    yield "archive:bzip2", zip_of(parts, zipfile.ZIP_BZIP2)
    yield "archive:one part", zip_of({"graph.json": parts["graph.json"]})
    yield "archive:no parts", zip_of({})
    yield "archive:graph.json twice", _twice(parts)
    yield "archive:a name with a null byte", data.replace(b"graph.json", b"graph.js\0n")
    yield "archive:a comment", data[:-2] + struct.pack("<H", 4) + b"evil"
    yield "archive:encrypted", _flagged(data, 1)
    yield "archive:a length of 4 GB", _with_length(data, 0xFFFFFFFE)
    yield "archive:another length", _with_length(data, len(parts["graph.json"]) // 2)
    yield "archive:an offset outside", data[:-6] + struct.pack("<L", 0xFFFFFFF0) + data[-2:]
    yield "archive:a directory of 4 GB", data[:-10] + struct.pack("<L", 0xFFFFFFF0) + data[-6:]
    yield "archive:a zip64 record of 2**62 bytes", _zip64(data, 2, 2**62)
    yield "archive:a zip64 record of 2**62 parts", _zip64(data, 2**62, 120)
    for name, content in {
        "nothing": b"",
        "a pickle": pickle.dumps([1, 2]),
        "an end alone": b"PK\x05\x06" + bytes(18),
        "noise": rng.randbytes(5000),
        "zeros": bytes(5000),
        "an end repeated": (b"PK\x05\x06" + bytes(18)) * 1000,
        "an ELF": b"\x7fELF" + bytes(100),
    }.items():
        yield f"file:{name}", content


def _twice(parts):
    buffer = io.BytesIO()
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("graph.json", parts["graph.json"])
    return buffer.getvalue()


def _flagged(data, flags):
    changed = bytearray(data)
    changed[6] |= flags
    directory = data.index(b"PK\x01\x02")
    changed[directory + 8] |= flags
    return bytes(changed)


def _with_length(data, length):
    """Return a file whose directory gives another length for the first part."""
    changed = bytearray(data)
    directory = data.index(b"PK\x01\x02")
    changed[directory + 20 : directory + 28] = struct.pack("<LL", length, length)
    return bytes(changed)


def _zip64(data, n_part, directory_size):
    record = b"PK\x06\x06" + struct.pack("<QHHLLQQQQ", 44, 45, 45, 0, 0, n_part, n_part, directory_size, 0)
    locator = b"PK\x06\x07" + struct.pack("<LQL", 0, len(data) - 22, 1)
    return data[:-22] + record + locator + data[-22:]
