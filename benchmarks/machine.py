"""What a result depends on beside the code: the processor, the libraries, and their threads."""

import importlib.util
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from pytensor.configdefaults import config

BACKENDS = ("c", "numba", "jax", "mlx")
PACKAGES = ("numpy", "pytensor", "numba", "jax", "mlx", "mlx-lm")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "XLA_FLAGS")
BUSY = "WARNING: the machine is busy with something else, so these times mean little."


def installed_backends() -> list[str]:
    return [name for name in BACKENDS if name == "c" or importlib.util.find_spec(name) is not None]


def facts() -> dict[str, Any]:
    """Return the facts, as JSON has them."""
    import psutil

    return {
        "system": _system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "last_cache_MB": round(last_cache_bytes() / 1e6),
        "memory_GB": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        "pytensor-rope": version("pytensor-rope") if _installed("pytensor-rope") else "from its source",
        "packages": {name: version(name) for name in PACKAGES if _installed(name)},
        "blas": _blas(),
        "compiler": _first_line(str(config.cxx), "--version"),
        "threads": {name: os.environ[name] for name in THREADS if name in os.environ},
        "others_percent": psutil.cpu_percent(interval=1.0),  # while this process sleeps
    }


def describe(found: dict[str, Any]) -> str:
    """Return the facts in a few lines."""
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    blas = ", ".join(f"{name} ({threads})" for name, threads in found["blas"].items())
    threads = ", ".join(f"{name}={value}" for name, value in found["threads"].items())
    return (
        f"{found['processor']}, {found['cores']} cores, last cache {found['last_cache_MB']} MB, "
        f"memory {found['memory_GB']} GB; {found['system']}\n"
        f"Python {found['python']}, {packages}\n"
        f"BLAS and its threads: {blas}; {threads or 'no thread variables set'}; {found['compiler']}\n"
        f"processors in use by others at the start: {found['others_percent']:.0f} %"
    )


def is_busy(found: dict[str, Any]) -> bool:
    """Return whether something else was running when the facts were found."""
    return bool(found["others_percent"] > 15)


def name() -> str:
    """Return a name for a file of this machine's results."""
    return f"{platform.system()}-{platform.machine()}-{os.cpu_count()}-cores".lower()


def last_cache_bytes() -> int:
    """Return the size of the largest cache, 32 MiB where the system doesn't tell."""
    sizes = [
        int(path.read_text().strip().removesuffix("K")) * 1024
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    ]
    return max(sizes, default=32 << 20)


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _system() -> str:
    release = platform.release().partition("-")[0]
    libc = " ".join(platform.libc_ver())
    return " ".join(part for part in (platform.system(), release, platform.machine(), libc) if part.strip())


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return _first_line("sysctl", "-n", "machdep.cpu.brand_string")
    return platform.processor() or platform.machine()


def _blas() -> dict[str, str]:
    """Return each BLAS that is loaded, and its threads: as threadpoolctl sees it, or as NumPy was built."""
    if importlib.util.find_spec("threadpoolctl") is None:
        built: Any = np.show_config(mode="dicts")
        blas = built["Build Dependencies"]["blas"]
        return {f"{blas['name']} {blas['version']}": "threads unknown"}
    import scipy.linalg.blas  # noqa: F401 - what Numba multiplies with
    from threadpoolctl import threadpool_info

    return {
        f"{Path(library['filepath']).parent.name}: {library['internal_api']} {library['version']}": (
            f"{library['num_threads']} threads"
        )
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }


def _first_line(*command: str) -> str:
    try:
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return shown.partition("\n")[0]
