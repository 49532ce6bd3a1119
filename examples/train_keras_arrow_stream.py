"""Scale CSV files with Dask, stream the rows to another process as Arrow, and train a Keras model there.

Run it with ``python examples/train_keras_arrow_stream.py [NEW_DIRECTORY]``. The training process needs
TensorFlow I/O, which works with an old TensorFlow only. Make a virtual environment of its own for it with
``pip install tensorflow-io==0.37.1 tensorflow-cpu==2.16.2 numpy==1.26.4``, and name its Python in the
environment variable ``DASK_TFRECORD_TFIO_PYTHON``.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_tfrecord
from dask_tfrecord.feed import stream

EPOCHS = 5

# Runs in the other process, after the code that constructs `dataset`.
TRAINING = f"""
dataset = dataset.map(lambda row: (tf.stack([row["x0"], row["x1"]], axis=1), row["label"]))
tf.keras.utils.set_random_seed(1)
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1, activation="sigmoid")])
model.compile(tf.keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
history = model.fit(dataset, epochs={EPOCHS}, shuffle=False, verbose=0).history
print(*(f"{{value:.3f}}" for value in history["accuracy"]))
assert history["accuracy"][-1] > 0.95
"""


def write_csv(directory: Path) -> None:
    """Write two clouds of points, as four files."""
    random = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(4):
        label = random.integers(0, 2, 5000)
        points = {name: random.normal(size=5000) + 5 * label for name in ("x0", "x1")}
        pd.DataFrame({"label": label, **points}).to_csv(directory / f"{number}.csv", index=False)


def main() -> None:
    """Scale, write and serve the points, and train on the stream."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="stream-"))
    write_csv(root / "csv")
    points = dd.read_csv(str(root / "csv" / "*.csv"))
    features = points[["x0", "x1"]]
    mean, std = dask.compute(features.mean(), features.std())
    scaled = points.assign(**{name: (points[name] - mean[name]) / std[name] for name in ("x0", "x1")})
    dask_tfrecord.to_tfrecord(scaled, root / "scaled", lossy="allow")

    with stream.serve(
        root / "scaled", f"unix://{root}/stream.sock", batch_size=512, shuffle=True, seed=1
    ) as server:
        code = server.client_code()
        print(code)
        python = os.environ.get("DASK_TFRECORD_TFIO_PYTHON")
        if not python:
            print("DASK_TFRECORD_TFIO_PYTHON names no Python with TensorFlow I/O, so nothing is trained.")
            return
        subprocess.run([python, "-c", code + TRAINING], check=True)
        print([(one.rows, one.outcome) for one in server.passes])


if __name__ == "__main__":
    main()
