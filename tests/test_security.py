"""Each sentence that SECURITY.md promises has tests, which exist. The last ones are here.

Modules: files.bounded_parquet, storage.local_disk, dataset.snapshot.list_files.
"""

import ast
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import oracle
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dask_tfrecord
from dask_tfrecord import TFRecordError, Writer, open_dataset, to_tfrecord
from dask_tfrecord.codec import MAX_RECORD_BYTES
from dask_tfrecord.dataset.snapshot import list_files
from dask_tfrecord.files import bounded_parquet
from dask_tfrecord.files.file_options import MAX_FEATURES
from dask_tfrecord.storage.local_disk import METADATA_BYTES

TESTS = Path(__file__).parent
ROOT = TESTS.parent

# The first words of each sentence of the section "Promised", followed by its tests. A sentence without tests
# belongs to the one before.
PROMISES = """\
A size that a file declares
    files/test_bad_files::test_absurd_lengths_and_a_decompression_bomb_take_no_memory
The memory of a read
    files/test_on_corrupt::test_a_huge_damaged_range_takes_little_memory
A record that declares more bytes
    codec/kernel/test_kernel_frames::test_an_absurd_length_is_damage_or_a_wish_for_more_but_never_an_over_read
Compressed files are read
    codec/test_codecs::test_a_bomb_takes_no_memory
A record of more than `max_record_bytes`
    files/test_reading::test_a_record_longer_than_max_record_bytes_raises
The default is
    test_security::test_the_limits_are_those_of_the_page
For files from others
A schema is inferred
    files/test_inference::test_ten_thousand_features_are_the_default_limit_and_schemas_have_none
More of them
    files/test_inference::test_more_features_than_max_features_raise_and_name_the_record
The compiled kernel checks
    codec/kernel/test_kernel_frames::test_every_truncation_is_damage_unless_it_ends_a_record
CI tests it
    test_security::test_ci_runs_the_sanitizers_and_all_fuzzers
CI also fuzzes
    test_security::test_ci_runs_the_sanitizers_and_all_fuzzers
The checksums of each record
    codec/kernel/test_kernel_frames::test_every_flipped_bit_is_damage
`verify_crc=False`
    files/test_reading::test_verify_crc_off_leaves_checksums_of_payloads_unverified
A damaged record or data file
    files/test_bad_files::test_bad_file_raises_with_record_and_offset_or_gives_protobufs_rows
It never crashes
    files/test_bad_files::test_bad_file_without_any_hint_never_gives_less_in_silence
The reader never unpickles
    test_security::test_only_tasks_and_filesystems_are_unpickled
It validates each snapshot
    dataset/snapshot/test_model_of_snapshot::test_anything_else_than_a_snapshot_is_refused
A snapshot contains no URL
    test_security::test_a_dataset_contains_no_path_of_its_directory
A snapshot that lists a path
    dataset/snapshot/test_model_of_snapshot::test_a_path_that_leaves_the_dataset_is_refused
`use_snapshot=False`
    storage/test_regular_files::test_a_snapshot_that_is_no_regular_file_raises_and_use_snapshot_false_does_without_it
    dataset/write/test_commit::test_what_is_unknown_without_the_snapshot_raises
On a local disk and over SFTP
    storage/test_regular_files::test_a_schema_that_is_no_regular_file_raises
    storage/test_regular_files::test_a_description_that_is_no_regular_file_raises
No pipe, socket or device
    storage/test_regular_files::test_records_are_decoded_if_a_column_file_is_no_regular_file
They are limited
    storage/test_regular_files::test_the_size_of_metadata_is_bounded
    test_security::test_the_limits_are_those_of_the_page
The rows of a snapshot
    storage/test_regular_files::test_the_memory_of_rows_is_bounded
A larger snapshot
    storage/test_regular_files::test_a_small_snapshot_of_gigabytes_raises
A larger column file
    test_security::test_a_column_file_of_gigabytes_is_not_used
A read follows
    storage/test_local_links::test_links_to_directories_double_no_row
It ignores pipes
    storage/test_local_links::test_what_is_no_regular_file_is_passed_over_and_refused_by_name
It raises if you pass
A partition value
    dataset/partitioning/test_partition_on::test_strange_values_come_back_and_stay_inside_the_root
No operation creates
    test_links::test_no_operation_changes_others
    test_links::test_a_path_that_leads_out_of_the_root_is_refused
It looks for links
    test_links::test_a_link_made_after_the_plan_is_not_followed
This holds
    stores/test_sftp_store::test_nothing_behind_a_link_changes
If directories with data files
    test_links::test_files_in_a_linked_partition_refuse_changes
If a file of the dataset
    test_links::test_no_operation_changes_others
The path of the dataset
    test_links::test_the_root_and_files_of_others_may_be_reached_through_a_link
An overwrite removes
    dataset/write/test_destination::test_a_file_that_is_no_tfrecord_is_refused_by_name_and_nothing_is_computed
With `overwrite="partitions"`
    test_security::test_an_overwrite_of_partitions_keeps_files_of_others
An overwrite of all rows
    dataset/write/test_destination::test_a_directory_with_a_dataset_below_is_refused_by_the_name_of_that_dataset
It also raises
    dataset/write/test_destination::test_precious_directories_are_never_overwritten
`cleanup` removes
    test_security::test_cleanup_keeps_files_of_others
Passwords, keys
    storage/test_redaction::test_no_failure_of_a_store_shows_a_secret
    storage/test_redaction::test_a_signed_url_is_in_no_result_and_in_no_graph
    test_log_messages::test_the_log_has_no_secrets
This covers
    storage/test_filesystem::test_no_message_shows_the_secrets_of_an_object
If a filesystem's exception
    storage/test_redaction::test_an_exception_of_pythons_keeps_its_class
A `/` in a password
    storage/test_redaction::test_urls_are_shown_without_credentials
A bucket URL
    storage/test_redaction::test_credentials_in_the_url_of_a_bucket_are_refused_and_not_shown
Pass them
"""


