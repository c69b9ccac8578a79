"""Hugging Face directories: small ones written here, and everything to be refused."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from huggingface_directory import (
    CONFIG,
    HIDDEN,
    INNER,
    ROWS,
    VOCAB,
    architecture,
    describe_small,
    safetensors,
    tensors,
    tokenizer_json,
    write,
    write_files,
)
from safetensors.numpy import save_file

from pytensor_rope.checkpoints import CheckpointError, load_checkpoint
from pytensor_rope.checkpoints.base import Checkpoint, Weight


@pytest.fixture(autouse=True)
def described(monkeypatch):
    return describe_small(monkeypatch)


def by_hand(arrays, dtypes):
    """Return a file of raw bits, with the dtypes that the header shall name."""
    entries, data = {}, b""
    for name, array in arrays.items():
        offsets = [len(data), len(data) + array.nbytes]
        entries[name] = {"dtype": dtypes[name], "shape": list(array.shape), "data_offsets": offsets}
        data += array.tobytes()
    return safetensors(entries, data)


def write_shards(folder, shards, weight_map=None):
    folder.mkdir(exist_ok=True)
    write_files(folder, config=CONFIG)
    for name, arrays in shards.items():
        save_file(arrays, folder / name)
    if weight_map is None:
        weight_map = {name: shard for shard, arrays in shards.items() for name in arrays}
    write_files(folder, **{"model.safetensors.index": {"metadata": {}, "weight_map": weight_map}})
    return folder


def two_shards():
    arrays = tensors()
    return {
        "a.safetensors": {name: arrays[name] for name in ("embed", "norm")},
        "b.safetensors": {name: arrays[name] for name in ("up", "fused", "fused_bias")},
    }


def check(checkpoint, expected, dtype="float32"):
    assert {str(weight.dtype) for weight in checkpoint.weights.values()} == {dtype}
    assert all(weight.flags.c_contiguous for weight in checkpoint.weights.values())
    np.testing.assert_array_equal(checkpoint.weights["embedding"], expected["embed"])
    np.testing.assert_array_equal(checkpoint.weights["layers.0.up"], expected["up"].T)
    for name, rows in ROWS.items():
        np.testing.assert_array_equal(checkpoint.weights[name], expected["fused"][rows].T)
        np.testing.assert_array_equal(checkpoint.weights[f"{name}_bias"], expected["fused_bias"][rows])
    np.testing.assert_array_equal(checkpoint.weights["final_norm"], expected["norm"])


def test_a_directory_is_read(tmp_path):
    checkpoint = load_checkpoint(write(tmp_path / "small"))
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.name == "small"
    assert checkpoint.config.vocab_size == VOCAB
    check(checkpoint, tensors())


def test_the_current_directory_has_its_own_name(tmp_path, monkeypatch):
    monkeypatch.chdir(write(tmp_path / "small"))
    assert load_checkpoint(".").name == "small"


@pytest.mark.parametrize("stored", ["float16", "float64"])
def test_other_floats_are_read_exactly(tmp_path, stored):
    arrays = {name: array.astype(stored) for name, array in tensors("float16").items()}
    check(load_checkpoint(write(tmp_path / "small", arrays)), arrays)


def test_doubles_are_rounded(tmp_path):
    arrays = tensors("float64")
    check(
        load_checkpoint(write(tmp_path / "small", arrays)),
        {k: v.astype("float32") for k, v in arrays.items()},
    )


def test_bfloat16_is_read_exactly(tmp_path):
    folder = write(tmp_path / "small")
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in tensors().items()}
    bits["norm"][:4] = [0x0001, 0x8000, 0x7F7F, 0xFF7F]
    (folder / "model.safetensors").write_bytes(by_hand(bits, dict.fromkeys(bits, "BF16")))
    values = {name: (array.astype(np.uint32) << 16).view(np.float32) for name, array in bits.items()}
    checkpoint = load_checkpoint(folder)
    check(checkpoint, values)
    # The smallest number and the largest one, by hand.
    assert checkpoint.weights["final_norm"][:4].tolist() == [
        2.0**-133, -0.0, 255 * 2.0**120, -255 * 2.0**120
    ]  # fmt: skip


def test_weights_may_be_kept_in_float16(tmp_path):
    expected = {name: array.astype("float16") for name, array in tensors().items()}
    check(load_checkpoint(write(tmp_path / "small"), dtype="float16"), expected, "float16")


def test_an_unknown_dtype_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"dtype must be one of float32, float16; got 'bfloat16'"):
        load_checkpoint(write(tmp_path / "small"), dtype="bfloat16")


def test_shards_are_read(tmp_path):
    check(load_checkpoint(write_shards(tmp_path / "small", two_shards())), tensors())


def test_shards_may_be_links(tmp_path):
    folder = write_shards(tmp_path / "small", two_shards())
    (tmp_path / "blob").write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").symlink_to(tmp_path / "blob")
    check(load_checkpoint(folder), tensors())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"up": "c.safetensors"}, "names c.safetensors, which is missing"),
        ({"up": "../a.safetensors"}, "must name files in the directory; got '../a.safetensors'"),
        ({"up": "/a.safetensors"}, "must name files in the directory"),
        ({"up": "C:\\a.safetensors"}, "must name files in the directory"),
        ({"up": "x\\..\\a.safetensors"}, "must name files in the directory"),
        ({"up": 3}, "must name files in the directory; got 3"),
        ({"up": ""}, "must name files in the directory"),
        ({"up": "."}, "names ., which is missing"),
        ({"up": "a.safetensors"}, "tensor up is in b.safetensors; .* says a.safetensors"),
        ({"up": None}, "b.safetensors has the tensor up, which .* doesn't name"),
        ({"other": "a.safetensors"}, "a.safetensors lacks the tensor other"),
    ],
)
def test_an_index_that_contradicts_its_shards_is_refused(tmp_path, changes, message):
    weight_map = {name: shard for shard, arrays in two_shards().items() for name in arrays} | changes
    weight_map = {name: shard for name, shard in weight_map.items() if shard is not None}
    folder = write_shards(tmp_path / "small", two_shards(), weight_map)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    shards = two_shards()
    shards["b.safetensors"]["norm"] = tensors()["norm"]
    weight_map = {"embed": "a.safetensors", "norm": "a.safetensors"} | dict.fromkeys(
        ("up", "fused", "fused_bias"), "b.safetensors"
    )
    folder = write_shards(tmp_path / "small", shards, weight_map)
    with pytest.raises(CheckpointError, match=r"tensor norm is in a.safetensors and in b.safetensors"):
        load_checkpoint(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": ["a.safetensors"]}])
def test_an_index_without_a_map_is_refused(tmp_path, index):
    folder = write_shards(tmp_path / "small", two_shards())
    write_files(folder, **{"model.safetensors.index": index})
    with pytest.raises(CheckpointError, match="weight_map must name"):
        load_checkpoint(folder)


def not_finite(value, dtype="float32"):
    array = tensors(dtype)["fused"]
    array[4, 5] = value
    return array


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"up": None}, "tensor up is missing"),
        ({"fused": np.zeros((HIDDEN, INNER), np.float32)}, r"fused has shape \(8, 6\); .* needs \(6, 8\)"),
        ({"bias": np.zeros(3, np.float32)}, "tensors bias aren't implemented"),
        ({f"x{i}": np.zeros(1, np.float32) for i in range(5)}, "x0, x1, x2 and 2 more aren't"),
        ({"fused": not_finite(np.nan)}, "fused holds values that aren't finite"),
        ({"fused": not_finite(-np.inf)}, "fused holds values that aren't finite"),
        ({"fused": not_finite(1e39, "float64")}, "fused holds values that are too large for float32"),
        ({"up": np.zeros((INNER, HIDDEN), np.int8)}, "up is stored as I8.*quantized.*GGUF"),
    ],
)
def test_missing_surplus_and_wrong_tensors_are_refused(tmp_path, arrays, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write(tmp_path / "small", arrays))


def test_values_too_large_for_float16_are_refused(tmp_path):
    folder = write(tmp_path / "small", {"fused": not_finite(7e4)})
    with pytest.raises(CheckpointError, match="fused holds values that are too large for float16"):
        load_checkpoint(folder, dtype="float16")


def test_the_first_wrong_tensor_is_named_whatever_the_threads(tmp_path):
    arrays = {name: np.full_like(array, np.nan) for name, array in tensors().items()}
    folder = write(tmp_path / "small", arrays)
    for _ in range(20):
        with pytest.raises(CheckpointError, match="tensor embed holds"):
            load_checkpoint(folder)


def test_harmless_tensors_are_left_out(tmp_path):
    arrays = {"rotary.inv_freq": np.zeros(2, np.int64)}
    check(load_checkpoint(write(tmp_path / "small", arrays)), tensors())


def test_a_repeated_tensor_must_be_the_same_bit_by_bit(tmp_path, described):
    described.architecture = architecture({"head": "embed"})
    same = tensors()["embed"]
    check(load_checkpoint(write(tmp_path / "small", {"head": same})), tensors())
    other = same.copy()
    other[-1, -1] = np.nextafter(other[-1, -1], 1)
    for wrong in (other, same.T.copy(), same.view(np.int32)):
        with pytest.raises(CheckpointError, match="head should repeat embed, and differs"):
            load_checkpoint(write(tmp_path / "small", {"head": wrong}))


def test_a_promise_of_endless_layers_is_refused_at_the_first(tmp_path, described):
    def endless():
        while True:
            yield Weight(name="embedding", source="embed", shape=(VOCAB, HIDDEN))
            yield Weight(name="missing", source="missing", shape=(1,))

    described.architecture.weights = endless
    with pytest.raises(CheckpointError, match="tensor missing is missing"):
        load_checkpoint(write(tmp_path / "small"))


def test_a_shard_that_is_damaged_is_named(tmp_path):
    folder = write_shards(tmp_path / "small", two_shards())
    (folder / "b.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"small: b.safetensors: the file has 0 bytes"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "config.json can't be read as JSON"),
        ("[1]", "config.json must hold a JSON object; got list"),
        ('{"a": 1, "a": 2}', "config.json .* key 'a' twice"),
        ('{"a": Infinity}', "Infinity is no JSON number"),
        ('{"a": 1e999}', "1e999 is too large"),
        ('{"a":' * 100_000, "config.json (is nested too deep|can't be read)"),
        ('{"a": ' + "1" * 5000 + "}", "config.json can't be read"),
        ({"quantization_config": {"quant_method": "gptq"}}, "has quantization_config: quantized.*GGUF"),
        ({"compression_config": {}}, "has compression_config"),
        ({"eos_token_id": "2"}, "config.json: eos_token_id must be an integer"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(tmp_path, config, message):
    folder = write(tmp_path / "small", config=config, tokenizer=tokenizer_json())
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_what_the_architecture_refuses_names_the_directory(tmp_path, described):
    def refuse(config):
        raise CheckpointError(f"the architecture {config['model_type']!r} isn't implemented.")

    described.describe = refuse
    with pytest.raises(CheckpointError, match=r"Can't load .*small: the architecture 'llama' isn't"):
        load_checkpoint(write(tmp_path / "small"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no config.json"),
        ({"model.gguf": b""}, "give the file's path"),
        ({"config.json": b"{}"}, "holds neither model.safetensors nor model.safetensors.index.json"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "pytorch_model.bin.*run code.*save_pretrained"),
        ({"config.json": b"{}", "pytorch_model-00001-of-00002.bin": b""}, "pytorch_model.bin.*run code"),
    ],
)
def test_a_directory_that_lacks_something_is_refused(tmp_path, files, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(tmp_path)


def test_a_safetensors_file_alone_is_refused(tmp_path):
    folder = write(tmp_path / "small")
    with pytest.raises(CheckpointError, match=r"holds weights alone: give its directory"):
        load_checkpoint(folder / "model.safetensors")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="every file can be read")
def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    folder = write(tmp_path / "small")
    (folder / "config.json").chmod(0)
    with pytest.raises(CheckpointError, match=r"Can't read .*config.json: Permission denied"):
        load_checkpoint(folder)


def test_what_the_system_refuses_is_named(tmp_path, monkeypatch):
    folder = write(tmp_path / "small")
    is_open = Path.open

    def refuse(path, *arguments, **options):
        if path.name == "model.safetensors":
            raise PermissionError(13, "Permission denied", str(path))
        return is_open(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(CheckpointError, match=r"Can't read .*model.safetensors: Permission denied"):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ((), None, None, None)),
        ({"eos_token_id": 3, "temperature": None, "bos_token_id": 1}, ((3,), None, None, None)),
        ({"eos_token_id": [3, 4, 3], "do_sample": True, "temperature": 1}, ((3, 4), 1.0, None, None)),
        ({"do_sample": False, "temperature": 0.7, "top_k": 50, "top_p": 0.9}, ((), 0.0, 50, 0.9)),
        ({"do_sample": True}, ((), 1.0, None, None)),
        ({"temperature": 0.7, "top_k": 0, "top_p": 1.0}, ((), 0.0, None, 1.0)),
    ],
)
def test_generation_defaults_are_read(tmp_path, values, expected):
    defaults = load_checkpoint(write(tmp_path / "small", generation_config=values)).generation
    assert (defaults.eos_ids, defaults.temperature, defaults.top_k, defaults.top_p) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"eos_token_id": "3"}, "eos_token_id must be an integer"),
        ({"eos_token_id": [True]}, "eos_token_id must be an integer"),
        ({"eos_token_id": -1}, "eos_token_id must be at least 0"),
        ({"eos_token_id": VOCAB}, f"eos_token_id {VOCAB} is outside the vocabulary of {VOCAB}"),
        ({"do_sample": 1}, "do_sample must be True or False"),
        ({"temperature": "warm"}, "temperature must be a number"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"top_k": 1.5}, "top_k must be an integer"),
        ({"top_p": 0}, "top_p must be positive"),
        ({"top_p": 1.5}, "top_p must be at most 1"),
    ],
)
def test_wrong_generation_defaults_are_refused(tmp_path, values, message):
    with pytest.raises(CheckpointError, match=f"generation_config.json: .*{message}"):
        load_checkpoint(write(tmp_path / "small", generation_config=values))


def test_numba_refuses_float16_weights(tmp_path):
    from pytensor_rope import load_model

    model = load_model(write(tmp_path / "small"), dtype="float16")
    for compute in (lambda: model.logits([[1]]), lambda: model.compile("numba")):
        with pytest.raises(
            NotImplementedError, match="Load the model in float32, or choose the c, jax or mlx"
        ):
            compute()


PEAK = """
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import pytensor_rope.checkpoints.huggingface as huggingface
# What loading imports, so that it doesn't count.
import pytensor_rope.checkpoints.gguf.reader
import pytensor_rope.checkpoints.huggingface.directory
from pytensor_rope.checkpoints import load_checkpoint
from pytensor_rope.checkpoints.base import Weight

