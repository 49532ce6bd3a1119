"""Train a Keras model on TFRecord in three ways, and compare its accuracy with NumPy arrays in memory.

Run it with ``python examples/train_tensorflow.py [NEW_DIRECTORY]``. It needs TensorFlow, and scikit-learn,
which the extra ``examples`` installs.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0")

import digits
import keras
import tensorflow as tf

import dask_tfrecord
from dask_tfrecord.feed.keras import TFRecordPyDataset
from dask_tfrecord.feed.tensorflow import feature_spec, tensorflow_dataset

EPOCHS = 8


def accuracy(*data: Any, **how: Any) -> float:
    """Train a small model, and return its accuracy on the evaluation images."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.layers.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    quiet: Any = {"verbose": 0}  # Keras annotates only the default, which is a text
    model.fit(*data, epochs=EPOCHS, shuffle=False, **quiet, **how)
    _, found = model.evaluate(*EVALUATION, **quiet)
    return float(found)


TRAINING, EVALUATION = digits.load()


def main() -> None:
    """Write the digits and train on them."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="digits-"))
    path = root / "digits"
    digits.write(TRAINING, path)
    spec = feature_spec(path)
    print("The spec for TensorFlow's own parser:\n", spec)
    ours = tensorflow_dataset(path, 32, ["image"], "label")
    files = dask_tfrecord.open_dataset(path).files["path"].tolist()
    parsed = tf.data.TFRecordDataset(files).batch(32).map(spec.parse)
    parsed = parsed.apply(tf.data.experimental.assert_cardinality(len(ours)))

    found = {
        "NumPy arrays": accuracy(TRAINING.images, TRAINING.labels, batch_size=32),
        "tf.data, our decoder": accuracy(ours.map(lambda row, label: (row["image"], label))),
        "tf.data, TensorFlow's parser": accuracy(parsed.map(lambda row: (row["image"], row["label"]))),
        "Keras PyDataset": accuracy(TFRecordPyDataset(path, 32, "image", "label")),
    }
    for way, reached in found.items():
        print(f"{way:30}{reached:.4f}")
    assert len(set(found.values())) == 1, "the same rows in the same order give the same model"


if __name__ == "__main__":
    main()