def _sentences() -> Iterator[str]:
    page = (ROOT / "SECURITY.md").read_text()
    promised = page.split("## Promised")[1].split("## Not promised")[0]
    for bullet in re.findall(r"^- (.*?)(?=^- |^\*\*|\Z)", promised, re.MULTILINE | re.DOTALL):
        yield from re.split(r"(?<=\.)\s+(?=[A-Z`])", " ".join(bullet.split()))


def test_each_sentence_has_its_tests() -> None:
    lines = PROMISES.splitlines()
    starts = [line for line in lines if not line.startswith(" ")]
    promised = list(_sentences())
    assert len(promised) == len(starts), "each sentence of SECURITY.md has a line of PROMISES"
    assert [start for start, sentence in zip(starts, promised, strict=True) if sentence.find(start)] == []
    for line in lines:
        file, _, name = line.strip().partition("::")
        functions = _tests(f"{file}.py") if name else {name}
        assert name in functions, f"{file}.py has no test {name}, which tests a sentence of SECURITY.md"


@cache
def _tests(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_limits_are_those_of_the_page() -> None:
    assert MAX_RECORD_BYTES == 2**31 - 1
    assert MAX_FEATURES == 10_000
    assert list_files._MOST_BYTES == 2**31 - 1
    assert METADATA_BYTES == 256 << 20
    assert (bounded_parquet._BASE, bounded_parquet._RATIO) == (256 << 20, 100)


def test_ci_runs_the_sanitizers_and_all_fuzzers() -> None:
    kernel = Path(dask_tfrecord.__file__).parent / "codec" / "kernel"
    assert {path.stem for path in (kernel / "fuzz").glob("fuzz_*.cpp")} == {
        f"fuzz_{what}" for what in ("frames", "layouts", "locate", "messages")
    }
    assert "for target in build/fuzz/fuzz_*" in (ROOT / ".ci" / "nightly").read_text()
    assert re.search(r"build_kernel \w+ DASK_TFRECORD_SANITIZE=ON", (ROOT / ".ci" / "run").read_text())
    assert "-fsanitize=address,undefined" in (kernel / "CMakeLists.txt").read_text()


# The modules that unpickle what a client or the same process has pickled: tasks, filesystems, tables.
UNPICKLING = {
    *("collection/expr/read_tasks.py", "dataset/read/partitions.py", "dataset/shuffle/table_stream.py"),
    *("feed/rows/sources.py", "storage/filesystem.py", "storage/forked.py"),
}


def test_only_tasks_and_filesystems_are_unpickled() -> None:
    package = Path(dask_tfrecord.__file__).parent
    calls = re.compile(
        r"\b(pickle\.loads?|Unpickler|marshal\.loads?|yaml\.(unsafe_)?load)\(|(?<!\.)\b(eval|exec)\("
    )
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if calls.search(path.read_text())
    }
    assert found == UNPICKLING


