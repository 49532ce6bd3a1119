"""A reader of datasets, and an append, written from docs/format.md with pyarrow and the oracle of the tests.

Each line of its input is a JSON list. For each, it prints a line of JSON.

``["read", ROOT, OUT]`` stores all rows as an Arrow file and prints what was checked.
``["read", ROOT, OUT, VERSION]`` does the same with an older version.
``["append", ROOT, NUMBER...]`` adds a file with one column of integers, ``n``.
"""

import base64
import bz2
import json
import lzma
import os
import random
import re
import sys
import traceback
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq


class _Blocked:
    """Make the import of the library fail, so that this program cannot use it."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] == "dask_tfrecord":
            raise ImportError("the library is not there")


sys.meta_path.insert(0, _Blocked())
sys.path.append(str(Path(__file__).parent))  # an isolated Python does not look beside the program

import oracle  # noqa: E402  # found by the line above

PART = re.compile(
    r"part-[0-9a-f]{32}-\d{5,}-of-\d{5,}(-\d{5,})?(-\w[\w.=+@-]*)?\.tfrecord(\.(gz|zz|zst|lz4|bz2|xz))?"
)


class RefusedError(Exception):
    """A dataset that a reader must reject."""


def check(valid: bool, what: str) -> None:
    if not valid:
        raise RefusedError(what)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    check(len({name for name, _ in pairs}) == len(pairs), "a key twice")
    return dict(pairs)


def versions(root: Path) -> list[int]:
    """Return the numbers of the versions that the dataset keeps, the newest last."""
    names = [name for name in os.listdir(root / "_tfrecord") if re.fullmatch(r"\d{8}\.parquet", name)]
    numbers = sorted(int(name[:8]) for name in names)
    oldest = parquet_file(root, numbers[-1])[1].get("oldest", 0)
    check(isinstance(oldest, int) and oldest <= numbers[-1], "the oldest version")
    return [number for number in numbers if number >= oldest]


# The keys that the first list of a version has for it.
COLUMNS = (
    "schema",
    "partitioning",
    "order",
    "index",
    "columns_name",
    "columnar",
    "custom_metadata",
    "partial",
)


def snapshot(root: Path, number: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the files of a version, in their order, and its metadata."""
    own, metadata = parquet_file(root, number)
    lists = []
    for version, run, count in metadata.get("lists", []):
        rows, stored = parquet_file(root, version)
        check(version < number and stored["run"].startswith(run) and len(rows) == count, "the older list")
        check(bool(lists) == bool(stored.get("lists")), "the first list")
        lists.append((version, rows, stored))
    if lists and "schema" not in metadata:
        metadata |= {key: lists[0][2][key] for key in COLUMNS if key in lists[0][2]}
    files: dict[str, dict[str, Any]] = {}
    for version, rows, stored in [*lists, (number, own, metadata)]:
        added = len(rows) - stored.get("removed", 0)
        for row in rows[added:]:
            check(row["path"] in files, "a removed file")
            del files[row["path"]]
        for at, row in enumerate(rows[:added]):
            check(row["path"] not in files, "a path twice")
            place = stored["next_place"] - (added - at) * 1048576
            files[row["path"]] = completed(row, stored["compression"], {"place": place, "version": version})
    keys = schema_of(metadata["partitioning"])[0].names if metadata.get("partitioning") else []

    def order(row: dict[str, Any]) -> list[Any]:
        return [*(rank for key in keys for rank in ranks(row["partition"][key])), row["place"]]

    found = sorted(files.values(), key=order)
    for total, values in (("files", [1] * len(found)), ("records", None), ("bytes", None)):
        check(metadata[total] == sum(values or [row[total] for row in found]), f"the {total}")
    return found, metadata


def ranks(value: Any) -> list[Any]:
    """Return keys that sort null last and text by its bytes."""
    value = value.encode() if isinstance(value, str) else value
    return [value is None, 0 if value is None else value]


def completed(row: dict[str, Any], compression: str | None, usual: dict[str, Any]) -> dict[str, Any]:
    """Add what a list may leave out."""
    row = {**row, **{key: value for key, value in usual.items() if row.get(key) is None}}
    row.setdefault("codec", compression or "none")
    if "blocks" not in row:
        start = {"gzip": 10, "zlib": 2}.get(row["codec"], 0)
        has_block = row["records"] > 0 and row["codec"] is not None
        row["blocks"] = [{"offset": start, "content": 0, "record": 0}] * has_block
    row["statistics"] = {
        name: complete_statistics(one) for name, one in (row.get("statistics") or {}).items() if one
    }
    return row


