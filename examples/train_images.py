"""Decode and augment JPEG images for PyTorch, and print when DataLoader workers pay.

``convert=`` turns a batch of records into what the model takes: it decodes the JPEG images, crops and mirrors
them at random, and returns tensors. The program measures the same epoch in three ways: in the training
process, in two threads of it, and in two DataLoader workers. It also measures rows of numbers, which workers
usually make slower.

Run it with ``python examples/train_images.py [NEW_DIRECTORY]``. It draws its own images. Install what it
needs with ``pip install torch pillow``.
"""

import io
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

import dask_tfrecord

try:
    import torch
    from PIL import Image, ImageOps
    from torch.utils.data import DataLoader
except ModuleNotFoundError as error:
    print(f"{error.name} is not installed, so nothing is read: pip install torch pillow")
    sys.exit()

IMAGES, NUMBERS, CLASSES, BATCH = 384, 50_000, 3, 32
ALONE = "in the training process"
STORED, CROP, SIZE = (240, 320), 200, 96  # height and width of the files, of a crop, of the model's input


def draw(label: int, random: np.random.Generator) -> bytes:
    """Draw an image in which the color of the class is the brightest."""
    coarse = random.integers(0, 120, (STORED[0] // 8, STORED[1] // 8, 3), np.uint8)
    coarse[..., label] += 120
    data = io.BytesIO()
    Image.fromarray(coarse).resize(STORED[::-1]).save(data, "JPEG", quality=90)
    return data.getvalue()


def write(root: Path) -> None:
    """Write a dataset of JPEG bytes and labels, and a dataset of numbers."""
    random = np.random.default_rng(0)
    labels = np.arange(IMAGES) % CLASSES
    frame = pd.DataFrame({"id": np.arange(IMAGES), "label": labels})
    frame["image"] = pd.array([draw(label, random) for label in labels], pd.ArrowDtype(pa.binary()))
    dask_tfrecord.to_tfrecord(dd.from_pandas(frame, npartitions=4), root / "images", shuffle=True, seed=1)
    dask_tfrecord.to_tfrecord(pd.DataFrame({"id": np.arange(NUMBERS)}), root / "numbers")


def augmented(image: memoryview) -> np.ndarray:
    """Decode an image, and return a random part of it, which is mirrored half of the time."""
    # Random numbers of PyTorch, because a DataLoader gives each worker and each epoch another seed.
    top, left, mirror = torch.rand(3).tolist()
    top, left = int(top * (STORED[0] - CROP)), int(left * (STORED[1] - CROP))
    box = (left, top, left + CROP, top + CROP)
    part = Image.open(io.BytesIO(image)).resize((SIZE, SIZE), box=box)
    return np.asarray(ImageOps.mirror(part) if mirror < 0.5 else part)


def converted(batch: pa.RecordBatch, threads: ThreadPoolExecutor | None = None) -> dict[str, Any]:
    """Convert records to tensors. A DataLoader worker runs this function itself."""
    from dask_tfrecord.feed.torch import to_tensors

    files = [image.as_buffer() for image in batch["image"]]
    pixels = torch.from_numpy(np.stack(list((threads.map if threads else map)(augmented, files))))
    images = pixels.permute(0, 3, 1, 2).contiguous().float().div_(255)
    return {**to_tensors(batch.select(["id", "label"])), "image": images}


def main() -> None:
    """Write images, and read them in several ways."""
    from dask_tfrecord.feed.torch import TFRecordBatches

    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="jpeg-"))
    write(root)

    def speed(name: str, workers: int, **keywords: Any) -> float:
        dataset = TFRecordBatches(root / name, BATCH, shuffle=True, seed=7, **keywords)
        loader = DataLoader(dataset, None, num_workers=workers, persistent_workers=workers > 0)
        for epoch in range(2):  # the first epoch starts the workers
            dataset.set_epoch(epoch)
            start, rows = perf_counter(), []
            for batch in loader:
                rows += batch["id"].tolist()
                if "image" in batch:
                    assert batch["image"].shape == (len(batch["id"]), 3, SIZE, SIZE)
                    brightest = batch["image"].mean((2, 3)).argmax(1)
                    assert brightest.equal(batch["label"]), "each image comes with its label"
            assert sorted(rows) == list(range(IMAGES if name == "images" else NUMBERS)), "each row comes once"
        return len(rows) / (perf_counter() - start)

    with ThreadPoolExecutor(2) as threads:
        images = {
            ALONE: speed("images", 0, convert=converted),
            "in 2 threads of it": speed("images", 0, convert=lambda batch: converted(batch, threads)),
            "in 2 workers": speed("images", 2, convert=converted),
        }
    numbers = {workers: speed("numbers", workers) for workers in (0, 2)}
    for way, rows in images.items():
        print(f"JPEG decoded {way:27}{rows:8,.0f} rows/s")
    for workers, rows in numbers.items():
        print(f"numbers only, {workers} workers{rows:26,.0f} rows/s")
    gains = images["in 2 workers"] / images[ALONE], numbers[2] / numbers[0]
    print(f"2 workers return {gains[0]:.1f} times the images, and {gains[1]:.1f} times the rows of numbers:")
    print("they pay if it takes longer to convert a batch than to move it to the training process.")


if __name__ == "__main__":
    main()
