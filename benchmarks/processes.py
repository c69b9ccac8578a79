"""
SmolLM2 in a process of its own: when its first token comes, and how much memory it takes.

    python -m benchmarks.processes BACKEND TOKENS STARTED

is that process, started at the time STARTED: it loads the model, writes TOKENS tokens and prints JSON.
"""

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MODEL = "smollm2"
PROMPT = "Gravity is a"


@dataclass(frozen=True)
class Process:
    """
    What a process tells.

    Attributes
    ----------
    load : float
        Seconds that ``load_model`` took.
    first, second : float
        Seconds from the start of the process to the first token, and from that to the second.
    resident, peak : int
        Bytes at the end, and the most there were.
    """

    load: float
    first: float
    second: float
    resident: int
    peak: int


def start(backend: str, tokens: int, cache: Path | None = None) -> Process:
    """Run such a process, which keeps what it compiles in the folder ``cache``, if there is one."""
    environment = dict(os.environ)
    if cache is not None:
        flags = [flag for flag in environment.get("PYTENSOR_FLAGS", "").split(",") if flag]
        kept = [flag for flag in flags if not flag.startswith(("base_compiledir", "compiledir"))]
        environment |= {
            "PYTENSOR_FLAGS": ",".join([*kept, f"base_compiledir={cache / 'pytensor'}"]),
            "NUMBA_CACHE_DIR": str(cache / "numba"),
            "XDG_CACHE_HOME": str(cache / "home"),
        }
        environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # off, as JAX has it
    command = [sys.executable, "-m", "benchmarks.processes", backend, str(tokens), repr(time.time())]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Process(**json.loads(done.stdout.splitlines()[-1]))


def main(backend: str, tokens: int, started: float) -> Process:
    import pytensor_rope as rope

    begin = time.time()
    model = rope.load_model(MODEL)
    loaded = time.time()
    stream = model.compile(backend)
    text = stream.generate(model.tokenizer.encode(PROMPT), max_tokens=None)
    next(text)
    first = time.time()
    next(text)
    second = time.time()
    for _ in range(tokens - 2):
        next(text)
    resident, peak = memory()
    return Process(loaded - begin, first - started, second - first, resident, peak)


def memory() -> tuple[int, int]:
    """Return the resident bytes of this process, and the most that it had."""
    import psutil

    resident = int(psutil.Process().memory_info().rss)
    status = Path("/proc/self/status")
    if status.exists():  # the other counter begins with the parent's memory on Linux
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return resident, int(lines["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resident, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    name, n, begun = sys.argv[1:]
    print(json.dumps(main(name, int(n), float(begun)).__dict__))
