"""Leave out the tasks of partitions that a filter excludes, without changing the number of partitions.

If `Decision.leaves_out` is True, a read wraps itself in `NeededPartitions`, and the row-by-row expressions
above it move into `NeededPartitions`, up to the root of the graph or up to a `RowSink`. The root still has
all partitions. As soon as anything is computed from the root, `NeededPartitions` becomes the complete
expression again. So nothing changes for consumers that depend on the number, the order or the divisions of
the partitions.

The module uses these private names of Dask, which were checked with Dask 2025.5.1 to 2026.8: the classes
imported below, and the methods of Dask's expressions that `NeededPartitions` overrides.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from dask._task_spec import Alias
from dask.dataframe.dask_expr._expr import Expr
from dask.typing import Key

from dask_tfrecord.collection.expr.optimizations import RowSink


@dataclass(frozen=True, eq=False)
class Origin:
    """The expression whose partitions are left out. It is not an operand, so Dask's optimizer does not change
    it.

    ``numbers`` contains the indices of the partitions that are not left out. ``empty`` is the index of one
    without rows.
    """

    complete: Expr
    numbers: npt.NDArray[np.int64]
    empty: int

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_tfrecord.Origin", self.complete._name, self.numbers.tobytes(), self.empty


class NeededPartitions(Expr):
    """An expression without the tasks of most partitions that have no rows.

    ``needed`` computes only the partitions ``origin.numbers`` of ``origin.complete``. At the root of a graph,
    all partitions that are left out have the key of the partition ``origin.empty``.
    """

    _parameters: ClassVar = ["needed", "origin"]

    @property
    def _meta(self) -> Any:
        return self.origin.complete._meta

    def _divisions(self) -> tuple[Any, ...]:
        divisions: tuple[Any, ...] = self.origin.complete.divisions
        return divisions

    def _simplify_up(self, parent: Expr, dependents: Any) -> Expr:
        simplified: Expr = parent.substitute(self, self.origin.complete)
        return simplified

    def _tune_up(self, parent: Expr) -> Expr | None:
        if not all(isinstance(child, NeededPartitions) for child in parent.dependencies()):
            return None
        needed = _with_inputs(parent, lambda child: child.needed)
        if isinstance(parent, RowSink):
            return needed
        complete = _with_inputs(parent, lambda child: child.origin.complete)
        return NeededPartitions(needed, replace(self.origin, complete=complete))

    def _lower(self) -> Any:
        return self.origin.complete

    # -- Methods that are called only at the root of a graph -------------------------------------------------

    def walk(self) -> Generator[Expr, None, None]:
        yield from self.origin.complete.walk()

    def lower_completely(self) -> Expr:
        return NeededPartitions(self.needed.lower_completely(), self.origin)

    def __dask_keys__(self) -> list[Key]:
        origin: Origin = self.origin
        keys: list[Key] = [(self._name, origin.empty)] * self.npartitions
        for number in origin.numbers.tolist():
            keys[number] = (self._name, number)
        return keys

    def _layer(self) -> dict[Key, Alias]:
        names = ((self._name, number) for number in self.origin.numbers.tolist())
        return {name: Alias(name, (self.needed._name, at)) for at, name in enumerate(names)}


def _with_inputs(expr: Expr, change: Callable[[Any], Expr]) -> Expr:
    """Replace each `NeededPartitions` among the operands of an expression by the result of ``change``."""
    operands = (change(one) if isinstance(one, NeededPartitions) else one for one in expr.operands)
    return type(expr)(*operands)
