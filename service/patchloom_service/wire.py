"""Protobuf to values and back: nothing behind this file sees a message of the contract."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.config import Config
from patchloom_service.errors import InvalidMessage, LimitExceeded
from patchloom_service.models.base import Grid, GridKind
from patchloom_service.result import BoundItem, Counters, Result, Tensor
from patchloom_service.served import ServedModel
from patchloom_service.strict_json import parse_json, parse_object
from patchloom_service.transport.leases import CudaLocation, Handle, LeaseKey, SharedLocation
from patchloom_service.transport.message import Part as Bytes
from patchloom_service.transport.message import join
from patchloom_service.types import (
    AudioPart,
    Conversation,
    Detail,
    Encoding,
    ImageOptions,
    ImagePart,
    LiteralPolicy,
    MediaPart,
    MediaSource,
    Message,
    Modality,
    OutputOptions,
    Part,
    RenderOptions,
    Request,
    Role,
    SourceKind,
    StructuredPart,
    TextPart,
    ThinkingPart,
    TokenPrompt,
    ToolCall,
    ToolResultPolicy,
    Transport,
)
from patchloom_service.types import Warning as Notice

_T = TypeVar("_T")

_ROLES = {
    pb.ROLE_SYSTEM: Role.SYSTEM,
    pb.ROLE_USER: Role.USER,
    pb.ROLE_ASSISTANT: Role.ASSISTANT,
    pb.ROLE_TOOL: Role.TOOL,
}
_DETAILS = {
    pb.IMAGE_DETAIL_UNSPECIFIED: None,
    pb.IMAGE_DETAIL_AUTO: Detail.AUTO,
    pb.IMAGE_DETAIL_LOW: Detail.LOW,
    pb.IMAGE_DETAIL_HIGH: Detail.HIGH,
    pb.IMAGE_DETAIL_ORIGINAL: Detail.ORIGINAL,
}
_LITERALS = {
    pb.LITERAL_POLICY_UNSPECIFIED: LiteralPolicy.LITERAL,
    pb.LITERAL_POLICY_LITERAL: LiteralPolicy.LITERAL,
    pb.LITERAL_POLICY_PARSE: LiteralPolicy.PARSE,
    pb.LITERAL_POLICY_REJECT: LiteralPolicy.REJECT,
}
_TOOL_RESULTS = {
    pb.TOOL_RESULT_POLICY_UNSPECIFIED: ToolResultPolicy.KEEP,
    pb.TOOL_RESULT_POLICY_KEEP: ToolResultPolicy.KEEP,
    pb.TOOL_RESULT_POLICY_HOIST: ToolResultPolicy.HOIST,
    pb.TOOL_RESULT_POLICY_REJECT: ToolResultPolicy.REJECT,
}
_PARITIES = {
    pb.PARITY_UNSPECIFIED: None,
    pb.PARITY_ATEN_U8: "aten_u8",
    pb.PARITY_PILLOW12: "pillow12",
    pb.PARITY_PILLOW13: "pillow13",
}
_REQUEST_DTYPES = {
    pb.DTYPE_UNSPECIFIED: None,
    pb.DTYPE_FLOAT32: "float32",
    pb.DTYPE_BFLOAT16: "bfloat16",
    pb.DTYPE_FLOAT16: "float16",
}
_ENCODINGS = {
    pb.ENCODING_UNSPECIFIED: Encoding.MODEL,
    pb.ENCODING_MODEL: Encoding.MODEL,
    pb.ENCODING_UINT8: Encoding.UINT8,
}
_TRANSPORTS = {
    pb.TRANSPORT_UNSPECIFIED: Transport.INLINE,
    pb.TRANSPORT_INLINE: Transport.INLINE,
    pb.TRANSPORT_SHARED_MEMORY: Transport.SHARED_MEMORY,
    pb.TRANSPORT_CUDA_IPC: Transport.CUDA_IPC,
}
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


def read_request(
    request: pb.PreprocessRequest,
    namespace: str = "",
    limits: Config = Config(),  # noqa: B008 - a frozen value
) -> Request:
    """The request as values; InvalidMessage with the path of a field that is malformed.

    LimitExceeded for more items, text or token ids than `limits` allow, before any of it is read.
    """
    _check_sizes(request, limits)
    kind = request.WhichOneof("prompt")
    prompt: Conversation | TokenPrompt
    if kind == "conversation":
        prompt = _conversation(request)
    elif kind == "tokens":
        media = tuple(_media(part, f"media[{i}]") for i, part in enumerate(request.tokens.media))
        prompt = TokenPrompt(tuple(request.tokens.token_ids), media)
    else:
        raise InvalidMessage("missing prompt; set conversation or tokens", "prompt")
    return Request(
        model=request.model,
        prompt=prompt,
        image_options=_image_options(request.image_options, "image_options"),
        output=_output(request.output),
        expected_fingerprint=request.expected_fingerprint,
        warnings=tuple(Notice(w.reason, w.field_path, w.message) for w in cast(Any, request.warnings)),
        namespace=namespace,
    )


def _check_sizes(request: pb.PreprocessRequest, limits: Config) -> None:
    """Text is counted as it is serialized: that of all parts, calls, tools and template kwargs."""
    if len(request.tokens.token_ids) > limits.max_prompt_tokens:
        raise LimitExceeded(
            f"the prompt has {len(request.tokens.token_ids)} tokens; "
            f"at most {limits.max_prompt_tokens} are allowed",
            "tokens.token_ids",
        )
    media, text = len(request.tokens.media), len(request.render.template_kwargs)
    text += sum(map(len, request.conversation.tools))
    for message in request.conversation.messages:
        items = [part.ByteSize() for part in message.content if part.WhichOneof("part") in _MEDIA_PARTS]
        media += len(items)
        text += message.ByteSize() - sum(items)
    if media > limits.max_items:
        path = "messages" if request.HasField("conversation") else "media"
        raise LimitExceeded(f"{media} media items; at most {limits.max_items} are allowed", path)
    if text > limits.max_text_bytes:
        raise LimitExceeded(
            f"the request holds {text} bytes of text; at most {limits.max_text_bytes} are allowed", "messages"
        )


_MEDIA_PARTS = ("image", "audio")


def _pick(table: Mapping[Any, _T], value: int, path: str) -> _T:
    if value not in table:
        raise InvalidMessage(f"unknown value {value}; {', '.join(str(k) for k in table)} are defined", path)
    return table[value]


def _conversation(request: pb.PreprocessRequest) -> Conversation:
    conversation = request.conversation
    return Conversation(
        messages=tuple(_message(m, f"messages[{i}]") for i, m in enumerate(conversation.messages)),
        tools=tuple(parse_object(tool, f"tools[{i}]") for i, tool in enumerate(conversation.tools)),
        options=_render(request.render),
    )


def _message(message: pb.Message, path: str) -> Message:
    if message.role not in _ROLES:
        raise InvalidMessage("unknown role; system, user, assistant and tool are allowed", f"{path}.role")
    return Message(
        role=_ROLES[message.role],
        content=tuple(_part(p, f"{path}.content[{i}]") for i, p in enumerate(message.content)),
        reasoning=message.reasoning,
        tool_calls=tuple(
            ToolCall(c.id, c.name, parse_object(c.arguments, f"{path}.tool_calls[{i}].arguments"))
            for i, c in enumerate(message.tool_calls)
        ),
        tool_call_id=message.tool_call_id if message.HasField("tool_call_id") else None,
        name=message.name if message.HasField("name") else None,
        is_error=message.is_error,
    )


def _part(part: pb.ContentPart, path: str) -> Part:
    match part.WhichOneof("part"):
        case "text":
            return TextPart(part.text.text)
        case "thinking":
            return ThinkingPart(part.thinking.text)
        case "structured":
            return StructuredPart(parse_json(part.structured.json, path))
        case "image" | "audio":
            return _media(part, path)
        case _:
            raise InvalidMessage(
                "unknown part; text, image, audio, structured and thinking are allowed", path
            )


def _media(part: pb.ContentPart, path: str) -> MediaPart:
    kind = part.WhichOneof("part")
    if kind == "image":
        image = part.image
        options = _image_options(image.options, f"{path}.options") if image.HasField("options") else None
        return ImagePart(_source(image.source, path), options, image.media_type)
    if kind == "audio":
        audio = part.audio
        if audio.format not in ("", "wav", "pcm16"):
            raise InvalidMessage("unknown audio format; wav and pcm16 are allowed", f"{path}.format")
        return AudioPart(
            _source(audio.source, path),
            audio.format or "wav",
            audio.sample_rate or 16000,
            audio.channels or 1,
        )
    raise InvalidMessage("must be an image or an audio part", path)


_CONTENT_KEY = re.compile("[0-9a-f]{64}")


def _source(source: pb.MediaSource, path: str) -> MediaSource:
    kind = source.WhichOneof("source")
    if kind is None:
        raise InvalidMessage("missing source; set data, data_uri, url or content_key", f"{path}.source")
    if kind == "data":
        return MediaSource(SourceKind.DATA, data=source.data)
    if kind == "content_key" and not _CONTENT_KEY.fullmatch(source.content_key):
        raise InvalidMessage("must be 64 digits 0-9a-f, as a response gives it", f"{path}.source.content_key")
    return MediaSource(SourceKind(kind), text=getattr(source, kind))


def _image_options(options: pb.ImageOptions, path: str) -> ImageOptions:
    return ImageOptions(
        detail=_pick(_DETAILS, options.detail, f"{path}.detail"),
        min_pixels=options.min_pixels if options.HasField("min_pixels") else None,
        max_pixels=options.max_pixels if options.HasField("max_pixels") else None,
    )


def _render(options: pb.RenderOptions) -> RenderOptions:
    continued = options.continue_final_message
    asked = options.add_generation_prompt if options.HasField("add_generation_prompt") else not continued
    if asked and continued:
        raise InvalidMessage(
            "add_generation_prompt and continue_final_message exclude each other; set one of them",
            "render",
        )
    return RenderOptions(
        add_generation_prompt=asked,
        continue_final_message=continued,
        template_kwargs=parse_object(options.template_kwargs, "render.template_kwargs"),
        reasoning_effort=options.reasoning_effort if options.HasField("reasoning_effort") else None,
        now=options.now.seconds + options.now.nanos / 1e9 if options.HasField("now") else None,
        literals=_pick(_LITERALS, options.literals, "render.literals"),
        tool_results=_pick(_TOOL_RESULTS, options.tool_results, "render.tool_results"),
    )


def _output(options: pb.OutputOptions) -> OutputOptions:
    background = None
    if options.HasField("background"):
        if options.background > 0xFFFFFF:
            raise InvalidMessage("must be at most 0xffffff", "output.background")
        background = (
            options.background >> 16,
            options.background >> 8 & 255,
            options.background & 255,
        )
    if options.shards > 1024:
        raise InvalidMessage("at most 1024 shards are allowed", "output.shards")
    return OutputOptions(
        parity=_pick(_PARITIES, options.parity, "output.parity"),
        dtype=_pick(_REQUEST_DTYPES, options.dtype, "output.dtype"),
        encoding=_pick(_ENCODINGS, options.encoding, "output.encoding"),
        transport=_pick(_TRANSPORTS, options.transport, "output.transport"),
        positions=options.positions,
        known_content_keys=frozenset(options.known_content_keys),
        shards=options.shards,
        background=background,
        show_messages=options.show_messages,
        lease_time=read_lease_time(options, "output.lease_time"),
    )


Carry = Callable[[str, Tensor, pb.TensorData], None]
"""Puts a tensor's content, or what leads to it, into a TensorData whose dtype and shape are set."""


