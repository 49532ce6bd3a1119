"""The content of a file, decompressed, from where a split begins to where it ends. Decodes nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import Compression, codec_of_suffix, decompressor, detect, is_frame
from dask_tfrecord.codec.lookalikes import LOOK_BYTES, looks_like
from dask_tfrecord.errors import CorruptRecordError, FileChangedError, TFRecordError
from dask_tfrecord.files.options import ReadCompression, ReadOptions
from dask_tfrecord.files.part_names import is_part
from dask_tfrecord.files.splits import Split
from dask_tfrecord.files.storage.checksum import Checksum, ChecksumReader
from dask_tfrecord.files.storage.glob_advice import exclusion_advice
from dask_tfrecord.files.storage.store import Store
from dask_tfrecord.files.window import Window


@contextmanager
def open_window(store: Store, split: Split, options: ReadOptions, size: int) -> Iterator[Window]:
    """A window over the split's (decompressed) content; its offsets are those in the file's content."""
    file, start, stop = split.file, split.start, split.stop
    end = None if stop is None else stop.offset
    with store.open(file.path, file.size, start.offset, end, file.stamp) as stored:
        is_whole = not start.offset and stop is None
        total = Checksum() if is_whole and file.crc32c is not None and not options.damage.skips else None
        source = stored if total is None else ChecksumReader(stored, total)
        head = source.peek(HEADER_BYTES if start.offset else LOOK_BYTES)
        if start.offset:
            found = block_compression(split, head[:HEADER_BYTES])
        else:
            found = detect(head[:HEADER_BYTES])
            _check_compression(found, options.compression, source.size)
        content = None if stop is None else stop.content
        if found:
            stream = decompressor(source.readinto, found, inside=start.offset > 0)
            readinto = (
                stream.readinto if content is None else _first(content - start.content, stream.readinto)
            )
            window = Window(readinto, size, start.content, content)
        else:
            window = Window(source.readinto, size, start.content, source.size if stop is None else content)
        try:
            yield window
            if total is not None and total.crc32c != file.crc32c:
                raise changed_since_snapshot(store, file.path)
        except CorruptRecordError as error:
            if error.offset == 0 and (looks := _looks(window.head, head, found)):
                raise CorruptRecordError(
                    f"not a TFRecord file: it looks like {looks}",
                    record=error.record,
                    offset=0,
                    advice=exclusion_advice(options.globs, store.public(file.path)),
                ) from None
            raise


def _looks(content: bytes, stored: bytes, compression: Compression | None) -> str | None:
    """What a file looks like by its first bytes, if that is something known other than TFRecord."""
    packed = compression is not None and content
    looks = looks_like(content if packed else stored)
    if looks is None or is_frame(content[:HEADER_BYTES]):
        return None
    return f"{looks}, compressed with {compression}" if packed else looks


def _first(count: int | None, readinto: Callable[[memoryview], int]) -> Callable[[memoryview], int]:
    """A reader of the first bytes only; of all if there is no count."""
    if count is None:
        return readinto
    left = count

    def read(view: memoryview) -> int:
        nonlocal left
        got = readinto(view[:left]) if left else 0
        left -= got
        return got

    return read


def block_compression(split: Split, head: bytes) -> Compression | None:
    """What a split is compressed with that begins, with ``head``, inside its file.

    Plain files may be named anything. Compressed ones with such splits are ours, and named for it.
    """
    named = codec_of_suffix(f".{split.file.path.rpartition('.')[2]}")
    if split.start.offset == split.start.content and (not named or is_frame(head)):
        return None
    if named is None:
        raise TFRecordError(
            f"the file cannot be read from byte {split.start.offset:,} on: it is compressed, its name does "
            "not say how",
            advice="give it its name back, or read it as a whole with blocksize=None",
        )
    return named


def _check_compression(found: Compression | None, wanted: ReadCompression, size: int | None) -> None:
    if wanted not in ("infer", found) and size != 0:
        raise CorruptRecordError(
            f"the file's first bytes are not {wanted or 'uncompressed TFRecord'}",
            offset=0,
            advice='pass compression="infer", which goes by the first bytes of each file',
        )


_AS_THEY_ARE = "use_snapshot=False reads the files as they are"


def changed_since_snapshot(store: Store, path: str) -> FileChangedError:
    """The error for a file whose content is not the one that the snapshot describes."""
    root = store.public(store.root)
    mend = f"if it was rewritten on purpose, call dask_tfrecord.index({root!r}) again"
    if is_part(path):
        mend = "bring back the file as to_tfrecord wrote it"
    problem = "the content is not the one that the dataset's snapshot describes (CRC-32C differs)"
    return FileChangedError(problem, path=store.public(path), advice=f"{mend}; {_AS_THEY_ARE}")
