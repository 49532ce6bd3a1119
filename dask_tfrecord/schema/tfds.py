"""Convert the ``features.json`` of TensorFlow Datasets (TFDS) to columns.

``features.json`` describes a tree of features. Each leaf becomes a column, whose name is the path to the
leaf, such as ``objects/bbox``. ``feature.proto`` and the classes of ``tensorflow_datasets.core.features``
define the format. ``features.json`` names Python classes, but this module imports none of these classes.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from dask_tfrecord.errors import Remedy, SchemaError, warn_caller
from dask_tfrecord.schema.stored_form import Encoding, Size, StoredForm

# The names of two files: the first describes the splits, the second the columns.
INFO, FEATURES = "dataset_info.json", "features.json"

# The suffix of a file that lists the class names of a label.
LABELS = ".labels.txt"

# The content of a class label's column: the class names ("names") or the class numbers ("codes").
Labels = Literal["names", "codes"]

_CODES = Remedy("labels", "codes", "read the numbers of the classes")

_TEXT = pa.string()
_TYPES = {
    "bool": pa.bool_(),
    "string": pa.binary(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "complex64": pa.binary(8),
    "complex128": pa.binary(16),
    **{
        f"{sign}int{bits}": pa.type_for_alias(f"{sign}int{bits}")
        for sign in ("", "u")
        for bits in (8, 16, 32, 64)
    },
}

_ENCODINGS: dict[str, Encoding] = {"none": "none", "bytes": "bytes", "zlib": "zlib"}

# Before version 4.4, TFDS stored the name of a feature's class, and sometimes the name of the feature's
# protobuf message. This dict maps each of these class and message names, without the suffix "Feature", to the
# key that TFDS 4.4 and newer use for the content.
_KEYS = {
    "FeaturesDict": "featuresDict",
    "Tensor": "tensor",
    "Scalar": "tensor",
    "ClassLabel": "classLabel",
    "Image": "image",
    "LabeledImage": "image",
    "Video": "video",
    "Audio": "audio",
    "BoundingBox": "boundingBox",
    "BBox": "boundingBox",
    "Text": "text",
    "Translation": "translation",
    "TranslationVariableLanguages": "translation",
    "Sequence": "sequence",
    "Dataset": "sequence",
}


class DescribedColumns(NamedTuple):
    """Map each column that ``features.json`` describes to the form in which TFDS stores the column.

    ``unknown`` lists the features whose class or dtype is unknown.
    """

    forms: dict[str, StoredForm]
    unknown: tuple[str, ...]


class Leaf(NamedTuple):
    """A leaf in the feature tree of ``features.json``.

    ``path`` contains the names from the root to the leaf. ``form`` is None if the class or the dtype of the
    feature is unknown. ``classes`` is the number of classes of a class label. ``steps`` are the nodes from
    the root to the leaf, without their children. The name of a child follows each dict of features.
    """

    path: tuple[str, ...]
    form: StoredForm | None
    classes: int | None = None
    steps: tuple[Any, ...] = ()

    @property
    def name(self) -> str:
        return "/".join(self.path)


def leaves(
    node: Mapping[str, Any],
    path: tuple[str, ...] = (),
    lengths: tuple[Size, ...] = (),
    steps: tuple[Any, ...] = (),
) -> Iterator[Leaf]:
    """Yield the leaves below a feature in ``features.json``.

    ``lengths`` are the lengths of the sequences around the feature. ``steps`` are the nodes from the root to
    the parent of the feature.
    """
    key, content = _content(node)
    if key == "featuresDict":
        own: dict[str, Any] = {"pythonClassName": _class_of(node)}
        for name, child in content.get("features", {}).items():
            yield from leaves(child, (*path, name), lengths, (*steps, own, name))
    elif key == "sequence":
        size = _size(content.get("length"))
        own = {"pythonClassName": _class_of(node), key: {"length": _size_text(size)}}
        yield from leaves(content["feature"], path, (*lengths, size), (*steps, own))
    elif key == "translation":
        yield from _translations(node, content, path, lengths, steps)
    else:
        form, classes = _leaf_form(key, content, lengths)
        yield Leaf(path, form, classes, (*steps, _described_leaf(node, key, content)))


def _leaf_form(
    key: str, content: Mapping[str, Any], lengths: tuple[Size, ...]
) -> tuple[StoredForm | None, int | None]:
    """Return the form of a leaf, and the number of classes of a class label."""
    if key == "video":
        frames, *_ = _shape(content)
        return StoredForm(pa.binary(), lengths=(*lengths, frames)), None
    if key == "classLabel":
        return StoredForm(pa.int64(), lengths=lengths), int(content.get("numClasses") or 0)
    if key == "text":
        return StoredForm(_TEXT, lengths=lengths), None
    if key == "image" or (key == "audio" and content.get("lazyDecode")):
        return StoredForm(pa.binary(), lengths=lengths), None
    if key == "boundingBox":
        return StoredForm(pa.float32(), (4,), lengths), None
    return (_tensor(content, lengths) if key in ("tensor", "audio") else None), None


def _translations(
    node: Mapping[str, Any],
    content: Mapping[str, Any],
    path: tuple[str, ...],
    lengths: tuple[Size, ...],
    steps: tuple[Any, ...],
) -> Iterator[Leaf]:
    """Yield a leaf of text for each feature of a translation, which TFDS stores like a dict of texts."""
    is_variable = content.get("variableLanguagesPerExample") or _class_of(node).endswith("VariableLanguages")
    names = ("language", "translation") if is_variable else sorted(content["languages"])
    if is_variable:
        lengths = (*lengths, None)
        steps = (*steps, class_node("sequence_feature.Sequence", sequence={"length": "-1"}))
    text, group = class_node("text_feature.Text", text={}), class_node("features_dict.FeaturesDict")
    for name in names:
        around = (*steps, group, name, text)
        yield Leaf((*path, name), StoredForm(_TEXT, lengths=lengths), None, around)


def class_node(kind: str, **content: Any) -> dict[str, Any]:
    """Return a node of ``features.json`` for a TFDS class, such as "scalar.Scalar"."""
    return {"pythonClassName": f"tensorflow_datasets.core.features.{kind}", **content}


def _described_leaf(node: Mapping[str, Any], key: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node of a leaf in the form of TFDS 4.4 and newer."""
    if "content" not in node:
        return dict(node)
    shape = {"dimensions": [*map(_size_text, _shape(content))]} if "shape" in content else None
    known = {name: value for name, value in content.items() if value is not None and name != "shape"}
    return {"pythonClassName": _class_of(node), key: known | ({"shape": shape} if shape else {})}


