"""Train one model for each entity: write a dataset that is partitioned by entity, then fit in parallel.

Every entity has its own directory. A task reads the rows of one entity and fits a linear model, so the
memory of a task holds one entity, however many there are.

Run it with ``python examples/entity_models.py [DIRECTORY]``.
"""

import sys
import tempfile
from pathlib import Path

import dask
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


def fit(path: Path, entity: int) -> tuple[int, int, np.ndarray]:
    """Fit the model of one entity; only the files of this entity are opened."""
    ddf = dask_tfrecord.read_tfrecord(path, filters=[("entity", "==", entity)], dtype_backend="numpy")
    rows = ddf.compute(scheduler="sync")
    weights, *_ = np.linalg.lstsq(rows[FEATURES].to_numpy(), rows["y"].to_numpy(), rcond=None)
    return entity, len(rows), weights


def main() -> None:
    """Write the measurements, fit all models, and check the weights."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="entities-"))
    ddf = dd.from_map(measurements, range(8))
    snapshot = dask_tfrecord.to_tfrecord(ddf, root / "entities", partition_on="entity", colocate=True)
    print(snapshot)
    entities = sorted({file.values[0] for file in snapshot.files})
    models = dask.compute(*(dask.delayed(fit)(root / "entities", entity) for entity in entities))
    for entity, rows, weights in models:
        np.testing.assert_allclose(weights, np.array([1, 2, 3]) * entity, atol=0.01)
        if entity % 10 == 0:
            print(f"entity {entity:2}: {rows:,} rows, weights {weights.round(2)}")
    assert sum(rows for _, rows, _ in models) == snapshot.records
    print(f"{len(models)} models")


if __name__ == "__main__":
    main()
