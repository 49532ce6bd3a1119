"""Train on a mixture of three datasets, with transforms of torchdata, and resume exactly in the middle.

`TFRecordBatches` takes ``{path: weight}`` in place of a path. Each batch of 20 rows contains 10, 6 and 4 rows
of the sources. With ``until="all"``, an epoch ends when all rows were read, and smaller sources repeat. Nodes
of torchdata split the texts into words in threads. The state of the loader is JSON. It says how far each
source was read, and a resumed run has the same rows and the same loss in each step.

Run it with ``python examples/train_mixture.py [NEW_DIRECTORY]``. It needs ``pip install torch torchdata``.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pandas as pd

import dask_tfrecord

try:
    import torch
    import torchdata.nodes as nodes

    from dask_tfrecord.feed.torch import TFRecordBatches
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed, so nothing is trained: pip install torch torchdata")
    sys.exit()

SIZES = {"web": 600, "books": 200, "code": 300}
WEIGHTS = {"web": 0.5, "books": 0.3, "code": 0.2}
BATCH, BUCKETS = 20, 512


def write(root: Path) -> None:
    """Write three datasets of short texts, in which each source has words that it prefers."""
    random = np.random.default_rng(0)
    for number, (name, rows) in enumerate(SIZES.items()):
        words = random.integers(0, 30, (rows, 8)) + 10 * number
        texts = [" ".join(f"word{word}" for word in text) for text in words]
        frame = pd.DataFrame({"id": np.arange(rows), "source": number, "text": texts})
        dask_tfrecord.to_tfrecord(frame, root / name, write_options={"max_rows_per_file": 100})


def split(batch: dict) -> tuple[torch.Tensor, torch.Tensor, list]:
    """Split texts into words, and words into buckets."""
    words = [[crc32(word.encode()) % BUCKETS for word in text.split()] for text in batch["text"]]
    return (
        torch.tensor(words),
        batch["source"],
        list(zip(batch["source"].tolist(), batch["id"].tolist(), strict=True)),
    )


class Training:
    """A model, its optimizer, and a loader of the mixture."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.EmbeddingBag(BUCKETS, len(SIZES))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        sources = {root / name: weight for name, weight in WEIGHTS.items()}
        batches = TFRecordBatches(sources, BATCH, shuffle=True, seed=7, until="all")
        words = nodes.ParallelMapper(nodes.IterableWrapper(batches), split, num_workers=2, method="thread")
        self.loader = nodes.Loader(nodes.Prefetcher(words, 4))

    def steps(self) -> Iterator[tuple[float, list]]:
        """Train on an epoch. Yield the loss and the rows of each step."""
        for words, sources, rows in self.loader:
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(words), sources)
            loss.backward()
            self.optimizer.step()
            yield loss.item(), rows

    def save(self, path: Path) -> None:
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**parts, "data": json.dumps(self.loader.state_dict())}, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.loader.load_state_dict(json.loads(saved["data"]))


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="mixture-"))
    write(root)
    whole = []
    training = Training(root)
    for step in training.steps():
        whole.append(step)
        if len(whole) % 20 == 0:
            training.save(root / f"{len(whole)}.pt")
    drawn = pd.DataFrame([row for _, rows in whole for row in rows], columns=["source", "row"])
    for number, (name, rows) in enumerate(SIZES.items()):
        of_source = drawn[drawn["source"] == number]
        counts = of_source["row"].value_counts()
        print(f"{name}: {len(of_source)} of {len(drawn)} rows, each of its {rows} at least {counts.min()} x")
        assert len(counts) == rows
        in_batch = (drawn["source"].to_numpy().reshape(-1, BATCH) == number).sum(axis=1)
        assert (in_batch == WEIGHTS[name] * BATCH).all()
    for saved in range(20, len(whole), 20):
        resumed = Training(root)
        resumed.load(root / f"{saved}.pt")
        assert list(resumed.steps()) == whole[saved:]
        print(f"resumed after step {saved}: {len(whole) - saved} steps are equal")
    print(f"the loss falls from {whole[0][0]:.3f} to {whole[-1][0]:.3f}")


if __name__ == "__main__":
    main()
