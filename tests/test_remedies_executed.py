"""Every remedy, call and piece of code in a message of the package is executed as the message writes it.

The remedies are found in the source of the package, so a new one without a case fails. Add a call that raises
the message to tests/data/remedies.yaml, under the folder of the module that makes it. Remedies and calls of
the error are executed without more work. For code in a text, `then` is what a user does who follows the text.

Modules: errors, keywords.arguments, dataset.export.
"""

import ast
import importlib.util
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.bag
import dask.dataframe as dd
import fsspec
import numpy
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from remedy_data import CASES, NOT_EXECUTED, Case, write_data
from remedy_sites import NAMES, Record, Site, recorded, sites
from servers import s3_server

import dask_tfrecord
from dask_tfrecord import errors, to_tfrecord
from dask_tfrecord.errors import NotFoundError, Remedy, RemedyWarning, TFRecordError

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def config() -> Iterator[None]:
    """Restore Dask's option that some remedies set."""
    with dask.config.set({"dataframe.convert-string": dask.config.get("dataframe.convert-string", None)}):
        yield


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """An S3 server for all of S3's URLs, and the keys for it."""
    with pytest.MonkeyPatch.context() as patch, s3_server() as options:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "none")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        if importlib.util.find_spec("s3fs"):
            fsspec.filesystem("s3", **options | {"client_kwargs": {}}).mkdir("numbers", acl="public-read")
            public = options | {"s3_additional_kwargs": {"ACL": "public-read"}}
            to_tfrecord(pa.table({"a": [1]}), "s3://numbers/", storage_options=public)
        yield {name: options[name] for name in ("key", "secret")}


def names() -> dict[str, Any]:
    """The variables of the cases, as in a program of a user."""
    found = {name: getattr(dask_tfrecord, name) for name in dask_tfrecord.__all__}
    found |= {
        "__name__": "case",
        "dask": dask,
        "dd": dd,
        "np": np,
        "numpy": numpy,
        "pd": pd,
        "pandas": pd,
        "pa": pa,
        "pyarrow": pa,
    }
    return found | {"pc": pc, "dask_tfrecord": dask_tfrecord, "iter_batches": dask_tfrecord.feed.iter_batches}


def run(code: str, variables: dict[str, Any]) -> Any:
    """Run a program, and compute or read all that its last line returns."""
    tree = ast.parse(code)
    *first, last = tree.body
    exec(compile(ast.Module(first, []), "<case>", "exec"), variables)
    if not isinstance(last, ast.Expr):
        exec(compile(ast.Module([last], []), "<case>", "exec"), variables)
        return None
    result = eval(compile(ast.Expression(last.value), "<case>", "eval"), variables)
    if hasattr(result, "compute"):
        return result.compute(scheduler="sync")
    if isinstance(result, Iterator) or hasattr(result, "state") or hasattr(result, "element_spec"):
        return list(result)
    return result