shape = (4096, 1024)
halves = np.arange(4096).reshape(2048, 2).T
def weights():
    for i in range(12):
        rows = halves if i % 3 == 2 else [None]
        for part, of_part in enumerate(rows):
            yield Weight(name=f"{i}.{part}", source=str(i), shape=shape, transpose=i % 2 == 0, rows=of_part)

config = SimpleNamespace(vocab_size=10)
described = SimpleNamespace(config=config, weights=weights, surplus=lambda name: False, duplicates={})
huggingface.architectures = SimpleNamespace(describe=lambda settings: described)
sys.modules["pytensor_rope.checkpoints.huggingface.architectures"] = huggingface.architectures

def peak():
    # Not getrusage's, which begins with the peak of the process that started this one.
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])

before = peak()
checkpoint = load_checkpoint(sys.argv[1])
size = sum(weight.nbytes for weight in checkpoint.weights.values())
print(size, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system says no peak of a process")
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_reading_takes_little_more_memory_than_the_model(tmp_path, dtype):
    n_bytes = 4096 * 1024 * (2 if dtype == "BF16" else 4)
    entries = {
        str(i): {"dtype": dtype, "shape": [4096, 1024], "data_offsets": [i * n_bytes, (i + 1) * n_bytes]}
        for i in range(12)
    }
    header = safetensors(entries)
    write_files(tmp_path, config=CONFIG)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + 12 * n_bytes)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True
    )
    size, peak = map(int, done.stdout.split())
    assert size == 12 * 4096 * 1024 * 4
    assert size < peak < 1.3 * size
