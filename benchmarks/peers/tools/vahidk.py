"""Run the tfrecord package (vahidk/tfrecord), which parses and writes records one by one in Python."""

from benchmarks.peers.tools import Pass, Used, Ways, Work

USED = (
    Used(
        "`tfrecord_loader` with a description of the columns, and `TFRecordWriter`",
        "https://github.com/vahidk/tfrecord#reading--writing-tftrainexample",
    ),
)


def read(work: Work) -> Pass:
    from tfrecord.reader import tfrecord_loader

    kinds = {name: work.features[name][0] for name in work.columns}

    def read_all(_: str) -> int:
        rows = 0
        for path in work.paths():
            rows += len(list(tfrecord_loader(path, None, kinds, compression_type=work.codec)))
        return rows

    return read_all


def write(work: Work) -> Pass:
    from tfrecord.writer import TFRecordWriter

    if work.codec:
        raise ValueError("the package cannot write compressed files")  # the report lists this error
    rows = work.python_rows()
    kinds = {name: kind for name, (kind, _) in work.features.items()}

    def write_all(path: str) -> int:
        writer = TFRecordWriter(path)
        for row in rows:
            writer.write({name: (value, kinds[name]) for name, value in row.items()})
        writer.close()
        return len(rows)

    return write_all


WAYS: Ways = {"": {"read": read, "write": write}}
