"""Write files that describe a dataset for other libraries, for `Dataset.export`."""

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
from pyarrow import types

from dask_tfrecord.codec import HEADER_BYTES
from dask_tfrecord.codec.codecs import detect
from dask_tfrecord.dataset.names import record_exports
from dask_tfrecord.dataset.read.layouts import read_info
from dask_tfrecord.dataset.snapshot.check import open_checked
from dask_tfrecord.dataset.snapshot.head import open_version
from dask_tfrecord.dataset.snapshot.model import Snapshot
from dask_tfrecord.dataset.snapshot.moved_files import with_version
from dask_tfrecord.dataset.write.transaction import finish_newest
from dask_tfrecord.errors import SchemaError, TFRecordError, check_instance, literal
from dask_tfrecord.files.entry import FileEntry
from dask_tfrecord.files.file_list import FileInfo
from dask_tfrecord.files.file_options import ReadOptions
from dask_tfrecord.files.record_file import RecordFile
from dask_tfrecord.files.splits import Split
from dask_tfrecord.schema.feature_maps import stored_fields
from dask_tfrecord.schema.fields import Field
from dask_tfrecord.schema.logical_types import innermost, row_shape
from dask_tfrecord.schema.stored_form import StoredForm
from dask_tfrecord.schema.tensorflow_schemas import SCHEMA_FILE, TIMES
from dask_tfrecord.schema.tfds import FEATURES, INFO, class_node, label_file, tree_of
from dask_tfrecord.storage.paths import parent_of
from dask_tfrecord.storage.range_requests import ByteRange
from dask_tfrecord.storage.store import Store

Format = Literal["idx", "tfds", "tfmd"]

# `export` writes index files to this directory. Listings skip the directory, because its name begins with
# "_".
_INDEX_DIRECTORY = "_idx"

_THREADS = 4

# An export over the description of TensorFlow Datasets keeps what the files of a dataset do not tell.
_KEPT = ("description", "citation", "redistributionInfo", "supervisedKeys")

_SPLIT_NAME = re.compile(r"\w*[^\W_]\w*", re.ASCII)
_NUMBERED = re.compile(r"\d{5,}-of-\d{5,}")
_SUFFIX = ".tfrecord"
_TFDS_END = re.compile(r"(-\d{5,}-of-\d{5,})?")  # TensorFlow Datasets numbers its files behind the suffix
_ROLLED = re.compile(r"-\d{5}(?=\.tfrecord$)")

# In protobuf's text format, a string may contain these bytes without an escape.
_PLAIN = frozenset(range(32, 127)) - frozenset(b'"\\')


def export(store: Store, format: Format) -> list[str]:
    """Write files for another library beside the data files, as `Dataset.export` describes."""
    # Without this call, the completion of an interrupted overwrite would remove the exported files.
    finish_newest(store)
    snapshot = open_checked(store) or open_version(store, None)
    store = with_version(store, snapshot.number)
    if format == "idx":
        names = _write_indexes(store, snapshot)
    else:
        tfds = format == "tfds"
        texts = _tfds_files(store, snapshot) if tfds else {SCHEMA_FILE: metadata_schema(snapshot)}
        names = [*texts]
        record_exports(store, names)
        for name, text in texts.items():
            store.write_file(store.join(name), text.encode())
    return [store.public(store.join(name)) for name in names]


def _check_uncompressed(store: Store, files: Sequence[FileEntry], reader: str) -> None:
    # Without a stamp: the read of a rewritten file raises an error that says what to do about the snapshot.
    ranges = [ByteRange(store.join(file.path), 0, HEADER_BYTES) for file in files if file.bytes]
    for one, head in zip(ranges, store.read_ranges(ranges), strict=True):
        if compression := detect(head):
            problem = f"the file is compressed with {compression}, which {reader} cannot read"
            raise TFRecordError(
                problem, "write the dataset without compression=", path=store.public(one.path)
            )


# -- Offsets of records, for DALI and the tfrecord package ---------------------------------------------------


def _write_indexes(store: Store, snapshot: Snapshot) -> list[str]:
    _check_uncompressed(store, snapshot.files, "a reader with an index")
    names = [f"{_INDEX_DIRECTORY}/{file.path}.idx" for file in snapshot.files]
    record_exports(store, names)

    def write(file: FileEntry, name: str) -> None:
        listed = FileInfo(store.join(file.path), file.bytes, file.stamp, file.crc32c)
        split, options = Split(listed), ReadOptions(verify_crc=False)
        with store.create(store.join(name)) as target:
            for chunk in RecordFile(store, split, options).chunks():
                bounds = chunk.bounds
                offsets, sizes = chunk.offsets(bounds[:-1]), np.diff(bounds)
                lines = map("{} {}\n".format, offsets.tolist(), sizes.tolist())
                target.write("".join(lines).encode())

    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(write, snapshot.files, names))
    return names


