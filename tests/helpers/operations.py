"""The methods of `Dataset` as functions of a path, for tables of calls."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import dask_tfrecord

_STORE = ("storage_options", "filesystem")
_OF_OPEN = {"verify": ("record_type",), "add_snapshot": ("schema", "hive", "record_type", "split")}


def _call(method: str, opens: tuple[str, ...], path: Any, *args: Any, **keywords: Any) -> Any:
    of_open = {name: keywords.pop(name) for name in opens if name in keywords}
    return getattr(dask_tfrecord.open_dataset(path, **of_open), method)(*args, **keywords)


def _function(method: str) -> Callable[..., Any]:
    opens = (*_STORE, *_OF_OPEN.get(method, ()))
    call = partial(_call, method, opens)
    known = inspect.signature(dask_tfrecord.open_dataset).parameters
    own = list(inspect.signature(getattr(dask_tfrecord.Dataset, method)).parameters.values())[1:]
    parameters = sorted([known["path"], *own, *(known[name] for name in opens)], key=lambda one: one.kind)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # `inspect.signature` reads it
    return call


add_snapshot = _function("add_snapshot")
check = _function("check")
cleanup = _function("cleanup")
compact = _function("compact")
delete = _function("delete")
expire = _function("expire")
export = _function("export")
history = _function("history")
repair = _function("repair")
restore = _function("restore")
take = _function("take")
verify = _function("verify")
