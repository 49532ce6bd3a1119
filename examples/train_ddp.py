"""Train with DDP. Stop the run, and go on with another number of ranks, which must divide 24.

``torchrun --nproc-per-node=2 train_ddp.py DIRECTORY`` saves a checkpoint after every 20 steps. Start it again
with ``--nproc-per-node=3``: each step gets the rows of an uninterrupted run.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from torch import distributed
from torchdata.stateful_dataloader import StatefulDataLoader

import dask_tfrecord
from dask_tfrecord.feed.torch import TFRecordBatches

root = Path(sys.argv[1])
distributed.init_process_group("gloo")  # "nccl" on GPUs
rank, ranks = distributed.get_rank(), distributed.get_world_size()
if rank == 0 and not (root / "train").exists():  # 5,000 vectors and their classes
    x = np.random.default_rng(0).normal(size=(5000, 32)).astype("float32")
    frame = pd.DataFrame({"x": list(x), "label": x[:, :10].argmax(axis=1)})
    dask_tfrecord.to_tfrecord(frame, root / "train", schema={"x": pa.list_(pa.float32(), 32)})
distributed.barrier()

torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(32, 10))
adam = torch.optim.Adam(model.parameters(), 0.01)
dataset = TFRecordBatches(root / "train", 96 // ranks, shuffle=True, seed=7, elastic=24)
first = step = 0
if checkpoints := sorted(root.glob("step-*.pt")):
    saved = torch.load(checkpoints[-1])
    first, step = saved["epoch"], saved["step"]
    model.module.load_state_dict(saved["model"])
    adam.load_state_dict(saved["adam"])
    dataset.load_state_dict(saved["ranks"])  # of all ranks; a loader accepts only the state of its own rank

loader = StatefulDataLoader(dataset, batch_size=None, num_workers=2)
for epoch in range(first, 2):
    dataset.set_epoch(epoch)
    for batch in loader:
        adam.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch["x"]), batch["label"])
        loss.backward()
        adam.step()
        step += 1
        if step % 20 == 0:
            states = [None] * ranks
            distributed.all_gather_object(states, loader.state_dict())
            if rank == 0:
                saved = {"epoch": epoch, "step": step, "ranks": states}
                saved |= {"model": model.module.state_dict(), "adam": adam.state_dict()}
                torch.save(saved, root / "new.pt")
                (root / "new.pt").rename(root / f"step-{step:06}.pt")  # now the checkpoint is complete
                print(f"ranks: {ranks}, step: {step}, loss: {loss.item():.3f}", flush=True)
distributed.destroy_process_group()
