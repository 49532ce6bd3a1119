"""Parse a schema of TensorFlow Metadata in protobuf's text format.

The message classes are created at run time, with only the fields that `tensorflow_schemas` reads. The package
tensorflow-metadata is not needed, and protobuf is imported only when a text is parsed.
"""

from functools import cache
from typing import Any

# Maps each protobuf message to the fields that the parser reads. A star marks a repeated field. The parser
# skips all fields that are not in this dict. In protobuf's text format, a map looks like a repeated message
# with a key and a value, so "Group" represents the map tensor_representation_group.
_MESSAGES = {
    "Schema": "feature:Feature* string_domain:StringDomain* tensor_representation_group:Group*",
    "Feature": "name:string deprecated:bool type:FeatureType lifecycle_stage:LifecycleStage "
    "presence:Presence in_environment:string* not_in_environment:string* shape:Shape value_count:ValueCount "
    "value_counts:ValueCounts domain:string int_domain:IntDomain string_domain:StringDomain "
    "bool_domain:BoolDomain time_domain:TimeDomain natural_language_domain:Empty url_domain:Empty "
    "struct_domain:StructDomain",
    "StructDomain": "feature:Feature*",
    "Presence": "min_fraction:double",
    "Shape": "dim:Dim*",
    "Dim": "size:int64",
    "ValueCount": "min:int64 max:int64",
    "ValueCounts": "value_count:ValueCount*",
    "IntDomain": "min:int64 max:int64",
    "StringDomain": "name:string value:string*",
    "BoolDomain": "true_value:string false_value:string",
    "TimeDomain": "string_format:string integer_format:IntegerTimeFormat",
    "Group": "key:string value:TensorRepresentations",
    "TensorRepresentations": "tensor_representation:NamedTensor*",
    "NamedTensor": "key:string value:Tensor",
    "Tensor": "dense_tensor:DenseTensor ragged_tensor:RaggedTensor",
    "DenseTensor": "column_name:string shape:Shape default_value:Empty",
    "RaggedTensor": "feature_path:Path partition:Partition*",
    "Path": "step:string*",
    "Partition": "uniform_row_length:int64 row_length:string",
    "Empty": "",
}
_ENUMS = {
    "FeatureType": "TYPE_UNKNOWN=0 BYTES=1 INT=2 FLOAT=3 STRUCT=4",
    "LifecycleStage": "UNKNOWN_STAGE=0 PLANNED=1 ALPHA=2 BETA=3 PRODUCTION=4 DEPRECATED=5 DEBUG_ONLY=6 "
    "DISABLED=7 VALIDATION_DERIVED=9",
    "IntegerTimeFormat": "FORMAT_UNKNOWN=0 UNIX_SECONDS=1 UNIX_MILLISECONDS=2 UNIX_MICROSECONDS=3 "
    "UNIX_NANOSECONDS=4 UNIX_DAYS=5",
}
# Maps each protobuf type to the type's code in a FieldDescriptorProto.
_SCALARS = {"double": 1, "int64": 3, "bool": 8, "string": 9}
_MESSAGE, _ENUM = 11, 14
_OPTIONAL, _REPEATED = 1, 3

_PACKAGE = "dask_tfrecord.tfmd"


def parse(text: str) -> Any:
    """Parse the text of a schema into a message with the fields in `_MESSAGES`.

    Raise ImportError if protobuf is not installed. Raise ValueError, with the line number, if the text is
    invalid.
    """
    schema = _schema_class()()
    from google.protobuf import text_format

    try:
        text_format.Parse(text, schema, allow_unknown_field=True)
    except text_format.ParseError as error:
        line, problem = error.GetLine(), str(error).partition(" : ")
        text = f"line {line}: {problem[2]}" if line and problem[2] else str(error)
        raise ValueError(text.rstrip(".")) from None
    except RecursionError:
        raise ValueError("messages are nested too deeply") from None
    return schema


def enum_name(message: Any, field: str) -> str:
    values = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    name: str = values[getattr(message, field)].name
    return name


@cache
def _schema_class() -> Any:
    """Create the message class in a separate descriptor pool, because the default pool may contain
    TensorFlow's messages.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise ImportError(
            "a schema of TensorFlow Metadata needs protobuf; pip install 'dask-tfrecord[tfmd]'",
            name="google.protobuf",
        ) from error
    file = descriptor_pb2.FileDescriptorProto(name="dask_tfrecord/tfmd.proto", package=_PACKAGE)
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value in values.split():
            label, _, code = value.partition("=")
            enum.value.add(name=label, number=int(code))
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, item in enumerate(fields.split(), 1):
            field, _, type_ = item.partition(":")
            added = message.field.add(name=field, number=number)
            added.label = _REPEATED if type_.endswith("*") else _OPTIONAL
            type_ = type_.rstrip("*")
            added.type = _SCALARS.get(type_, _ENUM if type_ in _ENUMS else _MESSAGE)
            if type_ not in _SCALARS:
                added.type_name = f".{_PACKAGE}.{type_}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Schema"))
