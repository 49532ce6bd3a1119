"""Provide `cached_property`, a decorator for attributes that are computed once."""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801  # the name is in lower case because the class replaces functools.cached_property
    """Cache a computed attribute. Unlike `functools.cached_property` of Python 3.11, use no lock.

    In Python 3.11, `functools.cached_property` uses one lock for all instances of a class. If a process is
    forked while another thread holds the lock, the child process can wait for it forever.
    """

    def __init__(self, function: Callable[[Any], Value]) -> None:
        super().__init__(function)
        self.lock = nullcontext()
