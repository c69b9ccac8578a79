"""The benchmarks run and report what they measured, the soak finds a fault; nothing here asserts a time."""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.traversal import ancestors
from small_decoder import CONFIG, WINDOW, decoder_for, weights

import pytensor_rope as rope
from pytensor_rope import SinkCache

ROOT = Path(__file__).parents[1]
SMALL = rope.DecoderConfig(
    vocab_size=10,
    hidden_size=8,
    intermediate_size=12,
    n_layer=2,
    n_head=2,
    n_kv_head=1,
    head_dim=4,
    context_length=8,
)


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(ROOT)


@pytest.fixture
def soak():
    pytest.importorskip("jax")
    from benchmarks import soak

    return soak


def a_report(name="ops", rows=()):
    from benchmarks.report import Report

    report = Report(name, {"rounds": 3})
    report.add(rows)
    return report


def a_row(**options):
    from benchmarks.measure import Spread
    from benchmarks.report import Ratio, Row

    ratios = Ratio("x.copy()", 1.25, 1.5), Ratio("mx.fast.rope", 1.2, 1.1)
    return Row("rotation", "mlx", "pytensor-rope", "s", Spread(2e-3, 1.5e-3, 3e-3, 5), ratios, **options)


# Statistics and turns


def test_a_spread_is_the_median_and_the_quartiles():
    from benchmarks.measure import Spread

    assert Spread.of([5, 1, 4, 2, 3]) == Spread(3, 2, 4, 5)
    assert Spread(2, 1, 4, 3).of_rate(8) == Spread(4, 2, 8, 3)


def test_subjects_take_turns_on_fresh_inputs_and_settle_uncounted():
    from benchmarks import measure

    calls = []
    subjects = {name: lambda i, name=name: calls.append((name, i)) for name in "ab"}
    spreads = measure.take_turns(subjects, rounds=2, calls=3, settle=1)
    assert [name for name, _ in calls] == [*"aaaa", *"bbbb", *"bbbb", *"aaaa"]
    assert [i for _, i in calls] == list(range(16))
    assert spreads["a"].n == spreads["b"].n == 2


@pytest.mark.parametrize(("value", "expected"), [(median, 2.5), (fmean, 8.0)])
def test_only_calls_that_are_counted_are_timed(value, expected, monkeypatch):
    from benchmarks import measure

    clock = [0.0]
    seconds = iter([100, 1, 20, 3, 100, 2, 20, 2])
    monkeypatch.setattr(measure, "perf_counter", lambda: clock[0])

    def subject(i):
        clock[0] += next(seconds)

    spread = measure.take_turns({"it": subject}, rounds=2, calls=3, settle=1, value=value)["it"]
    assert (spread.median, spread.n) == (expected, 2)


def test_who_has_spent_the_budget_stops_after_three_turns():
    from benchmarks import measure

    spreads = measure.take_turns({"it": lambda i: None}, rounds=9, budget=0)
    assert spreads["it"].n == 3


def test_a_pool_gives_other_arrays_without_zeros_and_counts_around():
    from benchmarks.measure import Pool

    pool = Pool((8, 1000), most_bytes=5 * 32_000)
    assert len(pool) == 5
    arrays = [pool.take(i, "numpy") for i in range(6)]
    assert arrays[5] is arrays[0]
    assert all(np.abs(a - b).max() > 1 for a, b in pairwise(arrays[:5]))
    assert all((array != 0).all() for array in arrays)


def test_what_computes_something_else_is_not_timed():
    from benchmarks.measure import check_close

    check_close("right", [1.0, 2.0], [1.0, 2.1], 0.2)
    for wrong in ([1.0, 2.5], [1.0, np.nan]):
        with pytest.raises(AssertionError, match="wrong is off by"):
            check_close("wrong", wrong, [1.0, 2.0], 0.2)


def test_reading_memory_reads_all_of_it():
    from benchmarks.measure import memory_readers

    one, two = memory_readers(4000).values()
    assert one(0) == max(two(0))
    assert len(two(0)) == 2


@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_products_are_of_all_matrices(library, monkeypatch):
    pytest.importorskip("jax")
    from benchmarks import products

    multiplied = []
    monkeypatch.setattr(products, "_multiply_one_by_one", multiplied.extend)
    monkeypatch.setattr(products, "_multiply_all", lambda pairs: multiplied.extend(pairs))
    decoder = rope.Decoder(config=SMALL, seed=0)
    weights = {name: weight.get_value() for name, weight in decoder.parameters.items()}
    products.products(weights, SMALL, 5, library)(0)
    *of_layers, (head, last) = multiplied
    assert len(of_layers) == 4 * SMALL.n_layer  # joined: query, key and value; gate and up
    assert all(a.shape == (5, b.shape[0]) for a, b in of_layers)
    assert (head.shape, last.shape) == ((SMALL.vocab_size, SMALL.hidden_size), (SMALL.hidden_size,))


