"""`schema`: the columns of a dataset as text of Arrow, Python, TensorFlow or TensorFlow Metadata."""

from typing import Any, Literal, get_args

import click

import dask_tfrecord
from dask_tfrecord import Remedy, Schema
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
    # A remedy shows its value as Python code.
    codes = {item.name: str(Remedy("type", item.type)).removeprefix("type=") for item in schema.fields}
    fields = "".join(f"        ({name!r}, {code}),\n" for name, code in codes.items())
    return f"import pyarrow as pa\n\nschema = pa.schema(\n    [\n{fields}    ]\n)"
