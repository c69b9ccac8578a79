"""Safetensors files that are damaged: each is refused, none hangs or crashes."""

import numpy as np
import pytest
from huggingface_directory import HIDDEN, VOCAB, describe_small, safetensors, write

from pytensor_rope.checkpoints import CheckpointError, load_checkpoint


@pytest.fixture(autouse=True)
def described(monkeypatch):
    return describe_small(monkeypatch)


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes: it is truncated"),
        (b"\x10\0\0\0\0\0\0", "has 7 bytes: it is truncated"),
        (bytes(8), "no safetensors file"),
        (b"GGUF\x03\0\0\0" + bytes(100), "no safetensors file"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "no safetensors file"),
        ((99_999_999).to_bytes(8, "little") + b"{}", "truncated: the header needs 99999999 bytes"),
        (safetensors(b"[1, 2]"), "no JSON object"),
        (safetensors(b"{]"), "the header can't be read as JSON"),
        (safetensors(b'{"\xff": 1}'), "can't be read as JSON.*utf-8"),
        (safetensors(b'{"a": 1, "a": 1}'), "key 'a' twice"),
        (safetensors(b'{"a":' * 200_000), "nested too deep|can't be read"),
        (safetensors(b'{"a": {"dtype": NaN}}'), "NaN is no JSON number"),
        (safetensors({"a": 1}), "must give dtype, shape and data_offsets of the tensor 'a'"),
        (safetensors({"a": {"dtype": "F32", "shape": [2]}}), "must give dtype, shape and data_offsets"),
        (safetensors({"a": ENTRY | {"more": 1}}, bytes(8)), "nothing else"),
        (safetensors({"a": ENTRY | {"dtype": "F33"}}, bytes(8)), "unknown dtype 'F33'"),
        (safetensors({"a": ENTRY | {"dtype": ["F32"]}}, bytes(8)), "unknown dtype"),
        (safetensors({"a": ENTRY | {"shape": 2}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"shape": [2.0]}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"shape": [2, True]}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"shape": [-1, -2]}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"shape": [2**70]}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"shape": [1] * 17}}, bytes(8)), "no list of sizes"),
        (safetensors({"a": ENTRY | {"data_offsets": [8, 0]}}, bytes(8)), "no range"),
        (safetensors({"a": ENTRY | {"data_offsets": [0, 4, 8]}}, bytes(8)), "no range"),
        (safetensors({"a": ENTRY | {"data_offsets": [False, 8]}}, bytes(8)), "no range"),
        (safetensors({"a": ENTRY | {"shape": [3]}}, bytes(8)), r"takes 8 bytes; F32 .* would take 12"),
        (safetensors({"a": ENTRY | {"data_offsets": [1, 9]}}, bytes(9)), "'a' leaves a gap"),
        (safetensors({"a": ENTRY, "b": ENTRY | {"data_offsets": [4, 12]}}, bytes(12)), "'b' overlaps"),
        (safetensors({"a": ENTRY, "b": ENTRY}, bytes(8)), "'b' overlaps"),
        (safetensors({"a": ENTRY}, bytes(7)), "truncated: its tensors need 8 bytes and it has 7"),
        (safetensors({"a": ENTRY}, bytes(9)), "1 bytes behind its tensors"),
        (safetensors({"__metadata__": {"format": 1}}), "__metadata__ must be strings"),
        (safetensors({"__metadata__": "pt"}), "__metadata__ must be strings"),
    ],
)  # fmt: skip
def test_damaged_safetensors_files_are_refused(tmp_path, content, message):
    folder = write(tmp_path / "small")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"Can't load .*model.safetensors: .*({message})"):
        load_checkpoint(folder)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    folder = write(tmp_path / "small")
    content = (folder / "model.safetensors").read_bytes()
    for length in range(0, len(content), 7):
        (folder / "model.safetensors").write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(folder)


def test_a_damaged_header_is_refused_or_loads(tmp_path):
    folder = write(tmp_path / "small")
    content = (folder / "model.safetensors").read_bytes()
    n_header = int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        data = bytearray(content)
        data[rng.integers(8 + n_header)] ^= 1 << rng.integers(8)
        (folder / "model.safetensors").write_bytes(data)
        try:
            checkpoint = load_checkpoint(folder)
        except CheckpointError:
            refused += 1
        else:
            assert checkpoint.weights["embedding"].shape == (VOCAB, HIDDEN)
    assert refused > 200