def carry_inline(name: str, tensor: Tensor, message: pb.TensorData) -> None:
    """The content in the message itself."""
    message.inline = np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8).tobytes()


def carry_apart(announced: list[tuple[str, Tensor]], least: int = 1 << 16) -> Carry:
    """Leaves the content of tensors above `least` bytes out and collects them; the others go inline."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        if tensor.array.nbytes <= least:
            carry_inline(name, tensor, message)
        else:
            announced.append((name, tensor))

    return carry


def carry_handles(find: Callable[[npt.NDArray[Any]], Handle | None], rest: Carry = carry_inline) -> Carry:
    """A handle for each tensor that `find` knows a place of; the others go by `rest`."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        handle = find(tensor.array)
        if handle is None:
            rest(name, tensor, message)
        else:
            _write_handle(handle, message.handle)

    return carry


def carry_chunked(announced: list[tuple[str, Tensor]], least: int) -> Carry:
    """Announces tensors above `least` bytes as chunked and collects them; the others go inline."""

    def carry(name: str, tensor: Tensor, message: pb.TensorData) -> None:
        if tensor.array.nbytes <= least:
            carry_inline(name, tensor, message)
        else:
            message.chunked = tensor.array.nbytes
            announced.append((name, tensor))

    return carry


def chunks_of(name: str, tensor: Tensor, size: int) -> Iterator[pb.TensorChunk]:
    """The content of a tensor in pieces of at most `size` bytes, each made when it is asked for."""
    content = np.ascontiguousarray(tensor.array).reshape(-1).view(np.uint8)
    for start in range(0, len(content), size):
        yield pb.TensorChunk(tensor=name, offset=start, data=content[start : start + size].tobytes())


