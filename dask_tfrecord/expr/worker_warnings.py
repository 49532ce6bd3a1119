"""Warnings of tasks."""

import sys
import warnings


def tell(message: str, category: type[Warning]) -> None:
    """Warn here, and in the client of the worker that this may be."""
    distributed = sys.modules.get("distributed")  # or the scheduler is another one
    warn = warnings.warn if distributed is None else distributed.warn
    warn(message, category, 4)
