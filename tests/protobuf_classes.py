"""Google's own classes of registered Protobuf schemas, made without a compiler: a second opinion on our messages."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from rivet_resources.schema_registry.languages import protobuf


def message_class(text: str) -> type:
    """Make Google's class of the first message of a text, from what was read in it."""
    kinds = descriptor_pb2.FieldDescriptorProto

    def fill(into: descriptor_pb2.DescriptorProto, found: protobuf.ProtoMessage, scope: str) -> None:
        into.name = found.name
        for each in found.fields.values():
            field = into.field.add(name=each.name, number=each.number, label=kinds.LABEL_OPTIONAL, proto3_optional=True)
            field.oneof_index = len(into.oneof_decl)
            into.oneof_decl.add(name=f"_{each.name}")
            if each.message is not None:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f"{scope}.{each.message.name}"
                fill(into.nested_type.add(), each.message, f"{scope}.{each.message.name}")
            elif each.type == protobuf.TIMESTAMP:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".{protobuf.TIMESTAMP}"
            else:
                field.type = getattr(kinds, f"TYPE_{each.type.upper()}")

    needs = ["google/protobuf/timestamp.proto"]
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", syntax="proto3", dependency=needs)
    message = protobuf._parsed(text)
    fill(file.message_type.add(), message, f".{message.name}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(message.name))
