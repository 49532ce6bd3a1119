"""Train a JAX model on several processes, with Grain over `RecordTable`, and resume it.

Grain chooses rows, a `RecordTable` reads them by number, and JAX trains one model on the arrays of all
processes. A resumed step has the rows and the loss of an uninterrupted run. There are two forms of batches:

- "padded": ``ElasticIterator`` chooses the rows, so that a checkpoint of 2 processes continues on 3.
- "packed": ``FirstFitPackIterDataset`` puts several lists into a row. A checkpoint includes what is packed.

Run it with ``python examples/train_jax_grain.py [NEW_DIRECTORY]``. It needs ``pip install jax grain``.
"""

import json
import multiprocessing
import os
import socket
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

try:
    import grain
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed, so nothing is trained: pip install jax grain")
    sys.exit()

ROWS, WORDS, LENGTH, GLOBAL_BATCH, PACKS, STEPS, SAVED = 1200, 50, 32, 48, 8, 16, 7


def write(path: Path) -> None:
    """Write lists of 4 to 32 tokens, in which each token determines the next one. 0 is no token."""
    lists = [(i + 7 * np.arange(4 + i % (LENGTH - 3))) % WORDS + 1 for i in range(ROWS)]
    tokens = pd.array(lists, pd.ArrowDtype(pa.list_(pa.int32())))
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(ROWS), "tokens": tokens}), path)


def padded(batch: pa.RecordBatch) -> tuple:
    tokens = np.stack([np.pad(one.values, (0, LENGTH - len(one))) for one in batch["tokens"]])
    return batch["id"].to_pylist(), tokens, np.sign(tokens)


def packed(packs: list[dict]) -> tuple:
    arrays = [np.stack([pack[name] for pack in packs]) for name in ("tokens", "tokens_segment_ids")]
    return [int(i) for pack in packs for i in pack["id"]], *arrays


def batches(path: Path, way: str, rank: int, ranks: int) -> grain.IterDataset:
    """Return a dataset of the batches of this process: the rows, their tokens, and the list of each token."""
    table = dask_tfrecord.feed.RecordTable(path)
    if way == "padded":
        numbers, shard = grain.MapDataset.range(len(table)), grain.sharding.ShardOptions(rank, ranks)
        chosen = grain.experimental.ElasticIterator(numbers.seed(7).shuffle(), GLOBAL_BATCH, shard)
        return chosen.map(table.batch).map(padded)  # reads the rows of a batch together
    rows = grain.MapDataset.source(table).seed(7).shuffle()[rank::ranks].to_iter_dataset()
    options = {"num_packing_bins": PACKS, "meta_features": ["id"]}
    packs = grain.experimental.FirstFitPackIterDataset(rows, length_struct={"tokens": 2 * LENGTH}, **options)
    return packs.batch(PACKS, drop_remainder=True, batch_fn=packed)


@jax.jit
@jax.value_and_grad
def loss_of(weights: jax.Array, tokens: jax.Array, segments: jax.Array) -> jax.Array:
    known = (segments[:, 1:] == segments[:, :-1]) & (tokens[:, 1:] > 0)  # both are of one list
    words = jax.nn.one_hot(tokens, WORDS + 1)
    right = (words[:, 1:] * jax.nn.log_softmax(words[:, :-1] @ weights)).sum(-1)
    return -(right * known).sum() / known.sum()


def train(root: Path, way: str, rank: int, ranks: int, port: int, resume: bool) -> list[dict]:
    """Train in one of the processes. Return what each step has read, and its loss."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # JAX prints its connections
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM ends the process
    jax.distributed.initialize(f"127.0.0.1:{port}", ranks, rank)
    sharding = NamedSharding(Mesh(jax.devices(), "rows"), PartitionSpec("rows"))
    iterator = iter(batches(root / "tokens", way, rank, ranks))
    weights, steps = np.zeros((WORDS + 1, WORDS + 1), np.float32), []
    if resume:  # all states of ElasticIterator are equal, so rank 2 takes that of rank 0
        weights, state = np.load(root / f"{way}-{rank % 2}.npz").values()
        iterator.set_state(json.loads(str(state)))
    for step in range(SAVED if resume else 0, STEPS):
        rows, *local = next(iterator)
        loss, gradient = loss_of(weights, *jax.make_array_from_process_local_data(sharding, local))
        weights = weights - 20 * np.asarray(gradient)
        steps.append({"step": step, "loss": float(loss), "rows": rows, "tokens": (local[0] > 0).mean()})
        if step == SAVED - 1:
            np.savez(root / f"{way}-{rank}.npz", weights, json.dumps(iterator.get_state()))
    jax.distributed.shutdown()
    return steps


def run(*job: object, ranks: int, resume: bool) -> pd.DataFrame:
    """Train in new processes. Return a row for each step."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        running = [pool.apply_async(train, (*job, rank, ranks, port, resume)) for rank in range(ranks)]
        steps = pd.DataFrame([step for one in running for step in one.get(timeout=300)])
    return steps.groupby("step").agg({"loss": "first", "rows": lambda x: sorted(x.sum()), "tokens": "mean"})


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="grain-"))
    write(root / "tokens")
    for way, ranks in {"padded": 3, "packed": 2}.items():
        whole, resumed = run(root, way, ranks=2, resume=False), run(root, way, ranks=ranks, resume=True)
        print(f"{way}: {whole.tokens.mean():.0%} of it are tokens, the loss falls to {whole.loss.min():.4f}")
        print(f"{way}: resumed on {ranks} processes after step {SAVED}, it falls to {resumed.loss.min():.4f}")
        assert resumed["rows"].equals(whole["rows"].loc[SAVED:])
        assert np.allclose(resumed["loss"], whole["loss"].loc[SAVED:], rtol=1e-4)


if __name__ == "__main__":
    main()
