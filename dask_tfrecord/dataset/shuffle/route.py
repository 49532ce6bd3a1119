"""Plan how rows move between partitions: in one round or in two. The module `route` reads no rows."""

from math import ceil, isqrt
from typing import NamedTuple

# The largest number of sections that source partitions write directly for target partitions, in one round.
# Writing and reading a section takes as much processor time as another round takes for about 50 KB of rows.
_MOST_SECTIONS = 1 << 18


class Shuffle(NamedTuple):
    """The way in which rows move between partitions before they are written.

    Attributes
    ----------
    together : tuple of str
        Names of columns: rows with equal values in these columns move to the same partition. If the tuple is
        empty, the rows are spread over the partitions by their sort keys.
    seed : int, optional
        The seed of the random row order. If None, the rows keep the order of the collection.
    npartitions : int
        The number of target partitions.
    """

    together: tuple[str, ...]
    seed: int | None
    npartitions: int


class Route(NamedTuple):
    """The number of rounds in which rows move from source partitions to target partitions.

    If there is one round, all target partitions are one group, and every source partition spills rows for
    each target partition. If there are two rounds, every source partition spills rows for each group. The
    group ``target // width`` has the section ``target % width`` for a target partition.

    Attributes
    ----------
    groups : int
        The number of groups of target partitions, which is 1 if there is one round.
    width : int
        The number of target partitions in a group. The last group may have fewer target partitions.
    chunk : int
        The number of source partitions from which a task of the second round reads the sections of a group.
    chunks : int
        The number of tasks of the second round for each group.
    """

    groups: int
    width: int
    chunk: int
    chunks: int

    @classmethod
    def plan(cls, sources: int, targets: int) -> "Route":
        """Choose the number of rounds and the size of the groups.

        With two rounds, there are at most about (sources + targets) x sqrt(targets) sections.
        A task of the second round holds about as many rows as the larger one of a source partition and a
        target partition.
        """
        groups = 1 if sources * targets <= _MOST_SECTIONS else isqrt(targets)
        width = ceil(targets / groups)
        groups = ceil(targets / width)
        chunk = ceil(sources / max(1, min(sources, targets) // groups)) if groups > 1 else sources
        return cls(groups, width, chunk, ceil(sources / chunk))
