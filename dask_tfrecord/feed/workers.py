"""Send batches, tensors and statistics from the worker processes of a loader to its main process."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import torch
from torch.utils.data import get_worker_info

from dask_tfrecord.feed.batch_statistics import BatchStatistics
from dask_tfrecord.feed.batches import Batches
from dask_tfrecord.feed.record_table import RecordTable

# If the tensors of a batch have at most this many bytes in all, they are part of the message. Otherwise,
# shared memory is faster. A larger tensor has its own, so that a program that keeps the labels need not keep
# the images.
_IN_MESSAGE = 1 << 19

# Each tensor begins at a multiple of this number of bytes.
_ALIGNMENT = 64

_Buffer: TypeAlias = bytearray | torch.Tensor


class Packed(dict[str, Any]):
    """A batch in a worker. The process that receives it gets a plain dict with the same values."""


class _ByteSpan(NamedTuple):
    """Where the values of a tensor are: the bytes from ``start`` to ``stop`` of one buffer of the message."""

    dtype: torch.dtype
    shape: Sequence[int]
    buffer: int
    start: int
    stop: int


class _Jagged(NamedTuple):
    values: _ByteSpan
    offsets: _ByteSpan


class _Pieces(NamedTuple):
    """A list of one-dimensional tensors of bytes, which lie next to each other in one buffer."""

    values: _ByteSpan
    sizes: Sequence[int]


def for_message(element: Any) -> Any:
    """Return an element in a form that travels fast, if this process is a DataLoader worker."""
    if get_worker_info() is None:
        return element
    if isinstance(element, pa.RecordBatch) and element.get_total_buffer_size() > element.nbytes:
        return _trimmed(element)
    if type(element) is tuple:  # such as (features, label)
        return tuple(for_message(one) for one in element)
    return Packed(element) if type(element) in (dict, Packed) else element


def jagged(values: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor of lists, with the longest length, which PyTorch needs for padding."""
    longest = int(offsets.diff().max()) if len(offsets) > 1 else 0
    return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)


def _trimmed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Copy a slice of a batch, because pickling a slice would send all rows of the larger batch."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(stream.getvalue()).read_next_batch()


def _reduced(batch: Packed) -> tuple[Any, ...]:
    buffers = _Buffers()
    parts = {name: _packed(value, buffers) for name, value in batch.items()}
    return _unpacked, (parts, buffers.all())


# `copy` and `pickle` do not use this function, so a copy of a batch in the worker is a `Packed`, too.
ForkingPickler.register(Packed, _reduced)


class _Buffers:
    """The buffers of one message. The first buffer has all tensors that are not large."""

    def __init__(self) -> None:
        self._small: list[Any] = []
        self._size = 0
        self._large: list[_Buffer] = []

    def add(self, tensor: torch.Tensor) -> _ByteSpan:
        values = tensor.reshape(-1).view(torch.uint8)
        size = len(values)
        if size > _IN_MESSAGE:
            self._large.append(_shared(values))
            return _ByteSpan(tensor.dtype, tuple(tensor.shape), len(self._large), 0, size)
        start, padding = self._size, -size % _ALIGNMENT
        self._small += [values.numpy(), bytes(padding)]
        self._size += size + padding
        return _ByteSpan(tensor.dtype, tuple(tensor.shape), 0, start, start + size)

    def all(self) -> list[_Buffer]:
        joined = bytearray().join(self._small)
        return [_shared(_as_tensor(joined)) if self._size > _IN_MESSAGE else joined, *self._large]


def _shared(values: torch.Tensor) -> _Buffer:
    try:
        return values.share_memory_()
    except RuntimeError:  # the system has no shared memory left
        return bytearray(values.numpy())


def _as_tensor(buffer: _Buffer) -> torch.Tensor:
    if isinstance(buffer, torch.Tensor):
        return buffer
    return torch.frombuffer(buffer, dtype=torch.uint8) if buffer else torch.empty(0, dtype=torch.uint8)


def _packed(value: Any, buffers: _Buffers) -> Any:
    """Put a tensor, or a list of tensors of bytes, into the buffers. Return other values as they are."""
    if isinstance(value, torch.Tensor):
        if _is_plain(value):
            return buffers.add(value)
        if _is_list_column(value):
            return _Jagged(buffers.add(value.values()), buffers.add(value.offsets()))
    elif type(value) is list and value and all(map(_is_bytes, value)) and _is_plain(value[0]):
        return _Pieces(buffers.add(torch.cat(value)), [len(piece) for piece in value])
    return value


def _is_plain(value: torch.Tensor) -> bool:
    """Return True if the values alone describe a tensor. PyTorch moves the other tensors."""
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not (value.requires_grad or value.is_quantized or value.is_conj() or value.is_neg())
        and not value.is_shared()  # other processes may change the values later
    )


def _is_bytes(value: Any) -> bool:
    return type(value) is torch.Tensor and value.dtype is torch.uint8 and value.dim() == 1 and value.is_cpu


def _is_list_column(value: torch.Tensor) -> bool:
    """Return True for a nested tensor such as `to_tensors` returns for a column of lists."""
    return (
        value.layout is torch.jagged
        and value.is_nested
        and value.lengths() is None
        and not isinstance(value.shape[1], int)  # the second dimension is the ragged one
        and _is_plain(value.values())
        and _is_plain(value.offsets())
    )


def _unpacked(parts: Mapping[str, Any], buffers: Sequence[_Buffer]) -> dict[str, Any]:
    tensors = [_as_tensor(buffer) for buffer in buffers]
    return {name: _value(part, tensors) for name, part in parts.items()}


def _value(part: Any, buffers: Sequence[torch.Tensor]) -> Any:
    match part:
        case _ByteSpan(dtype, shape, index, start, stop):
            return buffers[index][start:stop].view(dtype).reshape(shape)
        case _Jagged(values, offsets):
            return jagged(_value(values, buffers), _value(offsets, buffers))
        case _Pieces(values, sizes):
            return list(_value(values, buffers).split(sizes))
    return part


# The largest number of workers whose statistics are counted.
_MAX_WORKERS = 1 << 7

_TYPES = {one.name: type(getattr(BatchStatistics(), one.name)) for one in fields(BatchStatistics)}


class WorkerStatistics:
    """Shared memory with the newest statistics of each worker, in a row for each worker id.

    Only the worker itself changes its row, so the workers need no lock.
    """

    def __init__(self) -> None:
        self._count = torch.zeros(1, dtype=torch.int64).share_memory_()
        self._rows = torch.zeros(_MAX_WORKERS, len(_TYPES), dtype=torch.float64).share_memory_()

    def put(self, counted: Batches | RecordTable) -> None:
        """Store the statistics of an object in this worker. In a process that is not a worker, do nothing."""
        info = get_worker_info()
        if info is not None and info.id < _MAX_WORKERS:
            self._count[0], statistics = info.num_workers, counted.statistics
            values = [getattr(statistics, name) for name in _TYPES]
            self._rows[info.id] = torch.tensor(values, dtype=torch.float64)

    def total(self) -> BatchStatistics:
        """Return the sum over the workers of the newest DataLoader."""
        sums = self._rows[: int(self._count[0])].sum(dim=0).tolist()
        return BatchStatistics(*(kind(value) for kind, value in zip(_TYPES.values(), sums, strict=True)))