def passed(code: str, function: str, remedies: list[Remedy]) -> str:
    """The code with the remedies as keywords of its last call of a function."""
    tree = ast.parse(code)
    wanted = function.rpartition(".")[2]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) == wanted]
    assert calls, f"{function} is not called in {code}"
    node = max(calls, key=lambda one: (one.lineno, one.col_offset))
    for remedy in remedies:
        [keyword] = ast.parse(f"f({remedy})").body[0].value.keywords  # type: ignore[attr-defined]
        before = [one.value for one in node.keywords if one.arg == remedy.keyword]
        node.keywords = [one for one in node.keywords if one.arg != remedy.keyword]
        if remedy.keyword.endswith("_options") and before:  # the option is added to those of the call
            options = f"{{**{ast.unparse(before[0])}, **{ast.unparse(keyword.value)}}}"
            keyword.value = ast.parse(options, mode="eval").body
        node.keywords.append(keyword)
    return ast.unparse(tree)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Runner:
    """Runs the cases of an area, each program with its own copy of the data."""

    def __init__(
        self, data: Path, place: Path, keys: dict[str, str], record: Record, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.data, self.place, self.keys, self.record = data, place, keys, record
        self.monkeypatch = monkeypatch
        self.count = 0
        self.covered: set[Site] = set()

    def fresh(self, code: str) -> None:
        """Change to a new directory with the data that the code names."""
        self.count += 1
        place = self.place / str(self.count)
        place.mkdir()
        for entry in self.data.iterdir():
            if f"'{entry.name}" in code or f'"{entry.name}' in code:
                shutil.copytree(entry, place / entry.name)
        self.monkeypatch.chdir(place)
        errors._shown.clear()

    def names(self) -> dict[str, Any]:
        return names() | {"keys": self.keys}

    def run(self, case: Case) -> None:
        self.fresh(case.code)
        variables = self.names()
        found: list[Any] = []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                run(case.code, variables)
            except (TFRecordError, NotFoundError) as error:
                found.append(error)
        if not found:  # a warning beside an error is no reason to call the function again
            found = [one.message for one in caught if isinstance(one.message, RemedyWarning)]
        texts = [*map(str, found), *(str(one.message) for one in caught)]
        assert texts, f"{case.code} raises no message"
        done: list[str] = []
        executed: list[Any] = []
        for message in found * (not case.follows):
            for call in getattr(message, "calls", ()):
                done.append(str(call).removeprefix("call "))
                run(done[-1], {**variables, "ddf": variables.get("ddf")})
                executed.append(call)
            for function, group in self.groups(message, case.code):
                code = passed(case.code, function, group)
                self.fresh(case.code)
                is_refusal = group == [Remedy("lossy", "raise", "refuse values that would change")]
                try:
                    run(code, self.names())
                except errors.SchemaError:
                    if not is_refusal:
                        raise
                done.append(code)
                executed += group
        if case.then:
            self.fresh(case.code + case.then)
            run(case.then, self.names())
            done.append(case.then)
            self.covered |= {site for site in self.record.made_sites() if site.text in case.follows}
        self.covered |= self.record.sites_of(executed)
        self.covered |= {
            site
            for found_ in sites().values()
            for site in found_
            if site.kind == "text"
            and any(re.search(site.pattern, text) for text in texts)
            and _does(done, site)
        }

    def groups(self, message: Any, code: str) -> Iterator[tuple[str, list[Remedy]]]:
        """Each group of remedies of a message, with the function that takes them."""
        called = getattr(message, "called", None)
        function = getattr(message, "function", None) or "read_tfrecord"
        if isinstance(message, RemedyWarning) or called in (None, "compute"):
            in_code = [
                one for one in ("to_tfrecord", "read_tfrecord", "iter_batches", "open_dataset") if one in code
            ]
            called = in_code[0] if in_code else function
        for group in errors._groups(getattr(message, "remedies", ())):
            yield called, group
        for group in errors._groups(getattr(message, "other_remedies", ())):
            yield function, group


def _does(done: list[str], site: Site) -> bool:
    """True if the executed code has the names in the code of a text."""
    advice = site.text.rpartition("; ")[2]
    wanted = {name for pair in NAMES.findall(advice) for name in pair if name}
    return all(any(re.search(rf"\b{name}\b", code) for code in done) for name in wanted)


def area_of(module: str) -> str:
    return module.partition("/")[0] if "/" in module else "top"


AREAS = sorted({area_of(module) for module in sites()})


@pytest.mark.parametrize("area", AREAS)
def test_every_remedy_is_executed_as_its_message_writes_it(
    area: str, data: Path, s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []
    monkeypatch.setattr("dask_tfrecord.dataset.read.sample._MORE_BYTES", 0)  # sample few files
    with recorded(monkeypatch) as record, pytest.MonkeyPatch.context() as patch:
        runner = Runner(data, tmp_path, s3, record, patch)
        for case in CASES.get(area, ()):
            if any(importlib.util.find_spec(name) is None for name in case.needs):
                continue
            try:
                runner.run(case)
            except Exception as failure:
                failures.append(f"{case.code}: {type(failure).__name__}: {failure}")
    wanted = [site for module, found in sites().items() if area_of(module) == area for site in found]
    missing = [site for site in wanted if site not in runner.covered and site.text not in NOT_EXECUTED]
    assert not failures, "\n".join(failures)
    needless = [site for site in wanted if site in runner.covered and site.text in NOT_EXECUTED]
    assert not needless, "executed, but listed as not executed\n" + "\n".join(map(str, needless))
    skipped = any(
        importlib.util.find_spec(name) is None for case in CASES.get(area, ()) for name in case.needs
    )
    assert skipped or not missing, "no case executes\n" + "\n".join(map(str, missing))


def test_the_remedies_that_are_not_executed_exist_and_have_a_reason() -> None:
    texts = {site.text for found in sites().values() for site in found}
    assert not [text for text in NOT_EXECUTED if text not in texts]
    assert all(len(reason) > 10 for reason in NOT_EXECUTED.values())