# -- TensorFlow Datasets -------------------------------------------------------------------------------------


def _tfds_files(store: Store, snapshot: Snapshot) -> dict[str, str]:
    _check_examples(snapshot, "TensorFlow Datasets reads")
    _check_uncompressed(store, snapshot.files, "TensorFlow Datasets")
    tree = _tfds_tree(snapshot)
    name = re.sub(r"\W+", "_", store.root.rstrip("/").rpartition("/")[2], flags=re.ASCII).strip("_").lower()
    described = read_info(store, store.root)
    info = {key: described[key] for key in _KEPT if key in described} | {
        "name": name if name[:1].isalpha() else f"dataset_{name}".rstrip("_"),
        "version": f"{snapshot.number}.0.0",
        "fileFormat": "tfrecord",
        "moduleName": "dask_tfrecord",
        "splits": [_tfds_split(name, files) for name, files in _splits(snapshot).items()],
    }
    texts = {FEATURES: json.dumps(tree, indent=1), INFO: json.dumps(info, indent=1)}
    return texts | _label_files(snapshot)


def _label_files(snapshot: Snapshot) -> dict[str, str]:
    """Return the content of each file with class names."""
    found = {}
    for item in snapshot.schema.fields:
        if item.form is not None and item.form.has_codes and item.form.categories is not None:
            path = [step for step in _steps(item) if isinstance(step, str)]
            found[label_file(path)] = "\n".join(item.form.categories.to_pylist())
    return found


def _tfds_tree(snapshot: Snapshot) -> dict[str, Any]:
    """Return the tree of ``features.json``. A column that TFDS described keeps its description."""
    described, others = [], []
    for item in snapshot.schema.fields:
        if steps := _steps(item):
            _check_described_nulls(snapshot, item, steps[-1])
            described.append(steps)
        else:
            others.append([item.name, _tfds_feature(snapshot, item)])
    root = described[0][0] if described else class_node("features_dict.FeaturesDict")
    try:
        return tree_of([*described, *([root, *steps] for steps in others)])
    except KeyError:
        problem = "a column has the name of a group of columns that TensorFlow Datasets described"
        raise TFRecordError(problem, "rename the column") from None


def _splits(snapshot: Snapshot) -> dict[str, list[FileEntry]]:
    if not snapshot.partitioning:
        return {"train": list(snapshot.files)} if snapshot.files else {}
    if snapshot.partition_on != ("split",):
        raise TFRecordError(
            f"the dataset is partitioned on {list(snapshot.partition_on)}, which TensorFlow Datasets ignores",
            'write the dataset with partition_on="split", or without partition_on=',
        )
    found: dict[str, list[FileEntry]] = {}
    for file in snapshot.files:
        (value,) = file.values
        if value is None or not _SPLIT_NAME.fullmatch(str(value)):
            problem = f"the value {value!r} of the column 'split' cannot be the name of a split"
            raise TFRecordError(problem, "use letters, digits and underscores")
        found.setdefault(str(value), []).append(file)
    return found


def _tfds_split(name: str, files: Sequence[FileEntry]) -> dict[str, Any]:
    records = {file.path: file.records for file in files}
    template, paths = _template(name, sorted(records))
    return {
        "name": name,
        "filepathTemplate": template,
        "shardLengths": [str(records[path]) for path in paths],
        "numBytes": str(sum(file.bytes for file in files)),
    }


def _template(name: str, paths: Sequence[str]) -> tuple[str, list[str]]:
    """Return the filename template of a split, and the filenames in the order of their shard numbers."""
    count = len(paths)
    digits = max(5, len(str(count)))
    index = [f"{number:0{digits}d}" for number in range(count)]
    fields = {
        "{SHARD_X_OF_Y}": (_NUMBERED, [f"{one}-of-{count:0{digits}d}" for one in index]),
        "-{SHARD_INDEX}": (_ROLLED, [f"-{one}" for one in index]),
    }
    stem, dot, end = paths[0].rpartition(_SUFFIX)
    if dot and _TFDS_END.fullmatch(end) and not re.search("[{}]", paths[0]):
        for placeholder, (pattern, numbers) in fields.items():
            start, _, rest = _replace_last(pattern, paths[0], placeholder).rpartition(placeholder)
            names = [start + number + rest for number in numbers]
            if sorted(names) == list(paths):
                return ".{FILEFORMAT}".join(f"{start}{placeholder}{rest}".rsplit(_SUFFIX, 1)), names
        if count == 1:
            return f"{stem}.{{FILEFORMAT}}{end}", list(paths)
    raise TFRecordError(
        f"TensorFlow Datasets needs one numbered series of files for each split, and the split {name!r} "
        f"has others, such as {paths[0]!r} and {paths[-1]!r}",
        ("call compact(), or " if count > 1 and len({*map(parent_of, paths)}) == 1 else "")
        + "write the dataset in one run, with colocate=True or without max_rows_per_file= and "
        "max_bytes_per_file=",
    )


