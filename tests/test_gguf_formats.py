"""Storage formats of GGUF files against a scalar reader of blocks, written after the definition of each."""

import struct

import gguf
import numpy as np
import pytest

from pytensor_rope.checkpoints import CheckpointError, load_checkpoint

VOCAB, HIDDEN, INTERMEDIATE = 16, 256, 32
METADATA = {
    "llama.block_count": 1,
    "llama.context_length": 32,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": INTERMEDIATE,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 1,
}
SHAPES = {
    "token_embd": (VOCAB, HIDDEN),
    "output": (VOCAB, HIDDEN),
    "blk.0.attn_q": (HIDDEN, HIDDEN),
    "blk.0.attn_k": (8, HIDDEN),
    "blk.0.attn_v": (8, HIDDEN),
    "blk.0.attn_output": (HIDDEN, HIDDEN),
    "blk.0.ffn_gate": (INTERMEDIATE, HIDDEN),
    "blk.0.ffn_up": (INTERMEDIATE, HIDDEN),
    "blk.0.ffn_down": (HIDDEN, INTERMEDIATE),
    "blk.0.attn_norm": (HIDDEN,),
    "blk.0.ffn_norm": (HIDDEN,),
    "output_norm": (HIDDEN,),
}


def half(data, at):
    return struct.unpack_from("<e", data, at)[0]


def nibbles(data):
    """Return the low halves of bytes, then the high halves."""
    return [byte & 15 for byte in data] + [byte >> 4 for byte in data]


def fifth_bits(data):
    (bits,) = struct.unpack("<I", data)
    return [bits >> i & 1 for i in range(32)]


def f32(block):
    return struct.unpack("<f", block)


def f16(block):
    return struct.unpack("<e", block)


def bf16(block):
    return struct.unpack("<f", b"\0\0" + block)


def q8_0(block):
    return [half(block, 0) * q for q in struct.unpack("32b", block[2:])]


def q4_0(block):
    return [half(block, 0) * (q - 8) for q in nibbles(block[2:])]


def q4_1(block):
    return [half(block, 0) * q + half(block, 2) for q in nibbles(block[4:])]


def q5_0(block):
    quants = zip(nibbles(block[6:]), fifth_bits(block[2:6]), strict=True)
    return [half(block, 0) * (q + 16 * fifth - 16) for q, fifth in quants]


def q5_1(block):
    quants = zip(nibbles(block[8:]), fifth_bits(block[4:8]), strict=True)
    return [half(block, 0) * (q + 16 * fifth) + half(block, 2) for q, fifth in quants]