# The generic graph


@pytest.mark.parametrize("library", ["jax", "mlx"])
def test_a_decoder_by_hand_gives_our_logits(library):
    pytest.importorskip(library)
    from benchmarks.decode import BY_HAND, by_hand

    stream = rope.Stream(decoder_for("jax"), SinkCache(2, WINDOW), backend="jax")
    ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 2 * WINDOW)
    stream.prefill(ids)
    other = by_hand(library)[BY_HAND[library]](weights(), CONFIG, 2, WINDOW)
    other.load({name: np.array(array) for name, array in stream._own_state.arrays().items()})
    for token in (5, 6):
        np.testing.assert_allclose(other.step(token), stream.step(token)[0], rtol=0, atol=1e-3)


def test_a_generic_graph_has_none_of_our_ops_and_the_same_values():
    from benchmarks.generic import generic

    x = pt.tensor("x", shape=(2, 3, 4), dtype="float32")
    weight = pytensor.shared(np.array([1, -2, 3, 4], "float32"))
    ours = rope.rms_norm(rope.rotary_embedding(x, np.arange(3)), weight).sum()
    outputs = [ours, pytensor.grad(ours, x)]
    plain = generic(outputs)
    own = [v.owner.op for v in ancestors(plain) if v.owner and isinstance(v.owner.op, OpFromGraph)]
    assert not own
    values = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    for got, expected in zip(
        *(pytensor.function([x], graph, mode="FAST_COMPILE")(values) for graph in (plain, outputs)),
        strict=True,
    ):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_equal_layers_of_a_generic_decoder_are_one_plain_op():
    from benchmarks.generic import generic

    ids = pt.tensor("ids", shape=(1, 3), dtype="int32")
    graph = generic([rope.Decoder(config=SMALL, seed=0)(ids)])
    ops = [v.owner.op for v in ancestors(graph) if v.owner and isinstance(v.owner.op, OpFromGraph)]
    assert {type(op) for op in ops} == {OpFromGraph}
    assert len(set(map(id, ops))) == 1


# Reports


def test_a_report_comes_back_from_its_file_beside_others(tmp_path, capsys):
    from benchmarks.report import read, rows_of

    path = tmp_path / "results" / "here.json"
    a_report("ops", [a_row()]).write(path)
    a_report("decode", [a_row(goal=1.0)]).write(path)
    a_report("ops", [a_row(), a_row()]).write(path)
    content = read(path)
    assert content["reports"].keys() == {"ops", "decode"}
    assert rows_of(content, "ops") == [a_row(), a_row()]
    assert rows_of(content, "decode") == [a_row(goal=1.0)]
    report = content["reports"]["ops"]
    assert report.keys() == {"settings", "rows", "machine", "command", "date"}
    assert report["settings"] == {"rounds": 3}
    assert {"processor", "cores", "python", "packages", "blas", "compiler", "threads"} <= report[
        "machine"
    ].keys()


def test_a_file_of_something_else_is_refused(tmp_path):
    from benchmarks.report import read

    path = tmp_path / "other.json"
    path.write_text(json.dumps({"format": "pytensor-rope benchmarks", "version": 0}))
    with pytest.raises(ValueError, match="no results of this version"):
        read(path)


def test_a_row_says_each_ratio_and_whether_its_goal_is_reached():
    first, second = a_row().lines()
    assert first == (
        "rotation",
        "MLX",
        "pytensor-rope",
        "2 ms",
        "1.5 ms to 3 ms",
        "1.25 × x.copy()",
        "1.5 ✓",
    )
    assert second == ("", "", "", "", "", "1.20 × mx.fast.rope", "1.1 ✗")


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (12.34, "s", "12.3 s"),
        (0.0123, "s", "12.3 ms"),
        (0.123, "s", "123 ms"),
        (3e-6, "s", "3 µs"),
        (2.5e10, "B/s", "25.0 GB/s"),
        (8.1e8, "B", "810 MB"),
        (-5e5, "B", "-0.5 MB"),
        (6.13e-6, "", "6.1e-06"),
    ],
)
def test_values_are_shown_with_their_unit(value, unit, shown):
    from benchmarks.report import show

    assert show(value, unit) == shown


def test_tables_go_where_a_page_marks_them(tmp_path):
    from benchmarks.report import read
    from benchmarks.tables import put_tables

    results, page = tmp_path / "here.json", tmp_path / "page.md"
    a_report("ops", [a_row()]).write(results)
    text = (
        "before\n<!-- table: ops -->\nold\n<!-- end -->\n<!-- table: decode -->\nkept\n<!-- end -->\nafter\n"
    )
    page.write_text(text)
    put_tables(read(results), page)
    written = page.read_text()
    assert "old" not in written and "kept" in written
    assert "| rotation | MLX | pytensor-rope | 2 ms | 1.5 ms to 3 ms | 1.25 × x.copy() | 1.5 ✓ |" in written
    put_tables(read(results), page)
    assert page.read_text() == written


