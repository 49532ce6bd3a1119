"""Compare this package with other tools, and make the pages that show the figures.

    python -m benchmarks.peers --install
    python -m benchmarks.peers SUITE [dataset ...] [--rounds 5] [--scale 1.0] [--store]
    python -m benchmarks.peers --report

The suites are the modules of ``SUITES``; each describes what it compares and how. ``--install`` creates the
environments of the tools of `files` in `~/.cache`, and measures nothing. The other suites use the packages
that are installed here, and leave out or list what is missing. ``--store`` puts the figures into
``benchmarks/peers/SUITE.json``, and implies ``--report``. ``--report`` makes ``benchmarks/*.md``, the plots,
and the generated parts of ``README.md`` and ``docs/comparison.md``.

`files` measures only the tools of ``--peers`` and the jobs of ``--jobs``. Spark-TFRecord takes part with
``--spark-jar FILE`` where Java is installed.
"""

import argparse
import importlib

import dask_tfrecord
from benchmarks.peers.report import feeds, files, formats, readme, stored, summary

FEEDS = ("tabular", "vectors", "wide", "images")

# The suites and their datasets. The module of a suite has its name.
SUITES = {
    "files": ("tabular", "recsys", "wide", "images"),
    "feeds": (*FEEDS, *(f"{name} gzip" for name in FEEDS)),
    "columns": ("images", "tabular"),
    "defaults": (
        *("images (100 KB)", "audio (200 KB)", "embeddings (512 floats)", "text (4 KB)"),
        *("tabular (10 columns)", "wide (500 floats)", "wide (500 mixed)", "recsys (40 columns)"),
    ),
    "queries": ("tabular",),
    "store": ("transfers", "feeds", "alone"),
    "elastic": (
        *("tabular 256", "tabular 8192", "images 64"),
        *("images through the link", "tabular through the link"),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", choices=[*SUITES], help="what to compare")
    parser.add_argument("datasets", nargs="*", help="default: all datasets of the suite")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of rows")
    parser.add_argument("--store", action="store_true", help="store the figures, and report")
    parser.add_argument("--report", action="store_true", help="make the pages from the stored figures")
    parser.add_argument("--install", action="store_true", help="make the environments of the tools, and stop")
    parser.add_argument("--peers", nargs="+", help="default: all that are installed")
    parser.add_argument("--jobs", nargs="+", help="default: all")
    parser.add_argument("--spark-jar", help="of Spark-TFRecord")
    arguments = parser.parse_args()
    if arguments.install:
        importlib.import_module("benchmarks.peers.files").install(arguments.peers)
        return
    if arguments.suite:
        known = SUITES[arguments.suite]
        if unknown := set(arguments.datasets) - set(known):
            parser.error(f"unknown datasets {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
        print(f"dask-tfrecord {dask_tfrecord.__version__}, median of {arguments.rounds} rounds")
        importlib.import_module(f"benchmarks.peers.{arguments.suite}").run(arguments)
    elif not arguments.report:
        parser.error("name a suite, or pass --report or --install")
    if arguments.report or arguments.store:
        report()


def report() -> None:
    """Make all pages from the stored figures."""
    files.write(stored("files"))
    feeds.write(stored("feeds"))
    readme.write(stored("files"), stored("feeds"))
    summary.write()
    for suite in formats.PAGES:
        if results := stored(suite):
            formats.write(suite, results)


if __name__ == "__main__":
    main()