def _replace_last(pattern: re.Pattern[str], text: str, new: str) -> str:
    matches = list(pattern.finditer(text))
    return text[: matches[-1].start()] + new + text[matches[-1].end() :] if matches else text


def _tfds_feature(snapshot: Snapshot, item: Field, name: str | None = None) -> dict[str, Any]:
    """Describe a column, or the field ``name`` of a struct column, for TensorFlow Datasets."""
    if item.form is not None:
        return _formed_feature(snapshot, item, item.form)
    if item.is_struct:
        # A record may contain the struct's marker but no values of its fields.
        if all(_nulls(snapshot, leaf) for leaf in item.leaves):
            problem = "TensorFlow Datasets has no nulls, and all fields of the struct may be null"
            advice = "fill the nulls, or write the dataset without the column"
            raise SchemaError(problem, advice, feature=item.name)
        fields = zip((one.name for one in item.type), item.children, strict=True)
        features = {name: _tfds_feature(snapshot, child, name) for name, child in fields}
        return class_node("features_dict.FeaturesDict", featuresDict={"features": features})
    if "/" in (item.name if name is None else name):
        raise SchemaError(
            "TensorFlow Datasets takes a slash in a name for nesting", "rename the column", feature=item.name
        )
    shape = row_shape(item.type)
    if item.depth and shape is None:
        return _tfds_sequence(_tfds_leaf(item, []))
    _check_no_nulls(snapshot, item)
    return _tfds_leaf(item, shape or [])


def _tfds_sequence(feature: dict[str, Any]) -> dict[str, Any]:
    return class_node("sequence_feature.Sequence", sequence={"feature": feature, "length": "-1"})


def _check_no_nulls(snapshot: Snapshot, item: Field) -> None:
    if nulls := _nulls(snapshot, item):
        problem = f"TensorFlow Datasets has no nulls, and the column {nulls}"
        advice = "fill the nulls, or write the dataset without the column"
        raise SchemaError(problem, advice, feature=item.name)


def _steps(item: Field) -> list[Any]:
    """Return the nodes that TFDS described for a column, or an empty list if TFDS has not described it."""
    if item.form is None or item.form.description is None:
        return []
    steps: list[Any] = json.loads(item.form.description)
    return steps if item.name == "/".join(one for one in steps if isinstance(one, str)) else []


def _check_described_nulls(snapshot: Snapshot, item: Field, leaf: dict[str, Any]) -> None:
    """Raise SchemaError if a column may have nulls that TFDS would not read as nulls.

    A record without a list has an empty list, and a class label has a number for null. A column that is not
    optional has no nulls.
    """
    form = item.form
    is_optional = any(isinstance(content, dict) and content.get("optional") for content in leaf.values())
    if form is None or is_optional or form.lengths or None in form.shape or form.has_codes:
        return
    if form.is_optional:
        _check_no_nulls(snapshot, item)


def _formed_feature(snapshot: Snapshot, item: Field, form: StoredForm) -> dict[str, Any]:
    """Describe a column that is stored in several features, or with a shape."""
    if form.partitions or form.value_feature not in (None, item.name) or form.spellings or "/" in item.name:
        raise SchemaError(
            "TensorFlow Datasets cannot read the features in which the column is stored",
            f'write the dataset with schema={literal({item.name: item.type})} and record_type="example"',
            feature=item.name,
        )
    if not form.lengths and None not in form.shape:
        _check_no_nulls(snapshot, item)
    feature = _tfds_leaf(item, form.shape)
    for _ in form.lengths:
        feature = _tfds_sequence(feature)
    return feature


def _tfds_leaf(item: Field, shape: Sequence[int | None]) -> dict[str, Any]:
    if item.kind == "string" and not shape:
        return class_node("text_feature.Text", text={})
    dimensions = {"dimensions": ["-1" if size is None else str(size) for size in shape]} if shape else {}
    kind = "tensor_feature.Tensor" if shape else "scalar.Scalar"
    return class_node(kind, tensor={"shape": dimensions, "dtype": _dtype(item), "encoding": "none"})


