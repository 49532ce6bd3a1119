"""What a decoder of some columns must make of one Example, by google.protobuf."""

from collections.abc import Collection
from typing import Any, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet
from oracle import (
    DecodeError,
    Feature,
    FeatureMessage,
    Inferred,
    OpenExample,
    OpenFeature,
    Record,
    holds_number_0,
    read_feature,
)

from dask_tfrecord.codec import Column, Inference


class Judged(NamedTuple):
    """The record, or None if it must be refused. If `disputed`, it may be refused anyway."""

    record: Record | None
    disputed: bool = False


REFUSED = Judged(None)


def judge(payload: bytes, columns: Collection[Column] | None, known: Collection[str] | None = None) -> Judged:
    """Judge a record that is decoded to these columns.

    Without columns, all features are parsed, and all values fit. ``known`` are the features that the record
    may have besides the columns; None allows every feature.
    """
    try:
        example = OpenExample.FromString(payload)
    except DecodeError:
        return REFUSED
    parts = [example, example.features]
    if payload and not example.HasField("features"):
        return REFUSED
    wanted = None if columns is None else {column.name: column for column in columns}
    features: dict[str, Feature] = {}
    is_foreign = is_example = False
    for entry in example.features.feature:
        name = entry.key[-1] if entry.key else ""
        if len(UnknownFieldSet(entry)):
            return REFUSED
        is_foreign |= not entry.value and _has_control_characters(name)
        pieces = [_parsed(piece) for piece in entry.value]
        if len(pieces) > 1 and not all(map(_is_whole, entry.value)):
            return REFUSED
        is_example |= any(piece is not None and piece.WhichOneof("kind") for piece in pieces)
        is_foreign |= any(piece is None or len(UnknownFieldSet(piece)) for piece in pieces)
        is_wanted = wanted is None or name in wanted
        if is_wanted or (known is not None and name not in known):
            feature = _parsed(b"".join(entry.value))
            if feature is None:
                return REFUSED
            features[name] = read_feature(feature)
            parts += [feature, *(getattr(feature, kind) for kind in (feature.WhichOneof("kind"),) if kind)]
        parts += [piece for piece in pieces if piece is not None]
    is_foreign |= any(len(UnknownFieldSet(part)) for part in parts[:2])
    if is_foreign and not is_example:
        return REFUSED
    if wanted is not None and not all(_fits(feature, wanted.get(name)) for name, feature in features.items()):
        return REFUSED
    return Judged(Record(features), any(holds_number_0(UnknownFieldSet(part)) for part in parts))


def _fits(feature: Feature, column: Column | None) -> bool:
    """Return True if the column can hold the feature. Without a column, the feature must have no kind."""
    if feature.kind is None or column is None:
        return feature.kind is None
    if feature.kind != ("bytes" if column.kind == "string" else column.kind):
        return False
    if not column.depth and len(feature.values) > 1:
        return False
    return column.kind != "string" or all(map(_is_utf8, feature.values))


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_control_characters(name: str) -> bool:
    return any(ord(sign) < 32 or ord(sign) == 127 for sign in name)


def _parsed(feature: bytes) -> Any:
    """The message of a Feature, or None if it is malformed."""
    try:
        return FeatureMessage.FromString(feature)
    except DecodeError:
        return None


def _is_whole(feature: bytes) -> bool:
    """Return True if a Feature consists of whole fields, whatever these hold."""
    try:
        OpenFeature.FromString(feature)
    except DecodeError:
        return False
    return True


def seen_by(inference: Inference) -> Inferred:
    """The features that an inference has seen, in the form of the oracle."""
    return {(f.name, f.feature_list): (f.kinds, f.max_values, f.utf8, f.text) for f in inference.features()}
