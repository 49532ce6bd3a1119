"""Measure how close the kernel comes to the limit of the machine, on one core.

The limit ("roof") of encoding is the time of a memcpy of the output into a reused buffer plus the time of a
CRC-32C of the output. The roof of decoding is the time of a CRC-32C of the input plus the time of a memcpy of
the Arrow bytes. The roofs and the kernel are measured in turn, on warm memory, with the best instructions of
the machine. Each figure is the best round, in CPU time of the thread. A roof is a sum of two passes, so a
ratio above 1 is possible.

    python -m benchmarks.codec [--rounds 5] [--scale 1.0] [--crc best] [tabular recsys wide images]
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from benchmarks.tables import TABLES, Table, encoded_views, table_parser
from dask_tfrecord.codec import Decoder, Encoder, Inference, _kernel, scan

OUT_BYTES = 1 << 20  # encode's reused buffer
WINDOW_BYTES = 4 << 20  # decode: the buffer that a reader fills from the file again and again


def seconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return time.thread_time() - start


def encode(table: Table) -> Iterator[memoryview]:
    return encoded_views(Encoder(table.columns, "example"), table.batch, OUT_BYTES)


def encoded(table: Table) -> bytes:
    return b"".join(bytes(view) for view in encode(table))  # a view is valid until the next one


def drain(views: Iterator[memoryview]) -> None:
    for _ in views:
        pass


def memcpy(source: np.ndarray, step: int) -> None:
    """Copy ``source`` into one reused buffer, ``step`` bytes at a time."""
    buffer = np.empty(step, np.uint8)
    for at in range(0, len(source), step):
        part = source[at : at + step]
        np.copyto(buffer[: len(part)], part)


def checksum(size: int, step: int, implementation: str) -> None:
    """Compute the CRC-32C of ``size`` bytes, from a buffer of ``step`` bytes that stays in the cache."""
    buffer = np.ones(step, np.uint8)
    for at in range(0, size, step):
        _kernel.crc32c(buffer[: min(step, size - at)], implementation=implementation)


def windows(data: np.ndarray) -> list[slice]:
    """Cut the data into slices of whole records, each as large as a window allows."""
    starts = scan(data, final=True, offsets=True).offsets.to_numpy()
    ends = np.append(starts[1:], len(data))
    cuts = [0]
    while cuts[-1] < len(data):
        fits = np.searchsorted(ends, cuts[-1] + WINDOW_BYTES, "right")
        cuts.append(int(ends[max(fits - 1, np.searchsorted(ends, cuts[-1], "right"))]))
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def over_windows(data: np.ndarray, work: Callable[[np.ndarray], object]) -> float:
    """Return the seconds of ``work`` on all windows, each first copied into one reused buffer."""
    total = 0.0
    parts = windows(data)
    buffer = np.empty(max(part.stop - part.start for part in parts), np.uint8)
    for part in parts:
        view = buffer[: part.stop - part.start]
        np.copyto(view, data[part])
        total += seconds(lambda view=view: work(view))
    return total


def arrow_bytes(table: Table) -> np.ndarray:
    return np.ones(table.batch.nbytes, np.uint8)


def measure(table: Table, rounds: int, crc: str) -> dict[str, float]:
    data = np.frombuffer(encoded(table), np.uint8)
    arrow = arrow_bytes(table)
    projected = [column for column in table.columns if column.name in table.projection]
    everything, projection = Decoder(table.columns, "example"), Decoder(projected, "example")

    def decode(decoder: Decoder) -> Callable[[np.ndarray], object]:
        return lambda view: decoder.decode(view, final=True).batch

    works: dict[str, Callable[[], float]] = {
        "copy out": lambda: seconds(lambda: memcpy(data, OUT_BYTES)),
        "crc": lambda: seconds(lambda: checksum(len(data), 256 << 10, crc)),
        "encode": lambda: seconds(lambda: drain(encode(table))),
        "copy arrow": lambda: seconds(lambda: memcpy(arrow, OUT_BYTES)),
        "decode": lambda: over_windows(data, decode(everything)),
        "decode few": lambda: over_windows(data, decode(projection)),
        "infer": lambda: over_windows(data, lambda view: Inference("example").feed(view, final=True)),
        "scan": lambda: over_windows(data, lambda view: scan(view, final=True)),
    }
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            best[name] = min(best[name], work())
    best["bytes"] = len(data)
    return best


def check(table: Table) -> None:
    """Check that decoding returns the rows that were encoded."""
    part = replace(table, batch=table.batch.slice(0, 1000))
    decoded = Decoder(table.columns, "example").decode(encoded(part), final=True)
    if decoded.damage or not decoded.batch.equals(part.batch):
        raise AssertionError("decoding does not return the rows that were encoded")


def main() -> None:
    parser = table_parser(__doc__, rounds=5)
    parser.add_argument("--crc", default="best", help="CRC-32C implementation of the roof: best, sse4.2, ...")
    arguments = parser.parse_args()
    print(f"CRC-32C by {', '.join(_kernel.crc32c_implementations())}; best of {arguments.rounds} rounds")
    print(f"{'':9}{'':12}{'rows/s':>12}{'GB/s':>8}{'x roof':>8}{'x decode':>10}")
    for name in arguments.tables or TABLES:
        make = TABLES[name]
        rows = make.__defaults__[0]
        table = make(max(1, int(rows * arguments.scale)))
        check(table)
        best = measure(table, arguments.rounds, arguments.crc)
        roofs = {"encode": best["copy out"] + best["crc"], "decode": best["crc"] + best["copy arrow"]}
        for job in ("encode", "decode", "decode few", "infer", "scan"):
            took = best[job]
            roof = f"{roofs[job] / took:8.2f}" if job in roofs else f"{'':8}"
            relative = f"{best['decode'] / took:9.2f}x" if job not in ("encode", "decode") else ""
            rate = table.batch.num_rows / took
            print(f"{name:9}{job:12}{rate:12,.0f}{best['bytes'] / took / 1e9:8.2f}{roof}{relative}")
        print(
            f"{name:9}{'roofs':12}memcpy {best['bytes'] / best['copy out'] / 1e9:.1f} GB/s, "
            f"CRC-32C {best['bytes'] / best['crc'] / 1e9:.1f} GB/s, "
            f"{best['bytes'] / table.batch.num_rows:,.0f} bytes a record"
        )


if __name__ == "__main__":
    main()