def _dtype(item: Field) -> str:
    type_ = innermost(item.type)
    if types.is_boolean(type_) or types.is_integer(type_):
        return str(type_)
    if types.is_floating(type_):
        return f"float{type_.bit_width}"
    return {"int64": "int64", "float": "float32"}.get(item.kind, "string")


# -- TensorFlow Metadata -------------------------------------------------------------------------------------


def metadata_schema(snapshot: Snapshot) -> str:
    """Return the TensorFlow Metadata schema of a snapshot, in protobuf's text format.

    ``open_dataset(path).export("tfmd")`` writes the returned text to a file.

    Parameters
    ----------
    snapshot : Snapshot
        The snapshot whose columns the schema describes.

    Returns
    -------
    str
        The text of a ``tensorflow.metadata.v0.Schema`` message.

    Raises
    ------
    TFRecordError
        If the records are not Examples.
    """
    check_instance("snapshot", snapshot, Snapshot)
    _check_examples(snapshot, "schema.pbtxt describes")
    fields = (one for item in snapshot.schema.leaves for one in _tfmd_fields(item))
    return "".join(_tfmd_feature(snapshot, item) for item in fields)


def _tfmd_fields(item: Field) -> list[Field]:
    is_one = item.form is None or item.form.encoding == "none"
    return [item] if is_one and [one.name for one in item.features] == [item.name] else stored_fields(item)


def _tfmd_feature(snapshot: Snapshot, item: Field) -> str:
    kind = {"int64": "INT", "float": "FLOAT"}.get(item.kind, "BYTES")
    shape = row_shape(item.type)
    is_full = _nulls(snapshot, item) is None
    lines = [f"name: {_quoted(item.name)}", f"type: {kind}"]
    lines.append(f"presence {{ {'min_fraction: 1.0 min_count: 1' if is_full else 'min_count: 0'} }}")
    if item.depth and shape is None:
        lines.append("value_count { min: 0 }")
    elif is_full:
        lines.append(f"shape {{ {' '.join(f'dim {{ size: {size} }}' for size in shape or [])} }}")
    else:
        count = int(np.prod(shape or [1]))
        lines.append(f"value_count {{ min: {count} max: {count} }}")
    lines += _tfmd_domain(item)
    return "feature {\n" + "".join(f"  {line}\n" for line in lines) + "}\n"


def _tfmd_domain(item: Field) -> list[str]:
    """Return a list with the line that declares which values the column's type allows, or an empty list if
    the type needs no such line.
    """
    type_ = innermost(item.type)
    if types.is_boolean(type_):
        names = ("false_value", "true_value")
        spellings = item.form.spellings if item.form is not None and item.form.spellings else ()
        parts = (f"{name}: {_quoted(one)} " for name, one in zip(names, spellings, strict=False))
        return [f"bool_domain {{ {''.join(parts)}}}"]
    if types.is_integer(type_) and type_.bit_width < 64:
        bounds = np.iinfo(type_.to_pandas_dtype())
        return [f"int_domain {{ min: {bounds.min} max: {bounds.max} }}"]
    if item.kind == "string" and item.categories is not None and item.type.ordered:
        values = " ".join(f"value: {_quoted(value)}" for value in item.categories.to_pylist())
        return [f"string_domain {{ name: {_quoted(item.name)} {values} }}"]
    if item.kind == "string" and not item.depth:
        return ["natural_language_domain { }"]
    units = [unit for unit, of_unit in TIMES.items() if of_unit == type_]
    return [f"time_domain {{ integer_format: {unit} }}" for unit in units]


def _quoted(text: str) -> str:
    signs = (chr(byte) if byte in _PLAIN else f"\\{byte:03o}" for byte in text.encode())
    return f'"{"".join(signs)}"'


# -- Helpers of both schemas ---------------------------------------------------------------------------------


def _check_examples(snapshot: Snapshot, reader: str) -> None:
    if snapshot.schema.record_type != "example":
        problem = f"{reader} Examples only, and the records are {snapshot.schema.record_type!r}"
        raise TFRecordError(problem, 'write the dataset with record_type="example"')


def _nulls(snapshot: Snapshot, item: Field) -> str | None:
    """Describe the nulls that a column contains or may contain. Return None if the column has no nulls."""
    if types.is_null(item.type):
        return "has only nulls"
    total = 0
    for file in snapshot.files:
        nulls = [column.nulls for column in file.statistics if column.name == item.name]
        if file.records and not nulls:
            return "may have nulls, because no statistics exclude them"
        total += sum(nulls)
    return f"has {total:,} nulls" if total else None
