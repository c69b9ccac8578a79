"""Measure this machine. docs/performance.md says how, and what came out."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks import machine
from benchmarks.report import Report, read
from benchmarks.tables import put_tables, tables

RESULTS = Path(__file__).parent / "results"

# What `all` runs, each in a process of its own.
ALL = ("ops", "decode", "prefill", "compile", "memory", "many")

ABOUT = {
    "ops": "rotation and RMSNorm, forward and backward, over a copy of their input",
    "decode": "a token of SmolLM2 at a full cache, over reading weights and cache from memory",
    "prefill": "reading a prompt, over the same matrix products alone",
    "compile": "seconds to the first token, cold and warm",
    "memory": "resident memory while a stream writes",
    "soak": "many tokens against an exact reference, and what a step costs far out",
    "angles": "what exact angles cost",
    "many": "tokens of a small decoder, several in one call",
    "all": ", ".join(ALL),
}


def main(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    options = parse_arguments(words)
    if options.benchmark == "table":
        content = read(options.file)
        if options.write is None:
            print(tables(content))
        else:
            put_tables(content, options.write)
        return 0
    if options.benchmark == "all":
        return run_all(words)
    return 0 if run(options, command_of(words)) else 1


def run_all(words: list[str]) -> int:
    """Run each benchmark in a process of its own, so that none is left the memory or threads of another."""
    codes = [
        subprocess.run(
            [sys.executable, "-m", "benchmarks", name, *words[words.index("all") + 1 :]]
        ).returncode
        for name in ALL
    ]
    return max(codes)


def command_of(words: list[str]) -> str:
    """Return the command that measures the same, wherever it writes to."""
    kept, skip = [], False
    for word in words:
        if word.startswith("--json"):
            skip = word == "--json"
            continue
        if not skip or word.startswith("--"):
            kept.append(word)
        skip = False
    return shlex.join(["python", "-m", "benchmarks", *kept])


def run(options: argparse.Namespace, command: str) -> bool:
    """Run one benchmark; return whether all outputs were right."""
    backends = list(dict.fromkeys(options.backend or machine.installed_backends()))
    quick, name = options.quick, options.benchmark
    report, passed = Report(name, command=command), True
    match name:
        case "ops":
            from benchmarks import ops

            ops.run(backends, report, rounds=options.rounds or (5 if quick else 30))
        case "decode":
            from benchmarks import decode

            report.benchmark = name if options.dtype == "float32" else f"{name} {options.dtype}"
            decode.run(
                backends,
                report,
                rounds=options.rounds or (3 if quick else 11),
                tokens=options.tokens or (4 if quick else 8),
                dtype=options.dtype,
                with_generic=not quick,
            )
        case "prefill":
            from benchmarks import prefill

            prefill.run(
                backends,
                report,
                rounds=options.rounds or (3 if quick else 9),
                tokens=options.tokens or (64 if quick else 512),
            )
        case "compile":
            from benchmarks import compile

            compile.run(backends, report, rounds=options.rounds or (1 if quick else 3))
        case "memory":
            from benchmarks import memory

            memory.run(backends, report, tokens=options.tokens or (16 if quick else 100))
        case "soak":
            from benchmarks import soak

            passed = soak.run(backends, report, steps=options.tokens or (3_000 if quick else 200_000))
        case "angles":
            from benchmarks import angles

            angles.run(backends, report, rounds=options.rounds or (3 if quick else 20))
        case "many":
            from benchmarks import many

            many.run(backends, report, rounds=options.rounds or (3 if quick else 20))
    if options.json is not None:
        report.write(options.json)
    return passed


def parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="benchmark", required=True)
    for name, about in ABOUT.items():
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "--backend", choices=machine.BACKENDS, action="append", help="may be repeated; default: all here"
        )
        command.add_argument(
            "--json",
            type=Path,
            nargs="?",
            const=RESULTS / f"{machine.name()}.json",
            metavar="FILE",
            help=f"write the results; default: benchmarks/results/{machine.name()}.json",
        )
        command.add_argument("--quick", action="store_true", help="few rounds: to see that it runs")
        command.add_argument("--rounds", type=int, help="how often each takes its turn")
        if name != "all":
            command.add_argument(
                "--tokens", type=int, help="tokens a turn (decode), of the prompt (prefill), to write or read"
            )
        if name == "decode":
            command.add_argument(
                "--dtype", choices=("float32", "float16"), default="float32", help="of weights and cache"
            )
    table = commands.add_parser("table", help="print the tables of a file of results in Markdown")
    table.add_argument("file", type=Path)
    table.add_argument("--write", type=Path, metavar="PAGE", help="put them into a page, where it marks them")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