def q2_k(block):
    scales, quants, d, least = block[:16], block[16:80], half(block, 80), half(block, 82)
    values = []
    for i in range(256):
        part, shift, place = i // 128, i % 128 // 32, i % 32
        q = quants[32 * part + place] >> 2 * shift & 3
        scale = scales[i // 16]
        values.append(d * (scale & 15) * q - least * (scale >> 4))
    return values


def q3_k(block):
    high, quants, packed, d = block[:32], block[32:96], block[96:108], half(block, 108)
    values = []
    for i in range(256):
        part, shift, place, group = i // 128, i % 128 // 32, i % 32, i // 16
        q = quants[32 * part + place] >> 2 * shift & 3
        q -= 0 if high[place] >> (4 * part + shift) & 1 else 4
        low = packed[group % 8] >> 4 * (group // 8) & 15
        scale = low | (packed[8 + group % 4] >> 2 * (group // 4) & 3) << 4
        values.append(d * (scale - 32) * q)
    return values


def scale_and_least(packed, group):
    """Return the two numbers of six bits of one of eight groups."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def q4_k(block):
    return q45_k(block, [0] * 32, block[16:])


def q5_k(block):
    return q45_k(block, block[16:48], block[48:])


def q45_k(block, fifth, quants):
    d, least, packed = half(block, 0), half(block, 2), block[4:16]
    values = []
    for group in range(8):
        scale, lower = scale_and_least(packed, group)
        for place in range(32):
            q = quants[32 * (group // 2) + place] >> 4 * (group % 2) & 15
            q += 16 * (fifth[place] >> group & 1)
            values.append(d * scale * q - least * lower)
    return values


def q6_k(block):
    low, high, scales, d = block[:128], block[128:192], struct.unpack("16b", block[192:208]), half(block, 208)
    values = []
    for i in range(256):
        part, quarter, place = i // 128, i % 128 // 32, i % 32
        q = low[64 * part + 32 * (quarter % 2) + place] >> 4 * (quarter // 2) & 15
        q |= (high[32 * part + place] >> 2 * quarter & 3) << 4
        values.append(d * scales[i // 16] * (q - 32))
    return values


# The reader of a block, and where its half-precision scales lie.
FORMATS = {
    "F32": (f32, ()),
    "F16": (f16, ()),
    "BF16": (bf16, ()),
    "Q8_0": (q8_0, (0,)),
    "Q4_0": (q4_0, (0,)),
    "Q4_1": (q4_1, (0, 2)),
    "Q5_0": (q5_0, (0,)),
    "Q5_1": (q5_1, (0, 2)),
    "Q2_K": (q2_k, (80, 82)),
    "Q3_K": (q3_k, (108,)),
    "Q4_K": (q4_k, (0, 2)),
    "Q5_K": (q5_k, (0, 2)),
    "Q6_K": (q6_k, (208,)),
}


def random_blocks(name, n_value, rng):
    """Return random bytes with scales of a usual size, and what the reader of blocks makes of them."""
    n_in_block, n_byte = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    read, places = FORMATS[name]
    blocks = rng.integers(0, 256, size=(n_value // n_in_block, n_byte), dtype=np.uint8)
    if not places:
        values = rng.normal(size=len(blocks)).astype(np.float32)
        if name == "F16":
            blocks = values.astype("<f2").view(np.uint8).reshape(blocks.shape)
        else:
            blocks = values.view(np.uint8).reshape(-1, 4)[:, -n_byte:]
    for place in places:
        scales = rng.uniform(-0.1, 0.1, size=len(blocks)).astype("<f2")
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks, [value for block in blocks for value in read(block.tobytes())]


def write(path, raw):
    """Write a small model; ``raw`` has tensors with their bytes and format."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in METADATA.items():
        writer.add_uint32(key, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*"abcdefghijklmno", "ab"])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    for name, shape in SHAPES.items():
        if name in raw:
            data, kind = raw[name]
            writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_read_as_it_is_defined(tmp_path, name):
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType[name]
    raw, expected = {}, {}
    for tensor in ("token_embd", "output", "blk.0.ffn_gate"):
        n_row, n_column = SHAPES[tensor]
        blocks, values = random_blocks(name, n_row * n_column, rng)
        raw[tensor] = np.ascontiguousarray(blocks.reshape(n_row, -1)), kind
        expected[tensor] = np.array(values).reshape(n_row, n_column)
    weights = load_checkpoint(write(tmp_path / "blocks.gguf", raw)).weights
    for ours, theirs in (
        (weights["embedding"], expected["token_embd"]),
        (weights["head"].T, expected["output"]),
        (weights["layers.0.gate"].T, expected["blk.0.ffn_gate"]),
    ):
        largest = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * largest)


def test_a_vector_may_be_quantized(tmp_path):
    blocks, values = random_blocks("Q8_0", HIDDEN, np.random.default_rng(0))
    raw = {"output_norm": (blocks.reshape(-1), gguf.GGMLQuantizationType.Q8_0)}
    weights = load_checkpoint(write(tmp_path / "vector.gguf", raw)).weights
    np.testing.assert_allclose(weights["final_norm"], values, rtol=1e-6)


def test_a_format_that_is_not_implemented_is_refused_by_name(tmp_path):
    data = np.zeros((VOCAB, HIDDEN), np.int32)
    raw = {"token_embd": (data, gguf.GGMLQuantizationType.I32)}
    with pytest.raises(CheckpointError, match="the storage format I32 isn't implemented"):
        load_checkpoint(write(tmp_path / "integers.gguf", raw))
