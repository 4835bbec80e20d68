"""Results to messages of the contract."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.models.base import Grid, GridKind, IdArray
from patchloom_service.result import BoundItem, Counters, Result, Tensor
from patchloom_service.served import ServedModel
from patchloom_service.transport.leases import Handle
from patchloom_service.transport.message import Part as Bytes
from patchloom_service.transport.message import join
from patchloom_service.types import (
    AudioPart,
    ImageOptions,
    ImagePart,
    MediaSource,
    Message,
    Modality,
    Part,
    SourceKind,
    StructuredPart,
    TextPart,
    ThinkingPart,
)
from patchloom_service.types import Warning as Notice
from patchloom_service.wire.carry import Carry, carry_apart, carry_chunked, carry_handles, carry_inline
from patchloom_service.wire.fields import length_delimited, varint
from patchloom_service.wire.words import DETAILS, ROLES

_DTYPES = {
    "float32": pb.DTYPE_FLOAT32,
    "bfloat16": pb.DTYPE_BFLOAT16,
    "float16": pb.DTYPE_FLOAT16,
    "uint8": pb.DTYPE_UINT8,
    "int64": pb.DTYPE_INT64,
    "int32": pb.DTYPE_INT32,
    "bool": pb.DTYPE_BOOL,
}
_GRID_KINDS = {
    GridKind.PATCHES: pb.GRID_KIND_PATCHES,
    GridKind.TILES: pb.GRID_KIND_TILES,
    GridKind.FRAMES: pb.GRID_KIND_FRAMES,
}
_MODALITIES = {Modality.IMAGE: pb.MODALITY_IMAGE, Modality.AUDIO: pb.MODALITY_AUDIO}


_FELL_BACK = Notice(
    "TRANSPORT_FELL_BACK", "output.transport", "the memory for tensors is full; they came inline"
)


def write_response(
    result: Result, carry: Carry = carry_inline, fell_back: bool = False
) -> pb.PreprocessResponse:
    """The response message of a result, its tensors carried by `carry`.

    `fell_back` adds the warning that they did not take the transport that was asked for.
    """
    response = _without_ids(result, carry, fell_back)
    response.token_ids.extend(result.ids.tolist())
    return response


def _without_ids(result: Result, carry: Carry, fell_back: bool) -> pb.PreprocessResponse:
    response = pb.PreprocessResponse(
        model=result.model,
        fingerprint=result.fingerprint,
        items=[_item(item) for item in result.items],
        warnings=[
            pb.Warning(reason=w.reason, field_path=w.field_path, message=w.message)
            for w in (*result.warnings, *([_FELL_BACK] if fell_back else []))
        ],
        timings_ms=result.timings_ms,
        counters=_counters(result.counters),
        shards=[pb.Shard(items=shard.items, patches=shard.patches) for shard in result.shards],
        messages=[write_message(message) for message in result.messages],
    )
    if result.token_types is not None:
        response.token_types.name = result.token_types_name
        response.token_types.values = result.token_types.tobytes()
    for name, tensor in result.tensors.items():
        _tensor(name, tensor, response.tensors[name], carry)
    return response


def serialize_response(
    result: Result, find: Callable[[npt.NDArray[Any]], Handle | None], fell_back: bool = False
) -> bytes:
    """The serialized response, handles for the tensors that `find` knows a place of.

    The content of large tensors is copied once, into the result; a message in between would hold it too.
    """
    apart: list[tuple[str, Tensor]] = []
    response = _without_ids(result, carry_handles(find, carry_apart(apart)), fell_back)
    parts: list[Bytes] = []
    for name, tensor in apart:
        parts += [_head_of(name, response.tensors[name], tensor.array.nbytes), tensor.array]
        del response.tensors[name]
    message = response.SerializeToString() + _packed_ids(result.ids)
    return join([message, *parts]) if parts else message


def serialize_chunked(
    result: Result, find: Callable[[npt.NDArray[Any]], Handle | None], least: int, fell_back: bool = False
) -> tuple[bytes, Sequence[tuple[str, Tensor]]]:
    """The same for a stream, with the tensors above `least` bytes announced; they follow in chunks."""
    announced: list[tuple[str, Tensor]] = []
    response = _without_ids(result, carry_handles(find, carry_chunked(announced, least)), fell_back)
    return response.SerializeToString() + _packed_ids(result.ids), announced


_IDS_FIELD = pb.PreprocessResponse.DESCRIPTOR.fields_by_name["token_ids"].number
_TENSORS_FIELD = pb.PreprocessResponse.DESCRIPTOR.fields_by_name["tensors"].number
_INLINE_FIELD = pb.TensorData.DESCRIPTOR.fields_by_name["inline"].number


def _packed_ids(ids: IdArray) -> bytes:
    """The field `token_ids`, packed varints. Media repeat one thousands of times: it is encoded once."""
    edges = np.flatnonzero(ids[1:] != ids[:-1]) + 1
    if len(edges) >= len(ids) // 16:
        return pb.PreprocessResponse(token_ids=ids.tolist()).SerializeToString()
    bounds = [0, *edges.tolist(), len(ids)]
    runs = zip(ids[bounds[:-1]].tolist(), pairwise(bounds), strict=True)
    packed = b"".join([varint(value) * (end - start) for value, (start, end) in runs])
    return length_delimited(_IDS_FIELD, len(packed)) + packed


def _head_of(name: str, data: pb.TensorData, size: int) -> bytes:
    """An entry of the response's `tensors` up to its last bytes, which are the content.

    protobuf.dev/programming-guides/encoding: a map entry is a message of key (1) and value (2).
    """
    value = data.SerializeToString() + length_delimited(_INLINE_FIELD, size)
    key = name.encode()
    entry = length_delimited(1, len(key)) + key + length_delimited(2, len(value) + size) + value
    return length_delimited(_TENSORS_FIELD, len(entry) + size) + entry


def _tensor(name: str, tensor: Tensor, message: pb.TensorData, carry: Carry) -> None:
    message.dtype = _DTYPES[tensor.dtype]
    message.shape.extend(tensor.array.shape)
    if (expansion := tensor.expansion) is not None:
        message.expansion.CopyFrom(
            pb.Expansion(
                dtype=_DTYPES[expansion.dtype],
                shape=expansion.shape,
                columns=expansion.columns,
                patch_height=expansion.patch[0],
                patch_width=expansion.patch[1],
                merge=expansion.merge,
                temporal=expansion.temporal,
            )
        )
    carry(name, tensor, message)


def _item(item: BoundItem) -> pb.MediaItem:
    message = pb.MediaItem(
        index=item.index,
        modality=_MODALITIES[item.modality],
        path=item.path,
        tool_call_id=item.tool_call_id,
        content_key=item.content_key,
        grid=_grid(item.grid),
        token_count=item.token_count,
        ranges=[pb.PlaceholderRange(offset=o, length=n) for o, n in item.ranges],
        slices=[
            pb.TensorSlice(tensor=s.tensor, axis=s.axis, start=s.start, count=s.count) for s in item.slices
        ],
        span=pb.PlaceholderRange(offset=item.span[0], length=item.span[1]),
        known=item.known,
    )
    if item.size is not None and item.resized is not None:
        message.size.height, message.size.width = item.size
        message.resized.height, message.resized.width = item.resized
    return message


def _grid(grid: Grid) -> pb.Grid:
    return pb.Grid(kind=_GRID_KINDS[grid.kind], shape=grid.shape)


def _counters(counters: Counters) -> pb.Counters:
    return pb.Counters(**{name: getattr(counters, name) for name in Counters.__slots__})


def write_message(message: Message) -> pb.Message:
    """A normalized message as the contract has it."""
    role = next(key for key, value in ROLES.items() if value is message.role)
    written = pb.Message(role=role, is_error=message.is_error)
    written.content.extend(_write_part(part) for part in message.content)
    written.tool_calls.extend(
        pb.ToolCall(id=c.id, name=c.name, arguments=_dump(c.arguments)) for c in message.tool_calls
    )
    if message.reasoning:
        written.reasoning = message.reasoning
    if message.tool_call_id is not None:
        written.tool_call_id = message.tool_call_id
    if message.name is not None:
        written.name = message.name
    return written


def _write_part(part: Part) -> pb.ContentPart:
    written = pb.ContentPart()
    match part:
        case TextPart(text):
            written.text.text = text
        case ThinkingPart(text):
            written.thinking.text = text
        case StructuredPart(value):
            written.structured.json = _dump(value)
        case ImagePart():
            written.image.media_type = part.media_type
            _write_source(part.source, written.image.source)
            if part.options is not None:
                written.image.options.CopyFrom(_write_options(part.options))
        case AudioPart():
            written.audio.format = part.format
            written.audio.sample_rate = part.sample_rate
            written.audio.channels = part.channels
            _write_source(part.source, written.audio.source)
    return written


def _write_source(source: MediaSource, message: pb.MediaSource) -> None:
    setattr(message, source.kind.value, source.data if source.kind is SourceKind.DATA else source.text)


def _write_options(options: ImageOptions) -> pb.ImageOptions:
    detail = next(key for key, value in DETAILS.items() if value is options.detail)
    message = pb.ImageOptions(detail=detail)
    if options.min_pixels is not None:
        message.min_pixels = options.min_pixels
    if options.max_pixels is not None:
        message.max_pixels = options.max_pixels
    return message


def _dump(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def write_model(model: ServedModel, fingerprint: str) -> pb.Model:
    """A served model as the contract has it."""
    reference = model.spec.reference is not None
    return pb.Model(
        name=model.name,
        family=model.spec.family,
        architectures=model.spec.architectures,
        pixel_path=pb.PIXEL_PATH_REFERENCE if reference else pb.PIXEL_PATH_KERNELS,
        fingerprint=fingerprint,
        template_sha256=model.identity.get("template", ""),
        info=_dump(model.info),
    )
