"""Run the process of one peer, asked for passes by `benchmarks.peers`. The argument is its module."""

import importlib
import sys
import tempfile
import traceback
from typing import Any

from benchmarks.peer_jobs import Pass, Work
from benchmarks.workers import last_error, measured, serve


def main() -> None:
    ways = importlib.import_module(f"benchmarks.peer_jobs.{sys.argv[1]}").WAYS
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
                passes[name] = ways[question["way"]][question["kind"]](work)
            with tempfile.TemporaryDirectory(dir=question["work"]["root"]) as folder:
                return measured(lambda: passes[name](f"{folder}/data"))
        except Exception:  # whatever a peer raises is a result: it is listed, and the other jobs go on
            return {"error": last_error(traceback.format_exc())}

    serve(answer)


if __name__ == "__main__":
    main()
