"""Train a PyTorch model on TFRecord in two ways, and compare its accuracy with tensors in memory.

Run it with ``python examples/train_torch.py [NEW_DIRECTORY]``. It needs PyTorch, and scikit-learn, which
the extra ``examples`` installs. PyTorch is large, so no extra installs it.
"""

import importlib.util
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import digits

EPOCHS = 8


def main() -> None:
    """Write the digits and train on them."""
    if not importlib.util.find_spec("torch"):
        print("PyTorch is not installed, so there is nothing to train: pip install torch")
        return
    import torch
    from torch.utils.data import DataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches, TFRecordTable

    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="digits-"))
    training, evaluation = digits.load()
    digits.write(training, root / "digits")

    def accuracy(batches: Iterable[dict[str, torch.Tensor]]) -> float:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(EPOCHS):
            for batch in batches:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
                optimizer.step()
        guesses = model(torch.from_numpy(evaluation.images)).argmax(1).numpy()
        return float((guesses == evaluation.labels).mean())

    memory = [
        {
            "image": torch.from_numpy(training.images[start : start + 32]),
            "label": torch.from_numpy(training.labels[start : start + 32]),
        }
        for start in range(0, len(training.labels), 32)
    ]
    table = TFRecordTable(root / "digits")
    found = {
        "tensors in memory": accuracy(memory),
        "batches in order": accuracy(DataLoader(TFRecordBatches(root / "digits", 32), batch_size=None)),
        "all rows shuffled": accuracy(DataLoader(table, 32, shuffle=True, collate_fn=table.collate)),
    }
    for way, reached in found.items():
        print(f"{way:20}{reached:.4f}")
    assert found["tensors in memory"] == found["batches in order"]
    assert found["all rows shuffled"] > 0.9


if __name__ == "__main__":
    main()
