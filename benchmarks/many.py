"""Time tokens decoded several in one call against the same one at a time."""

from collections.abc import Iterator

import pytensor_rope as rope
from benchmarks.measure import take_turns
from benchmarks.report import OURS, Ratio, Report, Row
from benchmarks.soak import decoder

AT_ONCE = 16


def run(backends: list[str], report: Report, *, rounds: int) -> None:
    report.settings = {"decoder": "one layer of 64", "at once": AT_ONCE, "rounds": rounds}
    report.start()
    for backend in backends:
        if backend != "mlx":  # it decodes one at a time whatever is asked for
            report.add(measure(backend, rounds))


def measure(backend: str, rounds: int) -> list[Row]:
    empty = rope.Stream(decoder(), rope.SinkCache(4, 60), backend=backend)
    texts: dict[int, Iterator[int]] = {
        n: empty.fork().generate([1, 2, 3], max_tokens=None, at_once=n) for n in (1, AT_ONCE)
    }
    subjects = {n: lambda i, text=text: [next(text) for _ in range(AT_ONCE)] for n, text in texts.items()}
    spreads = take_turns(subjects, rounds=rounds, calls=8, settle=2)
    case = f"{AT_ONCE} tokens of a small decoder"
    ratio = Ratio("one at a time", spreads[AT_ONCE].median / spreads[1].median)
    return [
        Row(case, backend, f"{OURS}, in one call", "s", spreads[AT_ONCE], (ratio,)),
        Row(case, backend, f"{OURS}, one at a time", "s", spreads[1]),
    ]
