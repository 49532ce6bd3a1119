"""The program of the page about DDP, started by torchrun.

Modules: feed.torch, feed.epochs, feed.rows.resume_position.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"


def _train(root: Path, ranks: int) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    result = subprocess.run([*torchrun, EXAMPLE, root], check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert f"ranks: {ranks}, step: 100" in result.stdout


def test_two_ranks_stop_and_three_go_on_to_the_weights_of_an_uninterrupted_run(tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    whole.mkdir()
    _train(whole, 2)
    shutil.copytree(whole, stopped)
    for step in (40, 60, 80, 100):  # as if it was stopped before it saved the second checkpoint
        (stopped / f"step-{step:06}.pt").unlink()
    _train(stopped, 3)
    found, expected = (torch.load(root / "step-000100.pt")["model"] for root in (stopped, whole))
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-5)
