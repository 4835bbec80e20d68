"""The vocabulary of the service: frozen values that the parts of the pipeline hand to each other.

It knows nothing of protobuf, Pillow, templates or models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Role(StrEnum):
    """Who speaks. A developer message is a system message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Modality(StrEnum):
    """What a media item is."""

    IMAGE = "image"
    AUDIO = "audio"


class SourceKind(StrEnum):
    """Where the bytes of a media item come from."""

    DATA = "data"
    DATA_URI = "data_uri"
    URL = "url"
    CONTENT_KEY = "content_key"


@dataclass(frozen=True, slots=True)
class MediaSource:
    """The encoded file itself (DATA), or the words that lead to it."""

    kind: SourceKind
    data: bytes = b""
    text: str = ""


class Detail(StrEnum):
    """How detailed an image is to be seen."""

    AUTO = "auto"
    LOW = "low"
    HIGH = "high"
    ORIGINAL = "original"


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Size options of an image; None means the checkpoint's own."""

    detail: Detail | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text, always: nothing in it is control or media."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image; `media_type` is what its sender says, and the bytes decide."""

    source: MediaSource
    options: ImageOptions | None = None
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class AudioPart:
    """A clip, "wav" or "pcm16"; the rate (samples per second) and the channels are those of pcm16."""

    source: MediaSource
    format: str = "wav"
    sample_rate: int = 16000
    channels: int = 1


@dataclass(frozen=True, slots=True)
class StructuredPart:
    """A list or object for a template that iterates over it, parsed once; never mutated."""

    value: Json


@dataclass(frozen=True, slots=True)
class ThinkingPart:
    """Thinking in its place among the parts of an assistant message."""

    text: str


Part: TypeAlias = TextPart | ImagePart | AudioPart | StructuredPart | ThinkingPart
MediaPart: TypeAlias = ImagePart | AudioPart


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is a parsed JSON object in its own key order, never mutated."""

    id: str
    name: str
    arguments: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Message:
    """One message. After normalization every field that a role must have is there."""

    role: Role
    content: tuple[Part, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False


class LiteralPolicy(StrEnum):
    """What control tokens written in text mean."""

    LITERAL = "literal"
    PARSE = "parse"
    REJECT = "reject"


class ToolResultPolicy(StrEnum):
    """Where user content around tool results stands."""

    KEEP = "keep"
    HOIST = "hoist"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """How the prompt is rendered. `now` is in seconds since the epoch; None is the time of the request."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: Mapping[str, Json] = field(default_factory=dict)
    reasoning_effort: str | None = None
    now: float | None = None
    literals: LiteralPolicy = LiteralPolicy.LITERAL
    tool_results: ToolResultPolicy = ToolResultPolicy.KEEP


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, tool declarations and how to render them."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Json], ...] = ()
    options: RenderOptions = field(default_factory=RenderOptions)


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One media part of the normalized conversation: `index` counts in the order of its messages."""

    index: int
    modality: Modality
    part: MediaPart
    path: str  # messages[3].content[1]
    message: int
    position: int  # within the message's content
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Warning:
    """Something the receiver may want to know; nothing in it is an error."""

    reason: str
    field_path: str
    message: str


@dataclass(frozen=True, slots=True)
class TextSegment:
    """A stretch of the prompt between control tokens and slots: ordinary text, whatever it spells."""

    text: str


@dataclass(frozen=True, slots=True)
class ControlToken:
    """A control token that the template (or a built-in renderer) put there."""

    id: int


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of media item `item` in the prompt."""

    item: int


Segment: TypeAlias = TextSegment | ControlToken | Slot


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered conversation: segments in prompt order, one Slot for each media item."""

    segments: tuple[Segment, ...]
    renders: int = 1
    warnings: tuple[Warning, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that is tokenized already, and its media items in the order of their placeholders."""

    ids: tuple[int, ...]
    media: tuple[MediaPart, ...] = ()


class Encoding(StrEnum):
    """How pixel tensors are encoded: values as the model takes them, or levels beside their table."""

    MODEL = "model"
    UINT8 = "uint8"


class Transport(StrEnum):
    """How tensors travel."""

    INLINE = "inline"
    SHARED_MEMORY = "shared_memory"
    CUDA_IPC = "cuda_ipc"


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How pixels are computed and delivered; None means the server's default."""

    parity: str | None = None
    dtype: str | None = None
    encoding: Encoding = Encoding.MODEL
    transport: Transport = Transport.INLINE
    positions: bool = False
    known_content_keys: frozenset[str] = frozenset()
    shards: int = 0
    background: tuple[int, int, int] | None = None
    show_messages: bool = False
    lease_time: float | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request: a conversation or a token prompt, and what to make of it.

    `namespace` is the authenticated identity; caches of different namespaces never meet.
    """

    model: str
    prompt: Conversation | TokenPrompt
    image_options: ImageOptions = field(default_factory=ImageOptions)
    output: OutputOptions = field(default_factory=OutputOptions)
    expected_fingerprint: str = ""
    warnings: tuple[Warning, ...] = ()
    namespace: str = ""
