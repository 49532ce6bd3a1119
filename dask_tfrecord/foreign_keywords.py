"""What the keywords of other tools are called here, and the error for an unknown keyword."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from dask_tfrecord.errors import KeywordError

# The keywords of the two functions that the errors of other functions name. `public_function` fills them in.
KEYWORDS: dict[str, Collection[str]] = {"read_tfrecord": (), "to_tfrecord": ()}

_SIMPLE = (str, int, float)
_LONGEST = 60


@dataclass(frozen=True)
class ForeignKeyword:
    """Keywords of other tools with one meaning.

    Attributes
    ----------
    names : str
        Their names, separated by spaces. Case and underscores are ignored.
    tools : str
        The tools that have them.
    ours : str
        Keywords of this package, separated by " | ". The first that the called function has is named.
        ``{}`` stands for the value that was passed.
    values : mapping of str to str
        Values that have another form here, in lower case, and what to pass for each.
    otherwise : str
        What to do if the called function has none of the keywords.
    """

    names: str
    tools: str
    ours: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""


_NO_DATA = "leave it out, because existing data raises by default"
_MODES = {
    "append": "append=True",
    "overwrite": "overwrite=True",
    "replace": "overwrite=True",
    "error": _NO_DATA,
    "errorifexists": _NO_DATA,
    "create": _NO_DATA,
    "fail": _NO_DATA,
    "ignore": "call the function only if not dask_tfrecord.exists(path)",
    "overwrite_or_ignore": "append=True",
    "delete_matching": 'overwrite="partitions"',
    "dynamic": 'overwrite="partitions"',
    "static": "overwrite=True",
}
_CODECS = {
    "org.apache.hadoop.io.compress.gzipcodec": 'compression="gzip"',
    "org.apache.hadoop.io.compress.defaultcodec": 'compression="zlib"',
    "org.apache.hadoop.io.compress.deflatecodec": 'compression="zlib"',
    "org.apache.hadoop.io.compress.bzip2codec": 'compression="bz2"',
    "org.apache.hadoop.io.compress.zstandardcodec": 'compression="zstd"',
    "gzip": 'compression="gzip"',
    "zlib": 'compression="zlib"',
    "deflate": 'compression="zlib"',
    "zstd": 'compression="zstd"',
    "bzip2": 'compression="bz2"',
    "lzma": 'compression="xz"',
    "none": "compression=None",
    "uncompressed": "compression=None",
    "": "compression=None",
    "auto": "leave it out, because readers detect the codec of each file",
}
_RECORD_TYPES = {
    "example": 'record_type="example"',
    "sequenceexample": 'record_type="sequence_example"',
    "bytearray": 'record_type="bytes"',
}
_PARALLEL = "leave it out, because Dask's scheduler decides what runs in parallel"
_ONE_ENGINE = "leave it out, because there is one engine"
_ALWAYS = "leave it out, because missing features are null"

# The table in docs/migrating.md is made from these rows.
FOREIGN_KEYWORDS = (
    ForeignKeyword(
        "mode save_mode write_mode", "Spark, Ray, Delta Lake", "append=True or overwrite=True", _MODES
    ),
    ForeignKeyword(
        "if_exists existing_data_behavior", "pandas, PyArrow", "append=True or overwrite=True", _MODES
    ),
    ForeignKeyword("partitionOverwriteMode", "Spark", 'overwrite="partitions"', _MODES),
    ForeignKeyword("overwrite_or_ignore exist_ok", "DuckDB, Python", "append={}"),
    ForeignKeyword("delete_dir_content truncate", "other tools", "overwrite={}"),
    ForeignKeyword(
        "partitionBy partition_cols partitionCols partitioning partition_columns",
        "Spark, pandas, PyArrow, Polars",
        "partition_on={} | hive=",
    ),
    ForeignKeyword("hive_partitioning partition_base_dir", "Polars, DuckDB", "hive="),
    ForeignKeyword("hive_schema hive_types partitionColumnTypes", "Polars, DuckDB", "hive="),
    ForeignKeyword(
        "codec compression_type compression_codec codecs", "Spark, TensorFlow, Beam", "compression=", _CODECS
    ),
    ForeignKeyword("arrow_open_stream_args", "Ray", "compression="),
    ForeignKeyword("recordType", "Spark", "record_type=", _RECORD_TYPES),
    ForeignKeyword(
        "tf_schema features feature_spec feature_description description dtype dtypes raw_schema",
        "Ray, TensorFlow, Hugging Face, pandas",
        "schema=",
    ),
    ForeignKeyword("coder decoder parser transform", "Beam, TensorFlow", 'record_type="bytes" | convert='),
    ForeignKeyword(
        "filenames file_pattern file_paths file_path_prefix data_path data_files paths filepath filename "
        "fname glob",
        "TensorFlow, Beam, Ray, pandas",
        "path= | source=",
    ),
    ForeignKeyword("usecols select", "pandas, Polars", "columns={}"),
    ForeignKeyword("filter predicate partition_filter row_filter where", "PyArrow, Ray", "filters="),
    ForeignKeyword(
        "with_filename include_paths include_file_paths",
        "Beam, Ray, Polars, DuckDB",
        "include_path_column={}",
    ),
    ForeignKeyword("versionAsOf as_of", "Delta Lake", "version={}"),
    ForeignKeyword("split_row_groups chunksize chunk_size block_size", "Dask, pandas", "blocksize="),
    ForeignKeyword(
        "override_num_blocks parallelism min_partitions aggregate_files",
        "Ray, Spark, Dask",
        "blocksize= | npartitions=",
    ),
    ForeignKeyword("use_nullable_dtypes types_mapper", "pandas, PyArrow", "dtype_backend="),
    ForeignKeyword("index_col set_index", "pandas", "index={}"),
    ForeignKeyword("gather_statistics", "Dask", "calculate_divisions={}"),
    ForeignKeyword("read_dictionary", "PyArrow", "categories={}"),
    ForeignKeyword(
        "ignoreCorruptFiles ignore_errors ignore_corrupt skip_errors",
        "Spark, TensorFlow, Polars",
        'on_corrupt="skip"',
        {"false": 'on_corrupt="raise"'},
    ),
    ForeignKeyword("max_errored_blocks", "Ray", "max_corrupt="),
    ForeignKeyword(
        "crc32check check_crc check_integrity validate page_checksum_verification",
        "Spark, TFDS, Beam, PyArrow",
        "verify_crc={}",
    ),
    ForeignKeyword("extra_columns", "Polars", "extra={}"),
    ForeignKeyword(
        "mergeSchema union_by_name inferSchema infer_schema sample",
        "Spark, DuckDB, pandas",
        'infer="all"',
        {"false": 'infer="sample"'},
    ),
    ForeignKeyword("index preserve_index write_row_index", "pandas, PyArrow", "write_index={}"),
    ForeignKeyword("maxRecordsPerFile max_rows", "Spark", "max_rows_per_file={}"),
    ForeignKeyword(
        "min_rows_per_file num_rows_per_file row_group_size", "Ray, PyArrow", "max_rows_per_file={}"
    ),
    ForeignKeyword(
        "file_size_bytes max_file_size max_shard_size", "DuckDB, Hugging Face", "max_bytes_per_file={}"
    ),
    ForeignKeyword("num_files numPartitions n_partitions nshards", "Spark, Dask", "npartitions={}"),
    ForeignKeyword("max_partitions", "PyArrow", "max_files_per_task={}"),
    ForeignKeyword(
        "basename_template filename_provider filename_pattern shard_name_template",
        "PyArrow, Ray, DuckDB, Beam",
        "name_function=",
    ),
    ForeignKeyword(
        "file_name_suffix file_extensions suffix extension",
        "Beam, Ray",
        otherwise="leave it out, because the codec decides the suffix, and readers look at the content",
    ),
    ForeignKeyword("metadata file_metadata", "PyArrow", "custom_metadata={}"),
    ForeignKeyword("compression_opts level", "pandas", "compression_level={}"),
    ForeignKeyword("fs", "fsspec", "filesystem="),
    ForeignKeyword(
        "fs_options client_kwargs storage_option backend_kwargs", "fsspec, xarray", "storage_options="
    ),
    ForeignKeyword("max_retries", "Dask", "retries={}"),
    ForeignKeyword("scheduler", "Dask", 'compute_kwargs={"scheduler": ...}'),
    ForeignKeyword("seed shuffle_seed random_state", "TensorFlow, pandas", "shuffle={}"),
    ForeignKeyword(
        "shuffle_buffer_size buffer_size shuffle_queue_size", "TensorFlow, tfrecord", "shuffle_buffer={}"
    ),
    ForeignKeyword("shard_id shard_index cur_shard", "DALI, Petastorm", "shard= | rank="),
    ForeignKeyword(
        "num_shards shard_count num_replicas",
        "DALI, Petastorm, PyTorch",
        "shard= | world_size={} | shards={}",
    ),
    ForeignKeyword(
        "drop_remainder drop_last drop_final_batch",
        "TensorFlow, PyTorch",
        'drop_remainder={} | drop_last={} | batch_mode="drop"',
        {"false": 'batch_mode="keep"'},
    ),
    ForeignKeyword("batch batchsize rows_per_batch", "other tools", "batch_size={}"),
    ForeignKeyword("label_key label_column target", "TensorFlow", "label={}"),
    ForeignKeyword("collate_fn", "PyTorch", "convert="),
    ForeignKeyword("default_value fill_value fill_null", "TensorFlow", "missing= | fill_nulls="),
    ForeignKeyword(
        "prefetch_factor prefetch_buffer_size prefetch_batches", "PyTorch, TensorFlow", "prefetch={}"
    ),
    ForeignKeyword(
        "num_epochs infinite", "TensorFlow, tfrecord", "epoch=", otherwise="iterate once for each epoch"
    ),
    ForeignKeyword("host port uri", "Arrow Flight", "location= | endpoints="),
    ForeignKeyword("num_workers", "PyTorch", otherwise="pass it to torch.utils.data.DataLoader"),
    ForeignKeyword(
        "num_parallel_reads num_parallel_calls num_parallel_batches concurrency num_proc use_threads n_jobs "
        "ray_remote_args max_workers",
        "TensorFlow, Ray, Hugging Face, PyArrow",
        otherwise=_PARALLEL,
    ),
    ForeignKeyword("engine", "pandas, Dask", otherwise=_ONE_ENGINE),
    ForeignKeyword(
        "nrows n_rows", "pandas, Polars", otherwise="take the first rows of the result with .head()"
    ),
    ForeignKeyword("missing_columns", "Polars", otherwise=_ALWAYS),
    ForeignKeyword(
        "write_metadata_file ignore_metadata_file use_dictionary data_page_size coerce_timestamps",
        "Dask, PyArrow",
        otherwise="leave it out, because it is about Parquet files",
    ),
)


def unknown_keywords(function: str, known: Collection[str], given: Mapping[str, Any]) -> KeywordError:
    """Return the error for keywords that a function does not have.

    Parameters
    ----------
    function : str
        Name of the function.
    known : collection of str
        The keywords of the function.
    given : mapping of str to value
        The unknown keywords and their values.
    """
    names = ", ".join(map(repr, given))
    word = "an unexpected keyword argument" if len(given) == 1 else "unexpected keyword arguments"
    advice = {name: _advice(function, known, name, value) for name, value in given.items()}
    parts = advice.values() if len(given) == 1 else [f"{name}=: {text}" for name, text in advice.items()]
    return KeywordError(f"{function}() got {word} {names}", advice="; ".join(parts))


def _spelling(name: str) -> str:
    return name.replace("_", "").lower()


_BY_SPELLING = {_spelling(name): row for row in FOREIGN_KEYWORDS for name in row.names.split()}


def _advice(function: str, known: Collection[str], name: str, value: Any) -> str:
    spelling = _spelling(name)
    row = _BY_SPELLING.get(spelling, ForeignKeyword("", ""))
    # A member of an enumeration, such as Ray's SaveMode, has the text as its value.
    ours = row.values.get(str(getattr(value, "value", value)).lower(), "")
    if ours and "=" not in ours:
        return ours
    candidates = [ours, *row.ours.split(" | ")]
    for ours in candidates:
        if _keyword(ours) in known:
            return f"pass {ours.replace('{}', _shown(value))}"
    for keyword in known:
        if _spelling(keyword) == spelling:
            return f"pass {keyword}="
    if row.otherwise:
        return row.otherwise
    for other, keywords in KEYWORDS.items():
        for keyword in (name, *map(_keyword, candidates)):
            if keyword in keywords:
                return f"{keyword}= is a keyword of {other}"
    near = get_close_matches(name, known, 1)
    return f"pass {near[0]}=" if near else f"help({function}) lists the keywords"


def _keyword(ours: str) -> str:
    return ours.partition("=")[0]


def _shown(value: Any) -> str:
    """Return the value as Python code, or "..." if it is long or may hold a secret."""
    items = value if isinstance(value, list | tuple) else [value]
    shown = repr(value).replace("'", '"')
    return shown if all(isinstance(item, _SIMPLE) for item in items) and len(shown) <= _LONGEST else "..."
