"""Train one Keras model on several processes with JAX, stop in the middle of an epoch, and resume.

`TFRecordPyDataset` returns the batches of one process (``shard=``). With ``elastic=6``, the batches of a step
have together the same rows on 1, 2, 3 or 6 processes. So a model that is trained on 2 processes, and from the
middle of an epoch on 3, gets the weights of a model that one process trains without an interruption.

Run it with ``python examples/train_keras_ranks.py [NEW_DIRECTORY]``. It needs ``pip install keras jax``.
"""

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

os.environ |= {"KERAS_BACKEND": "jax", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
try:
    import jax
    import keras
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed, so nothing is trained: pip install keras jax")
    sys.exit()

ROWS, GLOBAL_BATCH, ELASTIC, STEPS, STOP = 960, 48, 6, 40, 27  # an epoch has 20 steps


def write(path: Path) -> None:
    """Write rows with a list of two numbers, whose difference is to be learned."""
    x = np.random.default_rng(0).normal(size=(ROWS, 2)).astype("float32")
    pairs = pd.array(list(x), pd.ArrowDtype(pa.list_(pa.float32(), 2)))  # lists of a fixed length
    frame = pd.DataFrame({"x": pairs, "y": x[:, 0] - x[:, 1]})
    dask_tfrecord.to_tfrecord(frame, path, write_options={"max_rows_per_file": 100})


def train(root: Path, rank: int, ranks: int, port: int, stop: int) -> tuple[float, list[np.ndarray]]:
    """Train in one of the processes until a step. Return the loss and the weights."""
    from dask_tfrecord.feed.keras import TFRecordPyDataset

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # JAX prints its connections
    jax.config.update("jax_enable_preemption_service", False)  # SIGTERM ends the process
    if ranks > 1:
        keras.distribution.initialize(f"127.0.0.1:{port}", ranks, rank)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    saved = root / "model.keras"
    if saved.exists():
        model = keras.saving.load_model(saved)
    else:
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential([keras.layers.Input((2,)), *layers])
        model.compile(keras.optimizers.Adam(0.05), "mse")
    shard = (jax.process_index(), jax.process_count())
    while (step := int(model.optimizer.iterations)) < stop:
        batches = TFRecordPyDataset(
            root / "rows",
            GLOBAL_BATCH // ranks,
            "x",
            "y",
            shuffle=True,
            seed=7,
            shard=shard,
            elastic=ELASTIC,
            step=step,
        )
        of_epoch = min(stop - step, len(batches) - step % len(batches))  # until the epoch ends
        history = model.fit(batches, steps_per_epoch=of_epoch, shuffle=False, verbose=0)
    if stop < STEPS:
        model.save(root / f"stopped-{rank}.keras")  # Keras waits until all processes save
    weights = [np.asarray(weight) for weight in model.get_weights()]
    if ranks > 1:
        jax.distributed.shutdown()
    return history.history["loss"][-1], weights


def run(root: Path, ranks: int, stop: int) -> tuple[float, list[np.ndarray]]:
    """Train in new processes. Return the loss and the weights of the first one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        running = [pool.apply_async(train, (root, rank, ranks, port, stop)) for rank in range(ranks)]
        results = [one.get(timeout=300) for one in running]
    print(f"ranks: {ranks}, trained until step {stop}, the loss of the last steps is {results[0][0]:.4f}")
    return results[0]


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="keras-"))
    write(root / "rows")
    _, whole = run(root, 1, STEPS)
    run(root, 2, STOP)
    (root / "stopped-0.keras").rename(root / "model.keras")
    _, resumed = run(root, 3, STEPS)
    difference = max(np.abs(one - other).max() for one, other in zip(whole, resumed, strict=True))
    print(f"the weights of the two models differ by at most {difference:.0e}")
    assert difference < 1e-3


if __name__ == "__main__":
    main()