def complete_statistics(facts: dict[str, Any]) -> dict[str, Any]:
    facts = {"nulls": 0, **facts}
    for low, high in (("min", "max"), ("min_length", "max_length")):
        if low in facts:
            facts.setdefault(high, facts[low])
    return facts


def place(root: Path, path: str) -> Path:
    return root / path if (root / path).exists() else root / "_tfrecord" / "kept" / path


def parquet_file(root: Path, number: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the rows and the metadata of a snapshot's file."""
    path = root / "_tfrecord" / f"{number:08d}.parquet"
    stored = path.read_bytes()
    start = oracle.footer_start(stored)
    found = int.from_bytes(stored[start - 4 : start], "little")
    check(found == oracle.crc32c(stored[start:]), "the CRC of a footer")
    table = pq.read_table(path, page_checksum_verification=True)
    metadata = json.loads(table.schema.metadata[b"dask_tfrecord"], object_pairs_hook=unique)
    known = metadata.get("schema", {})
    check(metadata["format_version"] in [1] and "forms" not in known, "the format version")
    rows = table.to_pylist()
    for row in rows[: len(rows) - metadata.get("removed", 0)]:
        parts = row["path"].split("/")
        inside = not any(part in ("", ".", "..") for part in parts)
        check(inside and not re.search(r"[\\\0]|::|^\w+:", row["path"]), "a path inside the root")
        check(row["bytes"] >= 0 and row["records"] >= 0 and row.get("place", 0) >= 0, "sizes")
        for name in ("offset", "content", "record"):
            starts = [block[name] for block in row.get("blocks", [])]
            check(starts == sorted(set(starts)), "ascending blocks")
    return rows, metadata


def known_commits(root: Path, number: int) -> list[str]:
    """Return the ids of the runs that a version knows, the newest last."""
    versions = [*(one[0] for one in parquet_file(root, number)[1].get("lists", [])), number]
    found = [parquet_file(root, version)[1] for version in versions]
    merged = (
        [one if isinstance(one, str) else one[0] for one in stored.get("merged", [])] for stored in found
    )
    return [run for stored, runs in zip(found, merged, strict=True) for run in [*runs, stored["run"]]]


def schema_of(stored: dict[str, Any]) -> tuple[pa.Schema, dict[str, pa.Array]]:
    with pa.ipc.open_stream(base64.b64decode(stored["arrow"], validate=True)) as stream:
        schema = stream.schema
        [batch] = list(stream)
    for column, field in zip(stored["columns"], schema, strict=True):
        check((column["name"], column["type"]) == (field.name, str(field.type)), "the columns as text")
    known = {name: batch[name].dictionary.to_pylist() for name in stored["known_categories"]}
    return schema, known


def check_directory(
    root: Path, files: list[dict[str, Any]], number: int, *, is_newest: bool = True
) -> list[str]:
    """Return the unlisted files that a reader must ignore; raise for any other unlisted file."""
    listed = {row["path"]: row["bytes"] for row in files}
    for path, size in listed.items():
        check(place(root, path).stat().st_size == size, f"the size of {path}")
    found = [str(PurePosixPath(path.relative_to(root))) for path in root.rglob("*") if path.is_file()]
    visible = [path for path in found if not any(map(is_hidden, path.split("/")))]
    others = [path for path in visible if path not in listed]
    runs = known_commits(root, number)
    names = ("replaced.json", "kept.json")
    notes = [root / "_tfrecord" / "staging" / run / name for run in runs for name in names]
    replaced = [path for note in notes if note.exists() for path in json.loads(note.read_bytes())]
    for path in others:
        check(
            not is_newest or path in replaced or PART.fullmatch(path.split("/")[-1]) is not None,
            "a foreign file",
        )
    return others


def is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name and "%3D" not in name)


MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
}


def codec(data: bytes) -> str | None:
    if not data or oracle.starts_with_a_frame(data):
        return None
    for magic, name in MAGIC.items():
        if data.startswith(magic):
            return name
    is_zlib = int.from_bytes(data[:2], "big") % 31 == 0 and data[0] & 15 == 8 and data[0] >> 4 <= 7
    check(is_zlib, "a known codec")
    return "zlib"


def content_from(data: bytes, offset: int) -> bytes:
    name, rest = codec(data), data[offset:]
    if name is None:
        return rest
    if name in ("gzip", "zlib"):
        inflate = zlib.decompressobj(wbits=-15)
        content = inflate.decompress(rest)
        check(
            inflate.eof and len(inflate.unused_data) == (8 if name == "gzip" else 4), "one stream and its sum"
        )
        return content
    if name in ("bz2", "xz"):
        return (bz2 if name == "bz2" else lzma).decompress(rest)
    return pa.input_stream(pa.BufferReader(rest), compression=name).read()


