"""The handwritten digits of scikit-learn as TFRecord, for the training examples.

It needs scikit-learn, which the extra ``examples`` installs.
"""

from pathlib import Path
from typing import NamedTuple

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.datasets import load_digits

import dask_tfrecord

TRAINING_ROWS = 1500


class Digits(NamedTuple):
    """Images of 64 pixels between 0 and 1, and the digits that they show."""

    images: np.ndarray
    labels: np.ndarray


def load() -> tuple[Digits, Digits]:
    """Load the digits in a random order: the first for training, the rest for evaluation."""
    images, labels = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = (images[order] / 16).astype("float32"), labels[order]
    return (
        Digits(images[:TRAINING_ROWS], labels[:TRAINING_ROWS]),
        Digits(images[TRAINING_ROWS:], labels[TRAINING_ROWS:]),
    )


def write(digits: Digits, path: Path) -> None:
    """Write digits as TFRecord. A fixed-size list keeps the shape of an image."""
    images = pa.FixedSizeListArray.from_arrays(pa.array(digits.images.ravel()), 64)
    frame = pd.DataFrame({"image": pd.arrays.ArrowExtensionArray(images), "label": digits.labels})
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=3, sort=False), path)


def main() -> None:
    """Print what the training examples read."""
    training, evaluation = load()
    print(f"{len(training.labels)} images for training, {len(evaluation.labels)} for evaluation")


if __name__ == "__main__":
    main()