def _size_text(size: Size) -> str:
    return "-1" if size is None else str(size)


def tree_of(columns: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Merge the ``steps`` of leaves to one tree of nodes. Raise KeyError with the name of a node that has two
    descriptions.
    """
    node, *rest = columns[0]
    if not rest:
        if len(columns) > 1:
            raise KeyError
        return dict(node)
    if not isinstance(rest[0], str):
        inner = [steps[1:] for steps in columns]
        return {**node, "sequence": {**node["sequence"], "feature": tree_of(inner)}}
    children: dict[str, list[Sequence[Any]]] = {}
    for steps in columns:
        if len(steps) < 3 or not isinstance(steps[1], str):
            raise KeyError
        children.setdefault(steps[1], []).append(steps[2:])
    return {**node, "featuresDict": {"features": {name: tree_of(one) for name, one in children.items()}}}


def _tensor(content: Mapping[str, Any], lengths: tuple[Size, ...]) -> StoredForm | None:
    """Return how a tensor is stored, or None if the dtype is unknown or TFDS writes no such tensors."""
    type_, shape = _TYPES.get(str(content.get("dtype"))), _shape(content)
    encoding = _ENCODINGS.get(str(content.get("encoding") or "none").lower())
    unknown = shape.count(None)
    if type_ is None or encoding is None:
        return None
    if encoding == "none" and (unknown > 1 or (unknown and lengths) or pa.types.is_fixed_size_binary(type_)):
        return None
    if encoding != "none" and type_ == pa.binary():
        return None
    return StoredForm(type_, shape, lengths, encoding, bool(content.get("optional")))


def _content(node: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of a feature, such as "tensor", and the JSON object that describes it.
    ``feature.proto`` names the kinds.
    """
    if "content" not in node:
        key = next((key for key in node if key in _KEYS.values()), "")
        return key, node.get(key) or {}
    # Before version 4.4, TFDS stored the name of a feature's class, and sometimes the name of the feature's
    # protobuf message.
    message = str(node.get("proto_cls") or "").rpartition(".")[2]
    names = (name.removesuffix("Feature") for name in (message, _class_of(node).rpartition(".")[2]))
    key = next((_KEYS[name] for name in names if name in _KEYS), "")
    content = node["content"]
    if not isinstance(content, Mapping):
        return key, {}
    if key == "featuresDict":
        return key, {"features": content.get("features", content) if message else content}
    return key, {
        re.sub(r"_(\w)", lambda match: match[1].upper(), name): value for name, value in content.items()
    }


def _class_of(node: Mapping[str, Any]) -> str:
    return str(node.get("pythonClassName") or node.get("type") or "")


def label_file(path: Sequence[str]) -> str:
    """Return the name of the file with the class names of a label."""
    return f"{'-'.join(path).replace('/', '.')}{LABELS}"


def _shape(content: Mapping[str, Any]) -> tuple[Size, ...]:
    shape = content.get("shape")
    return tuple(map(_size, (shape.get("dimensions", ()) if isinstance(shape, Mapping) else shape) or ()))


def _size(given: Any) -> Size:
    """Return the size of a dimension. ``given`` may be a string, because protobuf's JSON format writes 64-bit
    integers as strings.
    """
    return None if given is None or int(given) < 0 else int(given)


def described_columns(
    read: Callable[[str], bytes], labels: Labels, is_requested: Callable[[str], bool] = lambda _: True
) -> DescribedColumns | None:
    """Return the columns that the TFDS files of a directory describe, or None if they describe no columns.

    ``read`` returns the content of a file in the directory, or raises FileNotFoundError. ``is_requested``
    takes a column name, and returns True if the class names of this column are needed. Raise SchemaError if a
    file is not valid, or if ``features.json`` describes two features with one name. Warn if a file of class
    names does not contain exactly one distinct name for each class.
    """
    try:
        tree = json.loads(read(FEATURES))
        if not isinstance(tree, dict):
            raise ValueError("not a JSON object")
        described = list(leaves(tree))
        for leaf in described:
            # Computing the type raises an error if Arrow cannot represent a size.
            _ = leaf.form and leaf.form.type
    except FileNotFoundError:
        return None
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        problem = f"the description of the features is not valid ({type(error).__name__}: {error})"
        raise SchemaError(problem, "correct the file, or pass the data files as a glob") from None
    if any(not leaf.path for leaf in described):  # the file does not describe a dict of features
        return None
    counts = Counter(leaf.name for leaf in described)
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise SchemaError("the description has two features with this name", feature=repeated[0])
    forms = {
        leaf.name: replace(leaf.form, description=json.dumps(leaf.steps))
        for leaf in described
        if leaf.form is not None
    }
    for leaf in described:
        if leaf.classes is not None and labels == "names" and is_requested(leaf.name):
            forms[leaf.name] = replace(forms[leaf.name], categories=_class_names(read, leaf))
    return DescribedColumns(forms, tuple(leaf.name for leaf in described if leaf.form is None))


def _class_names(read: Callable[[str], bytes], leaf: Leaf) -> pa.Array | None:
    """Return the class names of a label, or None if not every class has a distinct name."""
    name = label_file(leaf.path)
    try:
        lines = read(name).decode().split("\n")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        problem = f"{name} is not valid UTF-8: {error}"
        raise SchemaError(problem, _CODES, feature=leaf.name) from None
    except ValueError as error:
        raise SchemaError(f"{name} cannot be read: {error}", _CODES, feature=leaf.name) from None
    # TFDS strips white space from class names, and drops empty names. Each dropped name shifts the indices of
    # all later classes.
    names = [line.strip() for line in lines if line.strip()]
    if len(names) == leaf.classes and len(set(names)) == len(names):
        return pa.array(names, pa.string())
    warn_caller(
        f"{name} has {len(set(names))} distinct names for {leaf.classes} classes, so {leaf.name!r} "
        'has the numbers of the classes; pass labels="codes" to read the numbers without this warning'
    )
    return None