def whole(data: bytes) -> bytes:
    """The decompressed bytes of a file; the reader of the codec verifies the checksum."""
    name = codec(data)
    if name in ("gzip", "zlib"):
        return zlib.decompress(data, wbits=31 if name == "gzip" else 15)
    return content_from(data, 0)


def payloads(content: bytes) -> list[bytes]:
    try:
        return oracle.frames(content)
    except oracle.DamagedError as error:
        raise RefusedError(str(error)) from None


def record(payload: bytes, record_type: str) -> dict[str, Any]:
    """All features of a record; feature lists become lists of lists."""

    def values(feature: oracle.Feature) -> list[Any] | None:
        is_float = feature.kind == "float"
        found = [oracle.float_of(bits) for bits in feature.values] if is_float else feature.values
        return None if feature.kind is None else found

    parsed = oracle.parse(payload, record_type)
    found: dict[str, Any] = {name: values(feature) for name, feature in parsed.features.items()}
    return found | {name: [values(one) or [] for one in steps] for name, steps in parsed.lists.items()}


def column(values: list[list[Any] | None], type_: pa.DataType, stored: dict[str, Any]) -> pa.Array:
    """Convert the features of one column to its type; a dictionary column becomes its values."""
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
    if stored["depth"] == 0:
        scalars = [None if one is None else one[0] for one in values]
        return flat(scalars, type_, stored["kind"])
    inner = type_.value_type
    if stored["depth"] == 2:
        rows = [None if one is None else flat_lists(one, inner, stored["kind"]) for one in values]
    else:
        rows = [None if one is None else flat(one, inner, stored["kind"]).to_pylist() for one in values]
    return pa.array(rows, type_)


def struct_column(
    records: list[dict[str, Any]], name: str, type_: pa.DataType, found: dict[str, pa.Array]
) -> pa.Array:
    """Convert the features of a struct, or of a field of one, to its type; ``found`` gets all of them."""
    if pa.types.is_struct(type_):
        parts = [struct_column(records, f"{name}/{one.name}", one.type, found) for one in type_]
        nulls = [
            name not in record and not any(part[row].is_valid for part in parts)
            for row, record in enumerate(records)
        ]
        found[name] = pa.StructArray.from_arrays(parts, fields=list(type_), mask=pa.array(nulls))
    else:
        depth, values = 0, type_
        while hasattr(values, "value_type"):
            depth, values = depth + (not pa.types.is_dictionary(values)), values.value_type
        kinds = {pa.string(): "string", pa.binary(): "bytes", pa.float32(): "float", pa.float64(): "float"}
        stored = {"kind": kinds.get(values, "int64"), "depth": depth}
        found[name] = column([record.get(name) for record in records], type_, stored)
    return found[name]


def flat_lists(lists: list[list[Any]], type_: pa.DataType, kind: str) -> list[list[Any]]:
    return [flat(one, type_.value_type, kind).to_pylist() for one in lists]


def flat(values: list[Any], type_: pa.DataType, kind: str) -> pa.Array:
    if kind == "string":
        return pa.array([None if one is None else one.decode() for one in values], type_)
    if kind == "bytes":
        return pa.array(values, type_)
    if kind == "float":
        return pa.array(values, pa.float32()).cast(type_)
    if pa.types.is_boolean(type_):
        return pa.array([None if one is None else bool(one) for one in values], type_)
    if pa.types.is_integer(type_):
        return pa.array(values, type_)
    narrow = pa.int32() if type_.bit_width == 32 else pa.int64()
    return pa.array(values, narrow).view(type_)


def check_statistics(row: dict[str, Any], table: pa.Table) -> int:
    """Compare the statistics of one file with its rows; returns the number of columns that have some."""
    known = row["statistics"]
    for name, facts in known.items():
        values = table[name]
        check(facts["nulls"] == values.null_count, f"the nulls of {name}")
        if not pa.types.is_list(values.type):
            if pa.types.is_floating(values.type):
                values = pc.if_else(pc.is_nan(values), None, values)
            least, greatest = pc.min_max(values.drop_null()).as_py().values()
        else:
            least, greatest = pc.min_max(pc.list_value_length(values)).as_py().values()
        bounds = (facts.get("min", facts.get("min_length")), facts.get("max", facts.get("max_length")))
        for bound, value in zip(bounds, (least, greatest), strict=True):
            expected = None if isinstance(value, str | bytes) and len(value) > 64 else value
            check(bound == expected, f"the bounds of {name}: {bound}, not {expected}")
    return len(known)


