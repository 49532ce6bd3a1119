"""Train with DDP and FSDP on data in S3, kill the run in the middle of an epoch, resume it on 3 processes.

With ``elastic=12``, a step has the same rows on 1, 2, 3, 4, 6 or 12 processes. So a run that is killed on 2
processes and continues on 3 has in each step the rows and the loss of an uninterrupted run of one process.
The checkpoint contains the model, the optimizer and the states of the loaders of all ranks.
``python examples/train_ddp_s3.py [NEW_DIRECTORY]`` takes some minutes on two cores. It starts an S3 server,
and needs ``pip install torch torchdata s3fs "moto[s3,server]"``. For your own program, copy `train_ddp.py`.
"""

import json
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

import dask_tfrecord

try:
    import s3fs
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from moto.server import ThreadedMotoServer
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from torchdata.stateful_dataloader import StatefulDataLoader

    from dask_tfrecord.feed.torch import TFRecordBatches
except ModuleNotFoundError as error:
    print(f'{error.name} is not installed: pip install torch torchdata s3fs "moto[s3,server]"')
    sys.exit()

PATH, ROWS, GLOBAL_BATCH, SAVED, KILLED = "s3://bucket/rows", 960, 48, 27, 31  # an epoch has 20 steps
RANKS = {"whole": 1, "killed": 2, "resumed": 3}  # the processes of each run


def state_of(model: torch.nn.Module, adam: torch.optim.Adam, data: str) -> dict:
    weights, moments = get_state_dict(model, adam)
    return {"model": weights, "adam": moments, "data": data}


def train(rank: int, root: Path, kind: str, run: str) -> None:
    """Train in one process. It logs the loss and the rows of each step, of all ranks together."""
    ranks = RANKS[run]
    dist.init_process_group("gloo", f"file://{root}/{kind}-{run}", rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = fully_shard(model) if kind == "FSDP" else DistributedDataParallel(model)
    adam = torch.optim.Adam(model.parameters(), 0.01)
    dataset = TFRecordBatches(PATH, GLOBAL_BATCH // ranks, shuffle=True, seed=7, elastic=12)
    first = step = 0
    if run == "resumed":
        saved = state_of(model, adam, "")
        dcp.load(saved, checkpoint_id=root / kind)
        set_state_dict(model, adam, model_state_dict=saved["model"], optim_state_dict=saved["adam"])
        first, step, states = json.loads(saved["data"])
        dataset.load_state_dict(states)
    loader = StatefulDataLoader(dataset, batch_size=None)
    for epoch in range(first, 2):
        dataset.set_epoch(epoch)
        for batch in loader:
            adam.zero_grad()
            guesses = model(torch.stack([batch["x0"], batch["x1"]], 1))[:, 0]
            loss = torch.nn.functional.mse_loss(guesses, batch["y"])
            loss.backward()
            adam.step()
            step += 1
            found = [None] * ranks
            dist.all_gather_object(found, (loss.item(), tuple(batch["id"].tolist()), loader.state_dict()))
            losses, rows, states = zip(*found, strict=True)
            with (root / f"{kind}-{run}-{rank}.log").open("a") as log:
                print(json.dumps([sum(losses) / ranks, sorted(sum(rows, ()))]), file=log)
            if run == "killed" and step == SAVED:
                dcp.save(state_of(model, adam, json.dumps([epoch, step, states])), checkpoint_id=root / kind)
            if run == "killed" and step == KILLED and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


def steps_of(root: Path, kind: str, run: str) -> list:
    """Train in new processes, until they end or one is killed. Return the loss and the rows of each step."""
    print(f"{kind}, ranks: {RANKS[run]}, begins", flush=True)
    try:
        mp.spawn(train, (root, kind, run), RANKS[run])
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as problem:
        print(f"{kind}: {str(problem).strip().splitlines()[-1]}")
    steps = [json.loads(line) for line in (root / f"{kind}-{run}-0.log").read_text().splitlines()]
    print(f"{kind}, ranks: {RANKS[run]}, {len(steps)} steps, the loss falls to {steps[-1][0]:.4f}")
    return steps


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="ddp-"))
    root.mkdir(exist_ok=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # without a line for each request
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    os.environ |= {"AWS_ACCESS_KEY_ID": "user", "AWS_SECRET_ACCESS_KEY": "secret"}
    os.environ["AWS_ENDPOINT_URL"] = "http://{}:{}".format(*server.get_host_and_port())
    s3fs.S3FileSystem().mkdir("bucket")
    x0, x1 = np.random.default_rng(0).normal(size=(2, ROWS)).astype("float32")
    frame = pd.DataFrame({"id": np.arange(ROWS), "x0": x0, "x1": x1, "y": np.sin(x0) * x1})
    dask_tfrecord.to_tfrecord(frame, PATH, write_options={"max_rows_per_file": 100})
    whole = steps_of(root, "DDP", "whole")
    for kind in ("DDP", "FSDP"):
        steps = steps_of(root, kind, "killed")[:SAVED] + steps_of(root, kind, "resumed")
        assert [rows for _, rows in steps] == [rows for _, rows in whole]
        assert np.allclose([loss for loss, _ in steps], [loss for loss, _ in whole], rtol=1e-3)
    server.stop()


if __name__ == "__main__":
    main()
