"""Run the process of one peer, asked for passes by `benchmarks.peers`. The argument is its module."""

import importlib
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.peer_jobs import Pass, Work
from benchmarks.workers import last_error, measured, serve


def main() -> None:
    module = importlib.import_module(f"benchmarks.peer_jobs.{sys.argv[1]}")
    passes: dict[str, Pass] = {}

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        """Prepare a job if it is new, and do the job once. If the question is empty, forget all jobs.

        With "shares", return the share of each step in the CPU time instead of the figures of the pass.
        """
        if not question:
            passes.clear()
            return {}
        wants_shares = question.pop("shares", False)
        name = repr(question)
        try:
            if name not in passes:
                work = Work(**question["work"])
                passes[name] = module.WAYS[question["way"]][question["kind"]](work)
            with tempfile.TemporaryDirectory(dir=question["work"]["root"]) as folder:
                path = f"{folder}/data"
                if wants_shares:
                    return {"shares": module.shares(question["kind"], lambda: passes[name](path))}
                found = measured(lambda: passes[name](path))
                files = [Path(path), *Path(path).rglob("*")]
                return found | {"bytes": sum(file.stat().st_size for file in files if file.is_file())}
        except Exception:  # whatever a peer raises is a result: it is listed, and the other jobs go on
            return {"error": last_error(traceback.format_exc())}

    serve(answer)


if __name__ == "__main__":
    main()