def read(root: Path, out: Path, version: int | None = None) -> dict[str, Any]:
    kept = versions(root)
    number = version or kept[-1]
    check(number in kept, "a version of the dataset")
    listed, metadata = snapshot(root, number)
    schema, known = schema_of(metadata["schema"])
    ignored = check_directory(root, listed, number, is_newest=number == kept[-1])
    columns = metadata["schema"]["columns"]
    partitions = schema_of(metadata["partitioning"])[0] if metadata.get("partitioning") else pa.schema([])
    tables, blocks, statistics = [], 0, 0
    for row in listed:
        data = place(root, row["path"]).read_bytes()
        check(oracle.crc32c(data) == row["crc32c"], "the CRC of a file")
        content = whole(data)
        found = payloads(content)
        check(len(found) == row["records"], "the number of records")
        if row["blocks"]:
            block = random.Random(row["crc32c"]).choice(row["blocks"])
            rest = content_from(data, block["offset"])
            check(rest == content[block["content"] :], "the content from a block on")
            check(payloads(rest) == found[block["record"] :], "the records from a block on")
            blocks += len(row["blocks"])
        if metadata["schema"]["record_type"] == "bytes":
            records = [{columns[0]["name"]: [payload]} for payload in found]
        else:
            records = [record(payload, metadata["schema"]["record_type"]) for payload in found]
        leaves: dict[str, pa.Array] = {}
        arrays = {
            one["name"]: struct_column(records, one["name"], field.type, leaves)
            if one["kind"] == "struct"
            else column([each.get(one["name"]) for each in records], field.type, one)
            for one, field in zip(columns, schema, strict=True)
        }
        names = {*arrays, *leaves}
        check(metadata.get("partial", False) or all(set(each) <= names for each in records), "the features")
        statistics += check_statistics(row, pa.table(arrays | leaves))
        for field in partitions:
            type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
            arrays[field.name] = pa.array([row["partition"][field.name]] * len(records), type_)
        tables.append(pa.table(arrays))
    table = pa.concat_tables(tables).select(metadata["order"] or [*schema.names, *partitions.names])
    with pa.OSFile(str(out), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return {
        "number": number,
        "lists": len(metadata.get("lists", [])) + 1,
        "commits": known_commits(root, number),
        "versions": kept,
        "files": len(listed),
        "blocks": blocks,
        "statistics": statistics,
        "ignored": ignored,
        "categories": known,
        "index": metadata.get("index"),
        "custom_metadata": metadata.get("custom_metadata", {}),
    }


def append(root: Path, numbers: list[int]) -> dict[str, Any]:
    run = os.urandom(16).hex()
    data = oracle.features_file([{"n": ("int64", [number])} for number in numbers])
    path = f"part-{run}-00000-of-00001.tfrecord"
    staged = root / "_tfrecord" / "staging" / run / path
    staged.parent.mkdir(parents=True)
    staged.write_bytes(data)
    os.rename(staged, root / path)
    number = versions(root)[-1]
    rows, metadata = parquet_file(root, number)
    row = {
        "path": path,
        "bytes": len(data),
        "records": len(numbers),
        "crc32c": oracle.crc32c(data),
        "blocks": [],
    }
    types = {"path": pa.string(), "bytes": pa.int64(), "records": pa.int64(), "crc32c": pa.uint32()}
    block = pa.struct([("offset", pa.int64()), ("content", pa.int64()), ("record", pa.int64())])
    table = pa.Table.from_pylist([row], pa.schema({**types, "blocks": pa.list_(block)}))
    metadata["lists"] = [*metadata.get("lists", []), [number, metadata["run"][:8], len(rows)]]
    metadata |= {"files": metadata["files"] + 1, "records": metadata["records"] + len(numbers)}
    metadata |= {"bytes": metadata["bytes"] + len(data), "next_place": metadata["next_place"] + 1048576}
    metadata |= {"run": run, "library": "another", "compression": None, "mode": "append", "created": None}
    for key in ("removed", "merged", "details", "write_id"):
        metadata.pop(key, None)
    table = table.replace_schema_metadata({b"dask_tfrecord": json.dumps(metadata).encode()})
    oracle.write_version(table, staged.parent / "snapshot")
    os.link(staged.parent / "snapshot", root / "_tfrecord" / f"{number + 1:08d}.parquet")
    (root / "_SUCCESS").touch()
    (staged.parent / "snapshot").unlink()
    staged.parent.rmdir()
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        command, root, *rest = json.loads(line)
        try:
            if command == "append":
                answer = append(Path(root), list(map(int, rest)))
            else:
                answer = read(Path(root), Path(rest[0]), *map(int, rest[1:]))
        except RefusedError as error:
            answer = {"refused": str(error)}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
