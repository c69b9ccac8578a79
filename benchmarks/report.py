"""Results: rows of a table on the screen, in a JSON file and in Markdown."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.measure import Spread

FORMAT = "pytensor-rope benchmarks"
VERSION = 1
NAMES = {"c": "C", "numba": "Numba", "jax": "JAX", "mlx": "MLX", "numpy": "NumPy"}
OURS = "pytensor-rope"
HEADS = ("what", "backend", "by", "median", "quartiles", "ratio", "goal")
WIDTHS = (30, 8, 28, 10, 21, 34, 5)


@dataclass(frozen=True)
class Ratio:
    """A median over that of something else in the same run, and the most that it should be."""

    over: str
    value: float
    goal: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.2f} × {self.over}"


@dataclass(frozen=True)
class Row:
    """
    One result.

    ``case`` says what is done, ``subject`` by whom; ``unit`` is "s", "B", "B/s" or "" for a plain number.
    ``goal`` is for the median itself.
    """

    case: str
    backend: str
    subject: str
    unit: str
    spread: Spread
    ratios: tuple[Ratio, ...] = ()
    goal: float | None = None

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> "Row":
        ratios = tuple(Ratio(**ratio) for ratio in row["ratios"])
        return cls(**{**row, "spread": Spread(**row["spread"]), "ratios": ratios})

    def lines(self) -> list[tuple[str, ...]]:
        """Return the cells of a table, a line for each ratio."""
        spread = self.spread
        backend = NAMES.get(self.backend, self.backend)
        quartiles = f"{show(spread.low, self.unit)} to {show(spread.high, self.unit)}" if spread.n > 1 else ""
        head = (self.case, backend, self.subject, show(spread.median, self.unit), quartiles)
        first, *others = self.ratios or (None,)
        goal = (
            _judged(spread.median, self.goal, self.unit)
            if first is None
            else _judged(first.value, first.goal)
        )
        lines: list[tuple[str, ...]] = [(*head, str(first or ""), goal)]
        return lines + [
            ("",) * 5 + (str(ratio), _judged(ratio.value, ratio.goal)) for ratio in others if ratio
        ]


@dataclass
class Report:
    """The rows of one benchmark, printed as they come and kept for a file."""

    benchmark: str
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine.facts)
    command: str = "python -m benchmarks"
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def start(self) -> None:
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        print(f"\n{self.benchmark}" + (f": {settings}" if settings else ""))
        print(machine.describe(self.machine))
        if machine.is_busy(self.machine):
            print(machine.BUSY)
        print(_padded(HEADS), flush=True)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.rows.append(row)
            for line in row.lines():
                print(_padded(line), flush=True)

    def write(self, path: Path) -> None:
        """Write the report to a JSON file, in place of what that has of the same benchmark."""
        empty: dict[str, Any] = {"format": FORMAT, "version": VERSION, "reports": {}}
        content = read(path) if path.exists() else empty
        content["reports"][self.benchmark] = {
            name: value for name, value in asdict(self).items() if name != "benchmark"
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"==> {path}")


def read(path: Path) -> dict[str, Any]:
    """Return what :meth:`Report.write` wrote."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content.get("format") != FORMAT or content.get("version") != VERSION:
        raise ValueError(f"{path} holds no results of this version of the benchmarks.")
    return content


def rows_of(content: dict[str, Any], benchmark: str) -> list[Row]:
    return [Row.from_json(row) for row in content["reports"][benchmark]["rows"]]


def markdown(rows: Iterable[Row]) -> str:
    """Return a table in Markdown."""
    lines = [HEADS, ("---",) * len(HEADS), *(line for row in rows for line in row.lines())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def show(value: float, unit: str) -> str:
    """Write a value with its unit, in three digits or so."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms")):
            if value * factor >= 1:
                return _digits(value * factor, name)
        return _digits(value * 1e6, "µs")
    if unit in ("B", "B/s"):
        factor, name = (1e9, "GB/s") if unit == "B/s" else (1e6, "MB")
        return (
            f"{value / factor:.1f} {name}"
            if unit == "B/s" or abs(value) < 1e7
            else f"{value / factor:.0f} {name}"
        )
    return f"{value:.2g}"


def _digits(value: float, unit: str) -> str:
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _judged(value: float, goal: float | None, unit: str = "") -> str:
    """Write the goal, and whether it is reached."""
    if goal is None:
        return ""
    return f"{show(goal, unit) if unit else f'{goal:g}'} {'✓' if value <= goal else '✗'}"


def _padded(cells: Iterable[str]) -> str:
    return "  ".join(f"{cell:{width}}" for cell, width in zip(cells, WIDTHS, strict=True)).rstrip()