def _write_handle(handle: Handle, message: pb.TensorHandle) -> None:
    message.server_instance = handle.key.instance
    message.lease_id = handle.key.lease_id
    message.generation = handle.key.generation
    message.offset = handle.offset
    message.size = handle.size
    message.expires.FromNanoseconds(int(handle.expires * 1e9))
    match handle.location:
        case SharedLocation(name, namespace_id):
            message.shared_memory.name = name
            message.shared_memory.namespace_id = namespace_id
        case CudaLocation(uuid, memory, event):
            message.cuda_ipc.device_uuid = uuid
            message.cuda_ipc.memory_handle = memory
            message.cuda_ipc.event_handle = event


def read_lease(lease: pb.Lease) -> LeaseKey:
    """The key that a holder shows."""
    return LeaseKey(lease.server_instance, lease.lease_id, lease.generation)


def read_seconds(message: Any, name: str, path: str = "") -> float | None:
    """A Duration field of a message in seconds, None where it is unset; InvalidMessage unless positive."""
    if not message.HasField(name):
        return None
    value = getattr(message, name)
    seconds = float(value.seconds + value.nanos / 1e9)
    if seconds <= 0:
        raise InvalidMessage("must be positive", path or name)
    return seconds


def read_lease_time(message: Any, path: str) -> float | None:
    """The lease_time of a message in seconds, None where it is unset; InvalidMessage for too long a time."""
    seconds = read_seconds(message, "lease_time", path)
    if seconds is not None and seconds > LEASE_SECONDS_MAX:
        raise InvalidMessage(f"at most {LEASE_SECONDS_MAX} seconds are allowed; renew the lease", path)
    return seconds