@pytest.mark.parametrize(("percent", "warned"), [(3.0, False), (70.0, True)])
def test_results_of_a_busy_machine_say_so(percent, warned, capsys):
    from benchmarks import machine
    from benchmarks.report import Report
    from benchmarks.tables import table

    found = machine.facts() | {"others_percent": percent}
    report = Report("ops", machine=found)
    report.start()
    content = {"reports": {"ops": {"machine": found, "command": "", "date": "", "rows": []}}}
    shown = capsys.readouterr().out, table(content, "ops")
    assert [machine.BUSY in text for text in shown] == [warned, warned]


def test_the_page_of_the_documentation_marks_tables_of_benchmarks_that_there_are():
    from benchmarks.__main__ import ABOUT
    from benchmarks.tables import MARKED

    marked = {name for _, name, _ in MARKED.findall((ROOT / "docs" / "performance.md").read_text())}
    assert marked
    assert {name.split()[0] for name in marked} <= ABOUT.keys()


@pytest.mark.parametrize("json_option", [[], ["--json"], ["--json", "there/x.json"], ["--json=there/x.json"]])
def test_results_name_the_command_that_measures_the_same(json_option):
    from benchmarks.__main__ import command_of

    command = command_of(["ops", "--quick", *json_option, "--backend", "c"])
    assert command == "python -m benchmarks ops --quick --backend c"


# Benchmarks


@pytest.fixture
def small_ops(monkeypatch):
    pytest.importorskip("jax")
    from benchmarks import ops

    for name, value in {"SHAPE": (1, 2, 8, 16), "SEQ": 8, "HEAD_DIM": 16}.items():
        monkeypatch.setattr(ops, name, value)
    return ops


def test_ops_run_and_write_their_results(small_ops, tmp_path):
    from benchmarks import __main__
    from benchmarks.report import read, rows_of

    path = tmp_path / "here.json"
    assert __main__.main(["ops", "--backend", "jax", "--quick", "--rounds", "2", "--json", str(path)]) == 0
    rows = rows_of(read(path), "ops")
    assert {row.case for row in rows} == {
        "rotation",
        "rotation, angles given",
        "rotation, backward",
        "RMSNorm",
        "RMSNorm, backward",
        "copy bandwidth",
    }
    rotation = {row.subject: row for row in rows if row.case == "rotation"}
    assert rotation.keys() == {"x.copy()", "pytensor-rope", "generic graph", "by hand, jax.jit"}
    ratio = rotation["pytensor-rope"].ratios[0]
    copy = rotation["x.copy()"].spread.median
    assert (ratio.over, ratio.goal) == ("x.copy()", 3)
    assert ratio.value == pytest.approx(rotation["pytensor-rope"].spread.median / copy)


def test_a_wrong_lowering_is_not_timed(small_ops, monkeypatch):
    from benchmarks.measure import Pool

    pool = Pool(small_ops.SHAPE)
    case = next(case for case in small_ops.cases(pool) if case.name == "RMSNorm")
    monkeypatch.setattr(small_ops, "generic", lambda outputs: [2 * output for output in outputs])
    with pytest.raises(AssertionError, match="generic graph"):
        small_ops.measure(case, pool, ["jax"], rounds=1, calls=1)


def test_a_soak_passes_and_finds_a_window_that_is_one_too_wide(soak, monkeypatch, capsys):
    monkeypatch.setattr(soak, "TURNS", 2)
    assert soak.run(["jax"], a_report("soak"), steps=3_000)
    assert "WRONG" not in capsys.readouterr().out
    monkeypatch.setattr(soak.rope, "SinkCache", lambda sinks, window: SinkCache(sinks, window + 1))
    assert not soak.run(["jax"], a_report("soak"), steps=3_000)
    assert "WRONG" in capsys.readouterr().out


def test_a_soak_steps_far_out_with_a_full_cache(soak):
    stream = rope.Stream(soak.decoder(), SinkCache(sinks=1, window=2), backend="jax")
    for token in (1, 2, 3):
        stream.step(token)
    far = soak.fork_at(stream, 1_000_000)
    logits = far.step(4)
    assert (far.position, stream.position) == (1_000_001, 3)
    assert np.isfinite(logits).all()
    assert np.abs(logits - stream.step(4)).max() > 0.01  # the keys in its cache are from elsewhere


def test_a_soak_too_short_to_measure_is_refused(soak):
    with pytest.raises(SystemExit, match="soak takes at least 3,000 steps"):
        soak.run(["jax"], a_report("soak"), steps=2_999)
