"""Prepare images for training: a CSV of paths becomes augmented, split, shuffled TFRecord shards.

Dask reads a CSV of image paths and labels, loads every image, adds a mirrored copy of the training images,
and writes JPEG bytes and labels as Examples. The images are split into ``split=train`` and ``split=eval`` by
a hash of their name. Rows whose image cannot be loaded are collected as dead letters.

Run it with ``python examples/image_etl.py [NEW_DIRECTORY]``. It draws its own images. It needs
Pillow, which the extra ``examples`` installs.
"""

import hashlib
import io
import sys
import tempfile
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image, ImageOps

import dask_tfrecord

LABELS = {"bird": 0, "cat": 1, "dog": 2}
IMAGES = 300

TYPES = {
    "path": pa.string(),
    "image": pa.binary(),
    "height": pa.int32(),
    "width": pa.int32(),
    "label": pa.int8(),
    "split": pa.string(),
    "error": pa.string(),
}
META = pd.DataFrame({name: pd.Series(dtype=pd.ArrowDtype(type_)) for name, type_ in TYPES.items()})


def draw_images(root: Path) -> Path:
    """Draw small images, and list them in a CSV together with one image that does not exist."""
    root.mkdir(parents=True)
    random = np.random.default_rng(0)
    rows = [(str(root / "missing.png"), "cat")]
    for number in range(IMAGES):
        path = root / f"{number:05d}.png"
        Image.fromarray(random.integers(0, 255, (48, 64, 3), dtype=np.uint8)).save(path)
        rows.append((str(path), list(LABELS)[number % len(LABELS)]))
    pd.DataFrame(rows, columns=["path", "label"]).to_csv(root / "images.csv", index=False)
    return root / "images.csv"


def split_of(path: str) -> str:
    """Assign one image in ten to the evaluation, always the same ones."""
    return "eval" if int(hashlib.sha256(Path(path).name.encode()).hexdigest(), 16) % 10 == 0 else "train"


def load(rows: pd.DataFrame) -> pd.DataFrame:
    """Load and augment the images of one partition."""
    loaded = []
    for path, name in zip(rows["path"], rows["label"], strict=True):
        label, split = LABELS[name], split_of(path)
        try:
            image = Image.open(path)
            copies = [image, ImageOps.mirror(image)] if split == "train" else [image]
        except OSError as error:
            loaded.append((path, None, None, None, label, split, str(error)))
            continue
        for copy in copies:
            data = io.BytesIO()
            copy.save(data, "JPEG")
            loaded.append((path, data.getvalue(), copy.height, copy.width, label, split, None))
    return pd.DataFrame(loaded, columns=list(TYPES)).astype(META.dtypes.to_dict())


def main() -> None:
    """Draw images, prepare them, and read the result back."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="images-"))
    csv = draw_images(root / "raw")
    images = dd.read_csv(csv, blocksize="4 kB").map_partitions(load, meta=META)
    good = images[images["error"].isna()].drop(columns="error")
    dead = images[~images["error"].isna()][["path", "error"]]
    write = dask_tfrecord.to_tfrecord(
        good,
        root / "prepared",
        partition_on="split",
        colocate=True,
        shuffle=True,
        seed=42,
        write_options={"max_rows_per_file": 200},
        compute=False,
    )
    written, dead_letters = dask.compute(write, dead)
    print(written)
    print(f"{len(dead_letters)} dead letter: {dead_letters['error'].iloc[0]}")

    back = dask_tfrecord.read_tfrecord(root / "prepared")
    print(back.groupby(["split", "label"], observed=True).size().compute().sort_index())
    training = dask_tfrecord.feed.RecordTable(root / "prepared" / "split=train")
    image = Image.open(io.BytesIO(training[0]["image"]))
    print(f"the first of {len(training)} training images: {image.format}, {image.width} x {image.height}")
    assert len(dead_letters) == 1
    assert written.rows == len(back)


if __name__ == "__main__":
    main()
