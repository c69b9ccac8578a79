"""The benchmarks run, and the soak finds a fault."""

from pathlib import Path

import pytest

from pytensor_rope import SinkCache

ROOT = Path(__file__).parents[1]


@pytest.fixture
def soak(monkeypatch):
    pytest.importorskip("jax")
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import soak

    return soak


def test_a_soak_passes_and_finds_a_window_that_is_one_too_wide(soak, monkeypatch, capsys):
    assert soak.run(["jax"], 3_000)
    assert "WRONG" not in capsys.readouterr().out
    monkeypatch.setattr(soak.rope, "SinkCache", lambda sinks, window: SinkCache(sinks, window + 1))
    assert not soak.run(["jax"], 3_000)
    assert "WRONG" in capsys.readouterr().out


def test_a_soak_too_short_to_measure_is_refused(soak):
    with pytest.raises(SystemExit, match="soak takes at least 3,000 steps"):
        soak.run(["jax"], 2_999)
