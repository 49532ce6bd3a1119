"""Read the defaults that users set in Dask's configuration under the keys ``dask-tfrecord.*``.

The file ``dask-tfrecord.yaml`` lists the configuration keys, what each key means, and the built-in defaults.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import dask
import yaml
from dask.utils import parse_bytes

from dask_tfrecord.codec import limit_pool
from dask_tfrecord.errors import Remedy, TFRecordError

Value = TypeVar("Value")

_NAME = "dask-tfrecord"
_DEFAULTS = yaml.safe_load(Path(__file__).with_name("dask-tfrecord.yaml").read_text())

dask.config.update_defaults(_DEFAULTS)


def keyword_or_default(
    keyword: str, value: Any, check: Callable[[Any], Value], unset: str | None = "default"
) -> Value:
    """Return the value that the caller passed for a keyword, or otherwise the value in Dask's configuration.

    Parameters
    ----------
    keyword : str
        Name of the keyword, which is also the last part of the configuration key, with "-" for "_".
    value : object
        The value that the caller passed for the keyword.
    check : callable
        Function that returns the valid form of a value, or raises a `TFRecordError`.
    unset : str or None, default "default"
        The passed value that stands for the value in the configuration.

    Raises
    ------
    TFRecordError
        If ``check`` refuses the value. The error about a configured value names the configuration key.
    """
    if not isinstance(value, str | None) or value != unset:
        return check(value)
    name = keyword.replace("_", "-")
    key, default = f"{_NAME}.{name}", _DEFAULTS[_NAME][name]
    configured = dask.config.get(key, default=default)
    try:
        return check(configured)
    except TFRecordError as error:
        raise error.replaced(
            problem=f"the value {configured!r} of {key!r} in Dask's configuration: {error.problem}",
            advice="change the configuration",
            remedies=[Remedy(keyword, default, "override the configuration")],
            function="",
        ) from None


def limit_memory_pool() -> None:
    """Limit the memory that this process keeps for later batches to ``dask-tfrecord.memory-pool`` bytes.

    Raises
    ------
    TFRecordError
        If the configured value is not a number of bytes.
    """
    key = f"{_NAME}.memory-pool"
    configured = dask.config.get(key, default=None)
    if configured is None:
        return
    try:
        limit_pool(parse_bytes(configured))
    except (ValueError, TypeError, AttributeError):
        problem = f"the value {configured!r} of {key!r} in Dask's configuration is not a number of bytes"
        raise TFRecordError(problem, "write it as '256 MiB'") from None
