"""Reads requests and writes responses: what takes long on another thread, what does not at once."""

import asyncio
from collections.abc import Sequence
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.config import Config
from patchloom_service.errors import MessageTooLarge
from patchloom_service.result import Result, Tensor
from patchloom_service.transport.transports import Delivery
from patchloom_service.types import Request
from patchloom_service.wire.read import is_light, parse_action, parse_request, read_request
from patchloom_service.wire.write import serialize_chunked, serialize_response

_LIGHT_BYTES = 512 << 10  # messages that the event loop itself reads or writes
_LIGHT_LISTS = 64  # warnings and items of a response that it writes


class Translator:
    """Between messages and values, on the event loop only where another thread would take longer to begin."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def parse(self, data: bytes) -> Request:
        """The request of a serialized message; InvalidMessage where it is none."""
        if len(data) > _LIGHT_BYTES:
            return await asyncio.to_thread(lambda: read_request(parse_request(data), limits=self._config))
        return await self.read(parse_request(data), len(data))

    async def parse_action(self, data: bytes) -> pb.PreprocessStreamRequest:
        """A serialized message of a stream; InvalidMessage where it is none."""
        return (
            parse_action(data) if len(data) <= _LIGHT_BYTES else await asyncio.to_thread(parse_action, data)
        )

    async def read(self, message: pb.PreprocessRequest, size: int) -> Request:
        """The request of a message of `size` bytes."""
        if size <= _LIGHT_BYTES and is_light(message):
            return read_request(message, limits=self._config)
        return await asyncio.to_thread(read_request, message, limits=self._config)

    async def serialize(self, result: Result, delivery: Delivery) -> bytes:
        """The response, with all content that has no handle."""
        find, fell_back = delivery.handle, delivery.fell_back
        if _is_light(result, sum(_apart(result, delivery))):
            return serialize_response(result, find, fell_back)
        return await asyncio.to_thread(serialize_response, result, find, fell_back)

    async def serialize_chunked(
        self, result: Result, delivery: Delivery, least: int
    ) -> tuple[bytes, Sequence[tuple[str, Tensor]]]:
        """The response, and the tensors above `least` bytes that it announces."""
        find, fell_back = delivery.handle, delivery.fell_back
        if _is_light(result, sum(size for size in _apart(result, delivery) if size <= least)):
            return serialize_chunked(result, find, least, fell_back)
        return await asyncio.to_thread(serialize_chunked, result, find, least, fell_back)


def check_answer(message: bytes, config: Config) -> None:
    """MessageTooLarge where gRPC would not send the message."""
    if len(message) > config.max_message_bytes:
        raise MessageTooLarge(
            f"the answer has {len(message)} bytes; at most {config.max_message_bytes} are allowed: ask for "
            "another transport, or raise max_message_bytes on both sides"
        )


def _apart(result: Result, delivery: Delivery) -> list[int]:
    """The bytes of each tensor that has no handle."""
    arrays: list[Any] = [tensor.array for tensor in result.tensors.values()]
    return [array.nbytes for array in arrays if delivery.handle(array) is None]


def _is_light(result: Result, content: int) -> bool:
    few = len(result.warnings) + len(result.items) <= _LIGHT_LISTS and not result.messages
    return few and content + result.ids.nbytes <= _LIGHT_BYTES // 4
