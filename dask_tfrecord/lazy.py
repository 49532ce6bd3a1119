"""Attributes that are computed once."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801  # the name of the class it stands for
    """`functools.cached_property` without the lock that it has until Python 3.11.

    All instances share that lock. A process that is forked while another thread computes a value would wait
    for it forever.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        super().__init__(function)
        self.lock = nullcontext()
