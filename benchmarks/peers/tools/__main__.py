"""Run the process of one peer, asked for passes by `benchmarks.peers`. The argument is its module."""

import importlib
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.peers.tools import Pass, Work
from benchmarks.peers.workers import last_error, measured, serve


def main() -> None:
    module = importlib.import_module(f"benchmarks.peers.tools.{sys.argv[1]}")
    passes: dict[str, Pass] = {}

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        """Prepare a job if it is new, and do the job once. If the question is empty, forget all jobs."""
        if not question:
            passes.clear()
            return {}
        name = repr(question)
        try:
            if name not in passes:
                work = Work(**question["work"])
                passes[name] = module.WAYS[question["way"]][question["kind"]](work)
            with tempfile.TemporaryDirectory(dir=question["work"]["root"]) as folder:
                path = f"{folder}/data"
                found = measured(lambda: passes[name](path))
                files = [Path(path), *Path(path).rglob("*")]
                return found | {"bytes": sum(file.stat().st_size for file in files if file.is_file())}
        except Exception:  # whatever a peer raises is a result: it is listed, and the other jobs go on
            return {"error": last_error(traceback.format_exc())}

    serve(answer)


if __name__ == "__main__":
    main()
