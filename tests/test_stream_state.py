"""Streams forked from one another, which share compiled functions and take turns to use them."""

from threading import Thread

import numpy as np
from small_decoder import fresh, prompt, reference_logits


def test_forks_do_not_disturb_each_other(backend):
    stream = fresh(backend)
    stream.prefill(prompt()[:20])
    fork = stream.fork()
    again = fork.fork()
    other = prompt(seed=1)
    for i in range(10):
        mine = stream.step(prompt()[20 + i])
        theirs = fork.step(other[i])
    np.testing.assert_allclose(mine[0], reference_logits(2)[-1], atol=1e-4, rtol=0)
    assert (stream.position, fork.position, again.position) == (30, 30, 20)
    # What the second fork reads now, the first has read before; and bit for bit, though it is alone.
    np.testing.assert_array_equal([again.step(token) for token in other[:10]][-1], theirs)


def test_a_fork_reads_chunks_and_resets_for_itself(backend):
    stream = fresh(backend)
    stream.prefill(prompt()[:20])
    fork = stream.fork()
    fork.reset()
    one = fork.prefill(prompt())
    rest = stream.prefill(prompt()[20:])
    np.testing.assert_allclose(one[0], reference_logits(2)[-1], atol=1e-4, rtol=0)
    np.testing.assert_allclose(rest[0], reference_logits(2)[-1], atol=1e-4, rtol=0)


def test_a_fork_compiles_nothing_and_outlives_the_stream(backend):
    stream = fresh(backend)
    stream.prefill(prompt()[:20])
    fork = stream.fork()
    for name in ("_step", "_read_chunk", "_head"):
        assert getattr(fork, name).compiled is getattr(stream, name).compiled
    assert fork.decoder is stream.decoder
    stream.step(0)
    del stream
    np.testing.assert_allclose(fork.prefill(prompt()[20:])[0], reference_logits(2)[-1], atol=1e-4, rtol=0)


def test_a_file_loaded_into_a_fork_is_the_fork_s_alone(backend, tmp_path):
    stream = fresh(backend)
    stream.prefill(prompt(seed=1))
    stream.save(tmp_path / "a")
    want = stream.step(5)
    stream.reset()
    stream.prefill(prompt()[:20])
    fork = stream.fork()
    fork.load(tmp_path / "a")
    np.testing.assert_allclose(stream.prefill(prompt()[20:])[0], reference_logits(2)[-1], atol=1e-4, rtol=0)
    np.testing.assert_array_equal(fork.step(5), want)


def test_forks_in_threads_take_turns(backend):
    stream = fresh(backend)
    stream.prefill(prompt()[:20])
    forks = [stream.fork() for _ in range(2)]
    results = {}

    def read(i):
        results[i] = [forks[i].step(token) for token in prompt()[20:]][-1]

    threads = [Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for last in results.values():
        np.testing.assert_allclose(last[0], reference_logits(2)[-1], atol=1e-4, rtol=0)
    assert len(results) == 2
