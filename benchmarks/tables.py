"""The tables of a page of the documentation, from a file of results."""

import re
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.report import markdown, rows_of

MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables(content: dict[str, Any]) -> str:
    """Return the tables of all benchmarks in a file of results."""
    return "\n\n".join(f"## {benchmark}\n\n{table(content, benchmark)}" for benchmark in content["reports"])


def put_tables(content: dict[str, Any], page: Path) -> None:
    """Replace what stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` in a page."""

    def replaced(match: re.Match[str]) -> str:
        benchmark = match[2]
        if benchmark not in content["reports"]:
            print(f"{page}: no results of {benchmark}, so its table stays as it is")
            return match[0]
        return f"{match[1]}\n{table(content, benchmark)}\n\n{match[3]}"

    page.write_text(MARKED.sub(replaced, page.read_text(encoding="utf-8")), encoding="utf-8")


def table(content: dict[str, Any], benchmark: str) -> str:
    """Return the command, the machine and the rows of a benchmark."""
    report = content["reports"][benchmark]
    lines = machine.describe(report["machine"]).splitlines()
    if machine.is_busy(report["machine"]):
        lines.append(machine.BUSY)
    described = "\n".join(["```text", f"$ {report['command']}", f"{report['date']}", *lines, "```"])
    return f"{markdown(rows_of(content, benchmark))}\n\n{described}"
