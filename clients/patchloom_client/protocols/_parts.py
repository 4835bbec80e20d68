"""Parts as the three dialects share them: text, images with their size options, audio clips."""

from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidAudio, InvalidMessage, UnsupportedContent
from patchloom_client.protocols import _sources
from patchloom_client.protocols._values import (
    Body,
    integer,
    join,
    listed,
    required_text,
    shown,
    text,
    word,
)

DETAILS = {
    "auto": pb.IMAGE_DETAIL_AUTO,
    "low": pb.IMAGE_DETAIL_LOW,
    "high": pb.IMAGE_DETAIL_HIGH,
    "original": pb.IMAGE_DETAIL_ORIGINAL,
}
# The Responses API demands a detail on every image, so "auto" says no more than no detail does.
_DIALECT_DETAILS = {**DETAILS, "auto": None, "default": None}
SIZE_KEYS = ("detail", "min_pixels", "max_pixels")
AUDIO_FORMATS = ("wav", "pcm16")
MAX_PIXELS = 2**63 - 1
IGNORED_KEYS = ("cache_control", "prompt_cache_breakpoint")
"""Keys that any part may carry and that say nothing about its content."""


def text_part(value: str) -> pb.ContentPart:
    """A text part."""
    return pb.ContentPart(text=pb.TextPart(text=value))


def text_content(body: Body, key: str, path: str) -> pb.ContentPart:
    """The text part of an object that must hold a string at a key; the string may be empty."""
    if body.get(key) is None:
        raise InvalidMessage(f"missing {key}; send a string", join(path, key))
    return text_part(text(body[key], join(path, key)))


def image_part(
    source: pb.MediaSource, media_type: str = "", options: pb.ImageOptions | None = None
) -> pb.ContentPart:
    """An image part; options that say nothing are left out."""
    image = pb.ImagePart(source=source, media_type=media_type)
    if options is not None and options != pb.ImageOptions():
        image.options.CopyFrom(options)
    return pb.ContentPart(image=image)


def image_from_string(value: object, path: str, options: pb.ImageOptions) -> pb.ContentPart:
    """An image part from a data URI or URL string."""
    source, media_type = _sources.from_string(value, path)
    return image_part(source, media_type, options)


def content_key_source(body: Body, path: str) -> pb.MediaSource:
    """The source of an object with a content key."""
    return pb.MediaSource(content_key=required_text(body, "content_key", path))


def size_options(body: Body, path: str, details: dict[str, Any] = _DIALECT_DETAILS) -> pb.ImageOptions:
    """The detail, min_pixels and max_pixels of an object; null and absent are unset."""
    options = pb.ImageOptions()
    if body.get("detail") is not None:
        detail = word(body["detail"], join(path, "detail"), details)
        if detail is not None:
            options.detail = detail
    for key in ("min_pixels", "max_pixels"):
        if body.get(key) is not None:
            setattr(options, key, integer(body[key], join(path, key), 1, MAX_PIXELS))
    return options


def audio_part(body: Body, path: str) -> pb.ContentPart:
    """An audio part from {"data": base64, "format", "sample_rate", "channels"}."""
    source = pb.MediaSource(data=_sources.decode_base64(body.get("data"), join(path, "data"), InvalidAudio))
    return audio_from_source(source, body, path)


def audio_from_source(source: pb.MediaSource, body: Body, path: str) -> pb.ContentPart:
    """An audio part whose format, sample rate and channels stand in an object."""
    form = "wav" if body.get("format") is None else body["format"]
    if form not in AUDIO_FORMATS:
        raise UnsupportedContent(
            f"audio format {shown(form)} is not supported; send {listed(AUDIO_FORMATS)}",
            join(path, "format"),
        )
    audio = pb.AudioPart(source=source, format=form)
    for key, most in (("sample_rate", 768_000), ("channels", 64)):
        if body.get(key) is not None:
            setattr(audio, key, integer(body[key], join(path, key), 1, most))
    return pb.ContentPart(audio=audio)


def refused(kind: object, path: str, supported: tuple[str, ...]) -> UnsupportedContent:
    """The error for a part or block whose type is not taken here."""
    return UnsupportedContent(
        f"content type {shown(kind)} is not supported here; send {listed(supported)}", path
    )