def test_a_dataset_contains_no_path_of_its_directory(tmp_path: Path) -> None:
    root = tmp_path / "of_somebody"
    rows = pa.table({"k": [1, 2], "n": [3, 4]})
    to_tfrecord(rows, root, partition_on="k", columnar=["n"], keep_versions=True)
    with Writer(root, partition_on="k") as writer:
        writer.write(rows)
    open_dataset(root).delete([("n", "==", 3)])
    open_dataset(root).compact()
    for path in filter(Path.is_file, (root / "_tfrecord").rglob("*")):
        content = path.read_bytes()
        if path.suffix == ".parquet":  # the rows are compressed
            content += repr((pq.read_table(path).to_pydict(), pq.read_metadata(path).metadata)).encode()
        assert b"of_somebody" not in content, path
        assert b"://" not in content, path


def test_a_column_file_of_gigabytes_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dask_tfrecord")
    to_tfrecord(pa.table({"n": [1, 2], "text": ["a", "b"]}), tmp_path, columnar=["n"])
    dataset = open_dataset(tmp_path)
    assert dataset.num_rows == 2  # the snapshot is read before no memory is left
    monkeypatch.setattr(bounded_parquet, "_BASE", -1 << 20)
    assert dataset.to_table(["n"])["n"].to_pylist() == [1, 2]
    assert re.search(r"_tfrecord/columns/.*bytes of memory", caplog.text)


def _others(root: Path) -> dict[Path, bytes]:
    """Add files that another tool or a user might keep in a dataset's directory."""
    record = oracle.features_file([{"n": ("int64", [9])}])
    names = [
        "part-00000.tfrecord",
        "notes.txt",
        ".hidden",
        "_tfrecord/notes.txt",
        "_tfrecord/columns/a.parquet",
    ]
    names += ["k=1/part-r-00000.tfrecord", "_tfrecord/staging/notes.txt"]
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(record)
    return {root / name: record for name in names}


def _present(files: dict[Path, bytes]) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in files if path.exists()}


def test_an_overwrite_of_partitions_keeps_files_of_others(tmp_path: Path) -> None:
    rows = pa.table({"k": [1, 2], "n": [3, 4]})
    to_tfrecord(rows, tmp_path, partition_on="k")
    others = _others(tmp_path)
    with suppress(TFRecordError):
        to_tfrecord(rows.slice(0, 1), tmp_path, partition_on="k", overwrite="partitions")
    assert _present(others) == others


def test_cleanup_keeps_files_of_others(tmp_path: Path) -> None:
    to_tfrecord(pa.table({"k": [1, 2], "n": [3, 4]}), tmp_path, partition_on="k")
    others = _others(tmp_path)
    with suppress(TFRecordError):
        open_dataset(tmp_path).cleanup(older_than="0 s")
    assert _present(others) == others
