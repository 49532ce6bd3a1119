"""Write ``benchmarks/RESULTS.md``, with the stored figures of `peers`, `scale` and `memory`."""

import json
from typing import Any

from benchmarks.reports import HERE, memory, peers, readme, scale

PAGE = HERE / "RESULTS.md"
ORIGINS = {"peers": peers.sections, "scale": scale.sections, "memory": memory.sections}

INTRODUCTION = """\
# Measured against other tools

Made by `python -m benchmarks.peers --report` from the figures that `benchmarks.peers`, `benchmarks.scale` and
`benchmarks.memory` stored. The claim of each table is a ratio, because absolute times depend on the machine.

A ratio is the rows per CPU second of this package, divided by those of the other tool in the same round: the
median of the rounds, and the least and the greatest in brackets. CPU seconds count all processes of a tool. A
slow tool gets fewer rows. Each tool does each job with two numbers of rows, the smaller being a quarter.
"One more row" is the ratio of the CPU times that one more row takes, so that the start of a tool does not
count. A ratio above 100 is printed as "> 100". Peak MB is the most memory of all processes of a tool during a
pass, with its libraries and its input. Rows per second depend on how much of the processor other processes
left over.
"""


def stored(name: str) -> dict[str, Any]:
    """Return the figures that a benchmark stored, or no figures if the benchmark has not stored any."""
    path = HERE / f"{name}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return results


def save(name: str, results: dict[str, Any]) -> None:
    """Store the figures of a benchmark."""
    (HERE / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")


def page() -> str:
    """Return the text of ``benchmarks/RESULTS.md``."""
    found = {name: results for name in ORIGINS if (results := stored(name))}
    lines = [INTRODUCTION]
    lines += [f"- `benchmarks.{name}`: {'; '.join(one['machine'].values())}" for name, one in found.items()]
    for name, results in found.items():
        lines += ["", *ORIGINS[name](results)]
    return "\n".join([*lines, ""])


def write() -> None:
    """Write ``benchmarks/RESULTS.md``, ``docs/comparison.md``, and the figures and plots of the README."""
    PAGE.write_text(page())
    if results := stored("peers"):
        peers.write(results)
        readme.write(results, stored("feeds"))
