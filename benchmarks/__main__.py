"""Measure this machine: `ops` times single layers, `angles` what exact ones cost, `decode` a real model.

`soak` runs a stream for many tokens.

Run with ``make bench`` (ops and decode), or for example ``python -m benchmarks soak --backend numba``.
"""

import argparse
import sys

from benchmarks.measure import BACKENDS, describe_machine, installed_backends, print_times_header


def main() -> int:
    options = parse_arguments()
    backends = options.backend or installed_backends()
    print(describe_machine())
    if options.benchmark == "soak":
        from benchmarks import soak

        return 0 if soak.run(backends, options.steps) else 1
    if options.benchmark == "angles":
        from benchmarks import angles

        angles.run(backends)
        return 0
    print_times_header()
    if options.benchmark in (None, "ops"):
        from benchmarks import ops

        ops.run(backends)
    if options.benchmark in (None, "decode"):
        from benchmarks import decode

        decode.run(backends, options.tokens)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "benchmark", nargs="?", choices=("ops", "angles", "decode", "soak"), help="default: ops, then decode"
    )
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="default: all here")
    parser.add_argument("--tokens", type=int, default=50, help="tokens to decode (default: 50)")
    parser.add_argument("--steps", type=int, default=200_000, help="steps to soak (default: 200,000)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
