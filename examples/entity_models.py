"""Train one model for each entity: write a dataset that is partitioned by entity, then fit in parallel.

Every entity has its own directory. `read_tfrecord(partition_by=)` makes one Dask partition of the rows of
each entity, and `map_partitions` fits its linear model. No rows are shuffled, and the memory of a task holds
one entity, however many there are.

Run it with ``python examples/entity_models.py [NEW_DIRECTORY]``.
"""

import sys
import tempfile
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd

import dask_tfrecord

ENTITIES = 40
FEATURES = ["x0", "x1", "x2"]


def measurements(seed: int) -> pd.DataFrame:
    """Draw rows of all entities. The weights of an entity are its number times (1, 2, 3)."""
    random = np.random.default_rng(seed)
    entity = random.integers(0, ENTITIES, 5_000)
    x = random.normal(size=(len(entity), 3)).astype("float32")
    y = (x @ np.array([1, 2, 3])) * entity + random.normal(size=len(entity)) * 0.01
    return pd.DataFrame({"entity": entity, **dict(zip(FEATURES, x.T, strict=True)), "y": y.astype("float32")})


def fit(rows: pd.DataFrame) -> pd.DataFrame:
    """Fit the model of one entity to all of its rows, and return the weights as one row."""
    weights, *_ = np.linalg.lstsq(rows[FEATURES].to_numpy(), rows["y"].to_numpy(), rcond=None)
    model = dict(zip(FEATURES, weights.astype("float64"), strict=True))
    return pd.DataFrame({"entity": rows["entity"].iloc[:1].astype("int64"), "rows": len(rows), **model})


def main() -> None:
    """Write the measurements, fit all models, and check the weights."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="entities-"))
    ddf = dd.from_map(measurements, range(8))
    dask_tfrecord.to_tfrecord(ddf, root / "entities", partition_on="entity")
    written = dask_tfrecord.to_tfrecord(ddf, root / "entities", partition_on="entity", append=True)
    print(written)

    entities = dask_tfrecord.read_tfrecord(root / "entities", partition_by="entity", dtype_backend="numpy")
    meta = {"entity": "int64", "rows": "int64", **dict.fromkeys(FEATURES, "float64")}
    models = entities.map_partitions(fit, meta=meta).compute().set_index("entity").sort_index()
    print(models.loc[::10].round(2))

    np.testing.assert_allclose(models[FEATURES], np.outer(models.index, [1, 2, 3]), atol=0.01)
    keys = dask_tfrecord.open_dataset(root / "entities").files["entity"].unique()
    assert models.index.tolist() == sorted(keys)
    assert models["rows"].sum() == written.rows
    print(f"{len(models)} models")


if __name__ == "__main__":
    main()