LEASE_SECONDS_MAX = 86400
"""A lease that nobody renews for a day holds memory that nobody reads."""

_FELL_BACK = Notice(
    "TRANSPORT_FELL_BACK", "output.transport", "the memory for tensors is full; they came inline"
)


def write_response(
    result: Result, carry: Carry = carry_inline, fell_back: bool = False
) -> pb.PreprocessResponse:
    """The response message of a result, its tensors carried by `carry`.

    `fell_back` adds the warning that they did not take the transport that was asked for.
    """
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
    response.token_ids.extend(result.ids.tolist())
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
    response = write_response(result, carry_handles(find, carry_apart(apart)), fell_back)
    parts: list[Bytes] = []
    for name, tensor in apart:
        parts += [_head_of(name, response.tensors[name], tensor.array.nbytes), tensor.array]
        del response.tensors[name]
    return join([response.SerializeToString(), *parts])


_TENSORS_FIELD = pb.PreprocessResponse.DESCRIPTOR.fields_by_name["tensors"].number
_INLINE_FIELD = pb.TensorData.DESCRIPTOR.fields_by_name["inline"].number


def _head_of(name: str, data: pb.TensorData, size: int) -> bytes:
    """An entry of the response's `tensors` up to its last bytes, which are the content.

    protobuf.dev/programming-guides/encoding: a map entry is a message of key (1) and value (2).
    """
    value = data.SerializeToString() + _length_delimited(_INLINE_FIELD, size)
    key = name.encode()
    entry = _length_delimited(1, len(key)) + key + _length_delimited(2, len(value) + size) + value
    return _length_delimited(_TENSORS_FIELD, len(entry) + size) + entry


def _length_delimited(number: int, size: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(size)


def _varint(value: int) -> bytes:
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


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
    role = next(key for key, value in _ROLES.items() if value is message.role)
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
    detail = next(key for key, value in _DETAILS.items() if value is options.detail)
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
