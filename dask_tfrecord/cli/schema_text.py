"""`schema`: the columns of a dataset as text of Arrow, Python, TensorFlow or TensorFlow Metadata."""

from typing import Any, Literal, get_args

import click
import pyarrow as pa

import dask_tfrecord
from dask_tfrecord import Schema
from dask_tfrecord.cli.escapes import printable
from dask_tfrecord.cli.options import READ_DEFAULTS

Form = Literal["arrow", "python", "tensorflow", "pbtxt"]
FORMS = get_args(Form)

# The keywords that "pbtxt" takes.
_SNAPSHOT = {"version", "storage_options"}


def schema_text(path: Any, form: Form, read: dict[str, Any]) -> str:
    """Return the columns of a path as text.

    Parameters
    ----------
    path : str or list of str
        What `read_tfrecord` takes.
    form : "arrow", "python", "tensorflow" or "pbtxt"
        "python" is code of a `pyarrow.Schema` for ``schema=``. "tensorflow" is code of the spec for
        TensorFlow's parser, and needs TensorFlow. "pbtxt" is the schema of TensorFlow Metadata, and needs a
        snapshot.
    read : dict
        Keywords of `read_tfrecord`.
    """
    given = {name: value for name, value in read.items() if value != READ_DEFAULTS.get(name)}
    if form == "pbtxt":
        if isinstance(path, list) or not given.keys() <= _SNAPSHOT:
            raise click.UsageError("--as pbtxt needs one directory with a snapshot, and only takes --version")
        return dask_tfrecord.metadata_schema(dask_tfrecord.Snapshot.open(path, **given))
    if form == "tensorflow":
        if not given.keys() <= {"storage_options"}:
            raise click.UsageError("--as tensorflow describes the newest version, and takes no such option")
        try:
            from dask_tfrecord.feed.tensorflow import feature_spec  # TensorFlow is optional
        except ModuleNotFoundError as error:
            if error.name != "tensorflow":
                raise
            advice = "pip install tensorflow"
            raise click.ClickException(f"--as tensorflow needs the package tensorflow: {advice}") from None
        return feature_spec(path, **given).code()
    schema = dask_tfrecord.inspect(path, **read).schema
    if form == "python":
        return _python(schema)
    return "\n".join(f"{printable(item.name)}: {item.type}" for item in schema.fields)


def _python(schema: Schema) -> str:
    fields = "".join(f"        ({item.name!r}, {type_code(item.type)}),\n" for item in schema.fields)
    return f"import pyarrow as pa\n\nschema = pa.schema(\n    [\n{fields}    ]\n)"


def type_code(type_: pa.DataType) -> str:
    """Return Python code that makes an Arrow type."""
    kinds = pa.types
    if isinstance(type_, pa.FixedShapeTensorType):
        return f"pa.fixed_shape_tensor({type_code(type_.value_type)}, {list(type_.shape)})"
    if kinds.is_dictionary(type_):
        ordered = ", ordered=True" if type_.ordered else ""
        return f"pa.dictionary({type_code(type_.index_type)}, {type_code(type_.value_type)}{ordered})"
    if kinds.is_fixed_size_list(type_):
        return f"pa.list_({type_code(type_.value_type)}, {type_.list_size})"
    if kinds.is_list(type_) or kinds.is_large_list(type_):
        name = "large_list" if kinds.is_large_list(type_) else "list_"
        return f"pa.{name}({type_code(type_.value_type)})"
    if kinds.is_fixed_size_binary(type_):
        return f"pa.binary({type_.byte_width})"
    if kinds.is_decimal(type_):
        return f"pa.decimal{type_.bit_width}({type_.precision}, {type_.scale})"
    if kinds.is_timestamp(type_):
        return f"pa.timestamp({type_.unit!r}{'' if type_.tz is None else f', tz={type_.tz!r}'})"
    if kinds.is_time(type_) or kinds.is_duration(type_):
        name = "duration" if kinds.is_duration(type_) else f"time{type_.bit_width}"
        return f"pa.{name}({type_.unit!r})"
    names = {"bool": "bool_", "halffloat": "float16", "float": "float32", "double": "float64"}
    names |= {"date32[day]": "date32", "date64[ms]": "date64"}
    return f"pa.{names.get(str(type_), str(type_))}()"
