"""The examples run, and give what they should."""

import ast
import csv
import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import reference
from safetensors.numpy import load_file

from pytensor_rope import DecoderConfig
from pytensor_rope.weights import random_weights

ROOT = Path(__file__).parents[1]


def example(name, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module(name)


def attended_by_the_last_of(tokens, sinks=2, window=6):
    """Return what the examples' last token gets, ``(1, n_head, 1, head_dim)``."""
    rng = np.random.default_rng(0)
    drawn = [[rng.standard_normal((n_head, 16)) for n_head in (4, 2, 2)] for _ in range(tokens)]
    q, k, v = (np.stack(values, axis=1).astype("float32") for values in zip(*drawn, strict=True))
    return reference.stream_attention(q, k, v, sinks, window, first=tokens - 1)[None]


@pytest.mark.parametrize("name", ["own_graph", "shared_state"])
def test_a_cache_in_a_graph_of_ones_own(backend, name, monkeypatch):
    output = example(name, monkeypatch).main(backend)
    np.testing.assert_allclose(output, attended_by_the_last_of(20), atol=1e-5, rtol=0)


def test_a_cache_in_a_scan(scanning_backend, monkeypatch):
    output = example("scan_state", monkeypatch).main(scanning_backend)
    np.testing.assert_allclose(output, attended_by_the_last_of(20), atol=1e-5, rtol=0)


needs_pymc_and_jax = pytest.mark.skipif(
    None in (find_spec("pymc"), find_spec("jax")), reason="PyMC or JAX is not installed"
)


@needs_pymc_and_jax
def test_attention_in_a_pymc_model(monkeypatch, capsys):
    densities = example("pymc_attention", monkeypatch).main(
        days=100, observed=70, draws=60, tune=100, chains=1, backend="jax"
    )
    assert densities["attention"] > densities["yesterday"] + 0.3
    (shares,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("attention to"))
    *_, seventh = map(float, shares.split()[-10:-3])
    assert seventh > 0.5


@needs_pymc_and_jax
def test_the_gradient_of_a_pymc_model_with_attention(monkeypatch):
    attention = example("pymc_attention", monkeypatch)
    model = attention.attention_model(attention.simulate(15, seed=0), observed=12)
    logp, dlogp = model.compile_logp(mode="JAX"), model.compile_dlogp(mode="JAX")
    point = model.initial_point(0)
    sizes = [value.size for value in point.values()]

    def at(x):
        parts = np.split(x, np.cumsum(sizes)[:-1])
        return {k: part.reshape(point[k].shape) for k, part in zip(point, parts, strict=True)}

    x = np.random.default_rng(0).normal(0, 0.5, sum(sizes))
    expected = reference.numeric_gradient(lambda x: float(logp(at(x))), x)
    assert np.abs(expected).min() > 1e-3
    np.testing.assert_allclose(np.asarray(dlogp(at(x))), expected, rtol=1e-6, atol=1e-6)


class FlatModel:
    """A model to which all tokens are alike, and that is interrupted before its third text."""

    def __init__(self):
        self.tokenizer = SimpleNamespace(encode=lambda text: [ord(letter) for letter in text])
        self.compiled = []
        self.interrupted = False

    def compile(self, backend, **settings):
        if len(self.compiled) == 2 and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        self.compiled.append(settings)
        return SimpleNamespace(score=lambda ids, progress: np.full(len(ids) - 1, np.log(len(self.compiled))))


def test_perplexities_are_kept_through_an_interruption(tmp_path, monkeypatch, capsys):
    perplexity, model = example("streaming_perplexity", monkeypatch), FlatModel()
    monkeypatch.setattr(perplexity.rope, "load_model", lambda name: model)
    (tmp_path / "text").write_text("some text " * 9)
    output = tmp_path / "out"
    options = f"--text {tmp_path / 'text'} --tokens 50 --sinks 4 --window 8 --output {output}"
    monkeypatch.setattr(sys, "argv", ["streaming_perplexity.py", *options.split()])
    perplexity.main()
    assert "interrupted: 2 of " in capsys.readouterr().out
    perplexity.main()
    out = capsys.readouterr().out
    assert [line.split()[-1] for line in out.splitlines() if "perplexity" in line][:2] == ["1.00", "2.00"]
    with output.with_suffix(".csv").open(newline="") as file:
        (_, _, *names), *rows = csv.reader(file)
    assert names[:3] == ["dense", "cache 4+8", "absolute 4+8"]
    assert len(rows) == 49
    assert rows[0][:3] == ["1", str(ord("o")), "0.000000"]
    assert model.compiled[-1] == {"sinks": 0, "window": 12}
    (tmp_path / "text").write_text("another text " * 9)
    with pytest.raises(SystemExit, match="holds another text or model"):
        perplexity.main()


def run_example(name, *options, cwd):
    """Run an example in a process of its own, whose JAX is not started yet, and return what it prints."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *options],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_an_exported_step_writes_a_stream_s_tokens_without_pytensor(tmp_path):
    pytest.importorskip("jax")
    pytest.importorskip("flatbuffers")
    _, _, where, text, same = run_example("export_jax.py", "--tokens", "30", cwd=tmp_path)
    assert where == "run in a process that can't import pytensor or pytensor_rope:"
    assert len(ast.literal_eval(text)) == 30
    assert same == "30 tokens, the same as a stream's"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_decoder_on_8_devices_is_that_on_one(tmp_path, processes):
    pytest.importorskip("jax")
    options = ("--processes", processes, "--tokens", "20", "--timeout", "240")
    devices, full_pass, steps = run_example("shard_jax.py", *options, cwd=tmp_path)
    # A quarter of what is split, and the norms.
    mesh, held = devices.split(": ")
    assert mesh == f"8 devices in {processes} process(es), 2 by data and 4 by tensor"
    assert held == "0.12 of 0.48 MB of weights on each"
    # One for the embedding, and for each of the two layers one after the attention and one at its end.
    assert full_pass.startswith("full pass, 5 all-reduces: logits up to 7.")
    assert steps.startswith("20 decoding steps: logits up to 6.")
    for line in (full_pass, steps):
        assert float(line.split()[-1]) < 5e-5


def test_a_running_mean(monkeypatch):
    mean = example("streaming_perplexity", monkeypatch).running_mean
    np.testing.assert_allclose(mean(np.array([1.0, 3.0, 5.0, 1.0]), 2), [2, 4, 3])
    np.testing.assert_allclose(mean(np.array([1.0, 3.0]), 5), [2])


def run(module, options, monkeypatch, capsys):
    """Run an example as a command, and return what it prints."""
    monkeypatch.setattr(sys, "argv", [f"{module.__name__}.py", *options.split()])
    module.main()
    return capsys.readouterr().out


def training_example(name, monkeypatch):
    for package in ("jax", "pytensor_ml"):
        pytest.importorskip(package)
    module = example(name, monkeypatch)
    monkeypatch.setattr(module, "manual", lambda: b"all work and no play makes jack a dull boy\n" * 30)
    return module


TRAINING = "--steps 30 --batch 4 --length 16 --hidden 32 --layers 1 --evaluate 10 --stream 64 --write 8"


def test_a_decoder_is_trained_interrupted_or_not(tmp_path, monkeypatch, capsys):
    train = training_example("train_bytes", monkeypatch)
    describe = train.Training.describe

    def interrupted(training):
        if len(training.losses) == 20:
            raise KeyboardInterrupt
        return describe(training)

    monkeypatch.setattr(train.Training, "describe", interrupted)
    options = f"{TRAINING} --output {tmp_path / 'out'}"
    assert "interrupted after 20 of 30 steps" in run(train, options, monkeypatch, capsys)
    monkeypatch.setattr(train.Training, "describe", describe)
    out = run(train, options, monkeypatch, capsys)
    perplexities = dict(re.findall(r"^(perplexity|decoder|stream).* (\d+\.\d+)$", out, re.MULTILINE))
    assert set(perplexities) == {"perplexity", "decoder", "stream"}

    monkeypatch.setattr(sys, "argv", ["train_bytes.py", *TRAINING.split()])
    text, held_out = map(train.as_ids, train.split(train.manual()))
    training = train.Training(text, held_out, train.parse_arguments())
    training.run()
    assert float(perplexities["decoder"]) == pytest.approx(np.exp(training.held_out_losses[-1][1]), abs=2e-3)
    assert training.losses[-1] < training.losses[0] - 1

    with pytest.raises(SystemExit, match="holds another run"):
        run(train, f"{options} --seed 1", monkeypatch, capsys)


def test_n_grams_are_smoothed(monkeypatch):
    pytest.importorskip("pytensor_ml")
    score = example("train_bytes", monkeypatch).score_n_grams
    # In "aab", "" is followed by 2 kinds of 3 bytes, and "a" by 2 kinds of 2; "x" is not there.
    alone = (1 + 2 / 256) / (3 + 2)
    after_a = (1 + 2 * alone) / (2 + 2)
    np.testing.assert_allclose(np.exp(-score(b"aab", b"xb", order=2)), [alone])
    np.testing.assert_allclose(np.exp(-score(b"aab", b"ab", order=2)), [after_a])


def test_low_rank_updates_are_trained_and_merged(tmp_path, monkeypatch, capsys):
    lora = training_example("lora", monkeypatch)
    config = DecoderConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=48,
        n_layer=2,
        n_head=4,
        n_kv_head=2,
        head_dim=8,
        context_length=64,
    )
    weights = {name: 5 * value for name, value in random_weights(config, 0).items()}
    tokenizer = SimpleNamespace(encode=lambda text: [ord(letter) for letter in text])
    checkpoint = SimpleNamespace(name="tiny", config=config, weights=weights, tokenizer=tokenizer)
    monkeypatch.setattr(lora, "load_checkpoint", lambda name: checkpoint)
    before = {name: value.copy() for name, value in weights.items()}
    output = tmp_path / "lora.safetensors"
    options = f"--steps 20 --rank 2 --alpha 4 --batch 2 --length 16 --rate 0.01 --tests 2 --output {output}"
    out = run(lora, options, monkeypatch, capsys)
    first, last = map(float, re.search(r"(\d+\.\d+) before, (\d+\.\d+) after", out).groups())
    assert last < first - 0.05
    assert float(re.search(r"merged weights: (\d+\.\d+)", out).group(1)) == pytest.approx(last, abs=2e-4)
    assert all((weights[name] == value).all() for name, value in before.items())
    # Of each of 2 layers, two factors for queries (32 to 32) and two for values (32 to 16).
    assert f" and {2 * (2 * 64 + 2 * 48)} to train" in out
    assert len(load_file(output)) == 8


def test_the_tour_says_what_is_true(monkeypatch, capsys):
    pytest.importorskip("jax")
    tour = example("tour", monkeypatch)
    config = DecoderConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=32,
        n_layer=1,
        n_head=4,
        n_kv_head=2,
        head_dim=8,
        context_length=64,
    )
    tokenizer = SimpleNamespace(
        encode=lambda text: [ord(letter) % 60 for letter in text],
        decode=lambda ids: "".join(chr(48 + i) for i in ids),
    )
    checkpoint = SimpleNamespace(
        name="tiny",
        config=config,
        weights=random_weights(config, 0),
        tokenizer=tokenizer,
        why_no_tokenizer="",
        generation=None,
    )
    monkeypatch.setattr(tour.rope, "load_model", lambda name: tour.rope.Model(checkpoint))
    tour.main()
    out = capsys.readouterr().out
    near, far = re.findall(r"positions .*: (-?\d+\.\d+)", out)
    assert float(near) == pytest.approx(float(far), abs=1e-5)
    assert "Ten steps down: 3.000 ... 0.000" in out
    assert "It has seen 100 tokens and holds 8." in out
    assert "the one from the file: True; so does a fork: True" in out
