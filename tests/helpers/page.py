"""Runs the blocks of code of one page in one namespace."""

import sys
import warnings


def main() -> None:
    """Read the blocks from stdin, with null characters between them; print one after the output of each.

    A warning that a user would see is an error.
    """
    warnings.simplefilter("error", UserWarning)
    warnings.filterwarnings("ignore", ".*set_vital.*")  # torchdata calls a deprecated function of PyTorch
    namespace = {"__name__": "__main__"}
    for number, block in enumerate(sys.stdin.read().split("\0"), 1):
        exec(compile(block, f"block {number}", "exec"), namespace)
        print(end="\0", flush=True)
