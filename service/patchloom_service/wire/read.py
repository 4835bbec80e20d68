"""Requests of the contract to values: nothing behind this package sees a message."""

import re
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from google.protobuf.message import DecodeError
from patchloom_proto import preprocess_pb2 as pb

from patchloom_service.config import Config
from patchloom_service.errors import InvalidMessage, LimitExceeded
from patchloom_service.strict_json import parse_json, parse_object
from patchloom_service.transport.leases import LeaseKey
from patchloom_service.types import (
    AudioPart,
    Conversation,
    Encoding,
    ImageOptions,
    ImagePart,
    LiteralPolicy,
    MediaPart,
    MediaSource,
    Message,
    OutputOptions,
    Part,
    RenderOptions,
    Request,
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
from patchloom_service.wire.words import DETAILS, ROLES

_T = TypeVar("_T")

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


def parse_request(data: bytes) -> pb.PreprocessRequest:
    """The request of serialized bytes; InvalidMessage where they are none."""
    return _parse(pb.PreprocessRequest, data)


def parse_action(data: bytes) -> pb.PreprocessStreamRequest:
    """The same for a message of a stream."""
    return _parse(pb.PreprocessStreamRequest, data)


def _parse(kind: type[_T], data: bytes) -> _T:
    try:
        return cast(_T, cast(Any, kind).FromString(data))
    except DecodeError as error:
        raise InvalidMessage(f"the bytes are no {kind.__name__} of patchloom.v1") from error


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
    """Text is that of parts, calls and warnings, as serialized, of names, keys, tools and template kwargs.

    Every message, part, call, warning and key counts _EACH bytes more, so that millions of empty ones are
    refused before they are read.
    """
    if len(request.tokens.token_ids) > limits.max_prompt_tokens:
        raise LimitExceeded(
            f"the prompt has {len(request.tokens.token_ids)} tokens; "
            f"at most {limits.max_prompt_tokens} are allowed",
            "tokens.token_ids",
        )
    media, text = len(request.tokens.media), len(request.render.template_kwargs)
    text += sum(map(len, request.conversation.tools))
    for message in request.conversation.messages:
        texts = [part for part in message.content if part.WhichOneof("part") not in _MEDIA_PARTS]
        media += len(message.content) - len(texts)
        text += sum(part.ByteSize() + _EACH for part in (*texts, *message.tool_calls)) + _EACH
        for field in (message.reasoning, message.name, message.tool_call_id):
            text += len(field.encode("utf-8"))
    text += sum(warning.ByteSize() + _EACH for warning in cast(Any, request.warnings))
    text += sum(len(key) + _EACH for key in request.output.known_content_keys)
    if media > limits.max_items:
        path = "messages" if request.HasField("conversation") else "media"
        raise LimitExceeded(f"{media} media items; at most {limits.max_items} are allowed", path)
    if text > limits.max_text_bytes:
        raise LimitExceeded(
            f"the request holds {text} bytes of text; at most {limits.max_text_bytes} are allowed", "messages"
        )


_MEDIA_PARTS = ("image", "audio")


def is_light(request: pb.PreprocessRequest) -> bool:
    """Whether a request of few bytes is read sooner than another thread could begin to."""
    messages = request.conversation.messages
    if request.HasField("tokens") or request.conversation.tools or len(messages) > _LIGHT:
        return False
    others = len(request.warnings) + len(request.output.known_content_keys)
    if others > _LIGHT or len(request.render.template_kwargs) > _LIGHT_JSON:
        return False
    if sum(len(message.content) for message in messages) > _LIGHT:
        return False
    parts = [part for message in messages for part in message.content]
    plain = all(part.WhichOneof("part") in ("text", *_MEDIA_PARTS) for part in parts)
    return plain and not any(message.tool_calls for message in messages)


_LIGHT = 32  # messages, and parts, and warnings and keys
_LIGHT_JSON = 4096
_EACH = 64


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
    if message.role not in ROLES:
        raise InvalidMessage("unknown role; system, user, assistant and tool are allowed", f"{path}.role")
    return Message(
        role=ROLES[message.role],
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
_YEAR_10000 = 253_402_300_800  # seconds; no Timestamp reaches it


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
        detail=_pick(DETAILS, options.detail, f"{path}.detail"),
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
        now=_now(options),
        literals=_pick(_LITERALS, options.literals, "render.literals"),
        tool_results=_pick(_TOOL_RESULTS, options.tool_results, "render.tool_results"),
    )


def _now(options: pb.RenderOptions) -> float | None:
    """Seconds since the epoch, of a time that templates can show."""
    if not options.HasField("now"):
        return None
    seconds = float(options.now.seconds + options.now.nanos / 1e9)
    if not 0 <= seconds < _YEAR_10000:
        raise InvalidMessage("a time lies between the years 1970 and 9999", "render.now")
    return seconds


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
