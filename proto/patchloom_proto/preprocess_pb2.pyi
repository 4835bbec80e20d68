import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.rpc import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class ImageDetail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_DETAIL_UNSPECIFIED: _ClassVar[ImageDetail]
    IMAGE_DETAIL_AUTO: _ClassVar[ImageDetail]
    IMAGE_DETAIL_LOW: _ClassVar[ImageDetail]
    IMAGE_DETAIL_HIGH: _ClassVar[ImageDetail]
    IMAGE_DETAIL_ORIGINAL: _ClassVar[ImageDetail]

class LiteralPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LITERAL_POLICY_UNSPECIFIED: _ClassVar[LiteralPolicy]
    LITERAL_POLICY_LITERAL: _ClassVar[LiteralPolicy]
    LITERAL_POLICY_PARSE: _ClassVar[LiteralPolicy]
    LITERAL_POLICY_REJECT: _ClassVar[LiteralPolicy]

class ToolResultPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_RESULT_POLICY_UNSPECIFIED: _ClassVar[ToolResultPolicy]
    TOOL_RESULT_POLICY_KEEP: _ClassVar[ToolResultPolicy]
    TOOL_RESULT_POLICY_HOIST: _ClassVar[ToolResultPolicy]
    TOOL_RESULT_POLICY_REJECT: _ClassVar[ToolResultPolicy]

class Parity(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARITY_UNSPECIFIED: _ClassVar[Parity]
    PARITY_ATEN_U8: _ClassVar[Parity]
    PARITY_PILLOW12: _ClassVar[Parity]
    PARITY_PILLOW13: _ClassVar[Parity]

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_BFLOAT16: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_UINT8: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_BOOL: _ClassVar[Dtype]

class Encoding(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCODING_UNSPECIFIED: _ClassVar[Encoding]
    ENCODING_MODEL: _ClassVar[Encoding]
    ENCODING_UINT8: _ClassVar[Encoding]

class Transport(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSPORT_UNSPECIFIED: _ClassVar[Transport]
    TRANSPORT_INLINE: _ClassVar[Transport]
    TRANSPORT_SHARED_MEMORY: _ClassVar[Transport]
    TRANSPORT_CUDA_IPC: _ClassVar[Transport]

class GridKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GRID_KIND_UNSPECIFIED: _ClassVar[GridKind]
    GRID_KIND_PATCHES: _ClassVar[GridKind]
    GRID_KIND_TILES: _ClassVar[GridKind]
    GRID_KIND_FRAMES: _ClassVar[GridKind]

class Modality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODALITY_UNSPECIFIED: _ClassVar[Modality]
    MODALITY_IMAGE: _ClassVar[Modality]
    MODALITY_AUDIO: _ClassVar[Modality]

class PixelPath(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIXEL_PATH_UNSPECIFIED: _ClassVar[PixelPath]
    PIXEL_PATH_KERNELS: _ClassVar[PixelPath]
    PIXEL_PATH_REFERENCE: _ClassVar[PixelPath]
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
IMAGE_DETAIL_UNSPECIFIED: ImageDetail
IMAGE_DETAIL_AUTO: ImageDetail
IMAGE_DETAIL_LOW: ImageDetail
IMAGE_DETAIL_HIGH: ImageDetail
IMAGE_DETAIL_ORIGINAL: ImageDetail
LITERAL_POLICY_UNSPECIFIED: LiteralPolicy
LITERAL_POLICY_LITERAL: LiteralPolicy
LITERAL_POLICY_PARSE: LiteralPolicy
LITERAL_POLICY_REJECT: LiteralPolicy
TOOL_RESULT_POLICY_UNSPECIFIED: ToolResultPolicy
TOOL_RESULT_POLICY_KEEP: ToolResultPolicy
TOOL_RESULT_POLICY_HOIST: ToolResultPolicy
TOOL_RESULT_POLICY_REJECT: ToolResultPolicy
PARITY_UNSPECIFIED: Parity
PARITY_ATEN_U8: Parity
PARITY_PILLOW12: Parity
PARITY_PILLOW13: Parity
DTYPE_UNSPECIFIED: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_BFLOAT16: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_UINT8: Dtype
DTYPE_INT64: Dtype
DTYPE_INT32: Dtype
DTYPE_BOOL: Dtype
ENCODING_UNSPECIFIED: Encoding
ENCODING_MODEL: Encoding
ENCODING_UINT8: Encoding
TRANSPORT_UNSPECIFIED: Transport
TRANSPORT_INLINE: Transport
TRANSPORT_SHARED_MEMORY: Transport
TRANSPORT_CUDA_IPC: Transport
GRID_KIND_UNSPECIFIED: GridKind
GRID_KIND_PATCHES: GridKind
GRID_KIND_TILES: GridKind
GRID_KIND_FRAMES: GridKind
MODALITY_UNSPECIFIED: Modality
MODALITY_IMAGE: Modality
MODALITY_AUDIO: Modality
PIXEL_PATH_UNSPECIFIED: PixelPath
PIXEL_PATH_KERNELS: PixelPath
PIXEL_PATH_REFERENCE: PixelPath

class Message(_message.Message):
    __slots__ = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name", "is_error")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    role: Role
    content: _containers.RepeatedCompositeFieldContainer[ContentPart]
    reasoning: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    name: str
    is_error: bool
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., content: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., is_error: bool = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("text", "image", "audio", "structured", "thinking")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    text: TextPart
    image: ImagePart
    audio: AudioPart
    structured: StructuredPart
    thinking: ThinkingPart
    def __init__(self, text: _Optional[_Union[TextPart, _Mapping]] = ..., image: _Optional[_Union[ImagePart, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., structured: _Optional[_Union[StructuredPart, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingPart, _Mapping]] = ...) -> None: ...

class TextPart(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ThinkingPart(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class StructuredPart(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: bytes
    def __init__(self, json: _Optional[bytes] = ...) -> None: ...

class MediaSource(_message.Message):
    __slots__ = ("data", "data_uri", "url", "content_key")
    DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_URI_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEY_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    data_uri: str
    url: str
    content_key: str
    def __init__(self, data: _Optional[bytes] = ..., data_uri: _Optional[str] = ..., url: _Optional[str] = ..., content_key: _Optional[str] = ...) -> None: ...

class ImageOptions(_message.Message):
    __slots__ = ("detail", "min_pixels", "max_pixels")
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    detail: ImageDetail
    min_pixels: int
    max_pixels: int
    def __init__(self, detail: _Optional[_Union[ImageDetail, str]] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ...) -> None: ...

class ImagePart(_message.Message):
    __slots__ = ("source", "options", "media_type")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    options: ImageOptions
    media_type: str
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., options: _Optional[_Union[ImageOptions, _Mapping]] = ..., media_type: _Optional[str] = ...) -> None: ...

class AudioPart(_message.Message):
    __slots__ = ("source", "format", "sample_rate", "channels")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    format: str
    sample_rate: int
    channels: int
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., format: _Optional[str] = ..., sample_rate: _Optional[int] = ..., channels: _Optional[int] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: bytes
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[bytes] = ...) -> None: ...

class Conversation(_message.Message):
    __slots__ = ("messages", "tools")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    tools: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., tools: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("token_ids", "media")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    media: _containers.RepeatedCompositeFieldContainer[ContentPart]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., media: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ...) -> None: ...

class RenderOptions(_message.Message):
    __slots__ = ("add_generation_prompt", "continue_final_message", "template_kwargs", "reasoning_effort", "now", "literals", "tool_results")
    ADD_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_KWARGS_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULTS_FIELD_NUMBER: _ClassVar[int]
    add_generation_prompt: bool
    continue_final_message: bool
    template_kwargs: bytes
    reasoning_effort: str
    now: _timestamp_pb2.Timestamp
    literals: LiteralPolicy
    tool_results: ToolResultPolicy
    def __init__(self, add_generation_prompt: bool = ..., continue_final_message: bool = ..., template_kwargs: _Optional[bytes] = ..., reasoning_effort: _Optional[str] = ..., now: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., literals: _Optional[_Union[LiteralPolicy, str]] = ..., tool_results: _Optional[_Union[ToolResultPolicy, str]] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("parity", "dtype", "encoding", "transport", "positions", "known_content_keys", "shards", "background", "show_messages", "lease_time")
    PARITY_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_CONTENT_KEYS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    SHOW_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LEASE_TIME_FIELD_NUMBER: _ClassVar[int]
    parity: Parity
    dtype: Dtype
    encoding: Encoding
    transport: Transport
    positions: bool
    known_content_keys: _containers.RepeatedScalarFieldContainer[str]
    shards: int
    background: int
    show_messages: bool
    lease_time: _duration_pb2.Duration
    def __init__(self, parity: _Optional[_Union[Parity, str]] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., encoding: _Optional[_Union[Encoding, str]] = ..., transport: _Optional[_Union[Transport, str]] = ..., positions: bool = ..., known_content_keys: _Optional[_Iterable[str]] = ..., shards: _Optional[int] = ..., background: _Optional[int] = ..., show_messages: bool = ..., lease_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class PreprocessRequest(_message.Message):
    __slots__ = ("model", "conversation", "tokens", "render", "image_options", "output", "expected_fingerprint", "warnings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    RENDER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_OPTIONS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    conversation: Conversation
    tokens: TokenPrompt
    render: RenderOptions
    image_options: ImageOptions
    output: OutputOptions
    expected_fingerprint: str
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    def __init__(self, model: _Optional[str] = ..., conversation: _Optional[_Union[Conversation, _Mapping]] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., render: _Optional[_Union[RenderOptions, _Mapping]] = ..., image_options: _Optional[_Union[ImageOptions, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., expected_fingerprint: _Optional[str] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ...) -> None: ...

class CountTokensRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: PreprocessRequest
    def __init__(self, request: _Optional[_Union[PreprocessRequest, _Mapping]] = ...) -> None: ...

class PlaceholderRange(_message.Message):
    __slots__ = ("offset", "length")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    offset: int
    length: int
    def __init__(self, offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class TensorSlice(_message.Message):
    __slots__ = ("tensor", "axis", "start", "count")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    AXIS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    axis: int
    start: int
    count: int
    def __init__(self, tensor: _Optional[str] = ..., axis: _Optional[int] = ..., start: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Size(_message.Message):
    __slots__ = ("height", "width")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ...) -> None: ...

class Grid(_message.Message):
    __slots__ = ("kind", "shape")
    KIND_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    kind: GridKind
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, kind: _Optional[_Union[GridKind, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class MediaItem(_message.Message):
    __slots__ = ("index", "modality", "path", "tool_call_id", "content_key", "size", "resized", "grid", "token_count", "ranges", "slices", "span", "known")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_KEY_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RESIZED_FIELD_NUMBER: _ClassVar[int]
    GRID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    SPAN_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    index: int
    modality: Modality
    path: str
    tool_call_id: str
    content_key: str
    size: Size
    resized: Size
    grid: Grid
    token_count: int
    ranges: _containers.RepeatedCompositeFieldContainer[PlaceholderRange]
    slices: _containers.RepeatedCompositeFieldContainer[TensorSlice]
    span: PlaceholderRange
    known: bool
    def __init__(self, index: _Optional[int] = ..., modality: _Optional[_Union[Modality, str]] = ..., path: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., content_key: _Optional[str] = ..., size: _Optional[_Union[Size, _Mapping]] = ..., resized: _Optional[_Union[Size, _Mapping]] = ..., grid: _Optional[_Union[Grid, _Mapping]] = ..., token_count: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[PlaceholderRange, _Mapping]]] = ..., slices: _Optional[_Iterable[_Union[TensorSlice, _Mapping]]] = ..., span: _Optional[_Union[PlaceholderRange, _Mapping]] = ..., known: bool = ...) -> None: ...

class TensorHandle(_message.Message):
    __slots__ = ("server_instance", "lease_id", "generation", "offset", "size", "expires", "shared_memory", "cuda_ipc")
    SERVER_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    server_instance: str
    lease_id: str
    generation: int
    offset: int
    size: int
    expires: _timestamp_pb2.Timestamp
    shared_memory: SharedMemory
    cuda_ipc: CudaIpc
    def __init__(self, server_instance: _Optional[str] = ..., lease_id: _Optional[str] = ..., generation: _Optional[int] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., shared_memory: _Optional[_Union[SharedMemory, _Mapping]] = ..., cuda_ipc: _Optional[_Union[CudaIpc, _Mapping]] = ...) -> None: ...

class SharedMemory(_message.Message):
    __slots__ = ("name", "namespace_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace_id: str
    def __init__(self, name: _Optional[str] = ..., namespace_id: _Optional[str] = ...) -> None: ...

class CudaIpc(_message.Message):
    __slots__ = ("device_uuid", "memory_handle", "event_handle")
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    MEMORY_HANDLE_FIELD_NUMBER: _ClassVar[int]
    EVENT_HANDLE_FIELD_NUMBER: _ClassVar[int]
    device_uuid: bytes
    memory_handle: bytes
    event_handle: bytes
    def __init__(self, device_uuid: _Optional[bytes] = ..., memory_handle: _Optional[bytes] = ..., event_handle: _Optional[bytes] = ...) -> None: ...

class TensorData(_message.Message):
    __slots__ = ("dtype", "shape", "inline", "handle", "chunked", "expansion")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    CHUNKED_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    inline: bytes
    handle: TensorHandle
    chunked: int
    expansion: Expansion
    def __init__(self, dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., inline: _Optional[bytes] = ..., handle: _Optional[_Union[TensorHandle, _Mapping]] = ..., chunked: _Optional[int] = ..., expansion: _Optional[_Union[Expansion, _Mapping]] = ...) -> None: ...

class Expansion(_message.Message):
    __slots__ = ("dtype", "shape", "columns", "patch_height", "patch_width", "merge", "temporal")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PATCH_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    PATCH_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MERGE_FIELD_NUMBER: _ClassVar[int]
    TEMPORAL_FIELD_NUMBER: _ClassVar[int]
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    columns: str
    patch_height: int
    patch_width: int
    merge: int
    temporal: int
    def __init__(self, dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., columns: _Optional[str] = ..., patch_height: _Optional[int] = ..., patch_width: _Optional[int] = ..., merge: _Optional[int] = ..., temporal: _Optional[int] = ...) -> None: ...

class TokenTypes(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: bytes
    def __init__(self, name: _Optional[str] = ..., values: _Optional[bytes] = ...) -> None: ...

class Warning(_message.Message):
    __slots__ = ("reason", "field_path", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FIELD_PATH_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    field_path: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., field_path: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("items", "patches")
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedScalarFieldContainer[int]
    patches: int
    def __init__(self, items: _Optional[_Iterable[int]] = ..., patches: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("decodes", "renders", "cache_hits", "cache_misses", "segment_hits", "segment_misses")
    DECODES_FIELD_NUMBER: _ClassVar[int]
    RENDERS_FIELD_NUMBER: _ClassVar[int]
    CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_HITS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MISSES_FIELD_NUMBER: _ClassVar[int]
    decodes: int
    renders: int
    cache_hits: int
    cache_misses: int
    segment_hits: int
    segment_misses: int
    def __init__(self, decodes: _Optional[int] = ..., renders: _Optional[int] = ..., cache_hits: _Optional[int] = ..., cache_misses: _Optional[int] = ..., segment_hits: _Optional[int] = ..., segment_misses: _Optional[int] = ...) -> None: ...

class PreprocessResponse(_message.Message):
    __slots__ = ("model", "token_ids", "token_types", "items", "tensors", "warnings", "fingerprint", "timings_ms", "counters", "shards", "messages")
    class TensorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TensorData
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TensorData, _Mapping]] = ...) -> None: ...
    class TimingsMsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_MS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    token_types: TokenTypes
    items: _containers.RepeatedCompositeFieldContainer[MediaItem]
    tensors: _containers.MessageMap[str, TensorData]
    warnings: _containers.RepeatedCompositeFieldContainer[Warning]
    fingerprint: str
    timings_ms: _containers.ScalarMap[str, float]
    counters: Counters
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_types: _Optional[_Union[TokenTypes, _Mapping]] = ..., items: _Optional[_Iterable[_Union[MediaItem, _Mapping]]] = ..., tensors: _Optional[_Mapping[str, TensorData]] = ..., warnings: _Optional[_Iterable[_Union[Warning, _Mapping]]] = ..., fingerprint: _Optional[str] = ..., timings_ms: _Optional[_Mapping[str, float]] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("response",)
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    response: PreprocessResponse
    def __init__(self, response: _Optional[_Union[PreprocessResponse, _Mapping]] = ...) -> None: ...

class PreprocessStreamRequest(_message.Message):
    __slots__ = ("request_id", "start", "cancel", "timeout")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    start: PreprocessRequest
    cancel: Cancel
    timeout: _duration_pb2.Duration
    def __init__(self, request_id: _Optional[str] = ..., start: _Optional[_Union[PreprocessRequest, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TensorChunk(_message.Message):
    __slots__ = ("tensor", "offset", "data")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    tensor: str
    offset: int
    data: bytes
    def __init__(self, tensor: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PreprocessStreamResponse(_message.Message):
    __slots__ = ("request_id", "tokens_ready", "tensors_ready", "chunk", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READY_FIELD_NUMBER: _ClassVar[int]
    TENSORS_READY_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tokens_ready: PreprocessResponse
    tensors_ready: PreprocessResponse
    chunk: TensorChunk
    error: _status_pb2.Status
    def __init__(self, request_id: _Optional[str] = ..., tokens_ready: _Optional[_Union[PreprocessResponse, _Mapping]] = ..., tensors_ready: _Optional[_Union[PreprocessResponse, _Mapping]] = ..., chunk: _Optional[_Union[TensorChunk, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "family", "architectures", "pixel_path", "fingerprint", "template_sha256", "info")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURES_FIELD_NUMBER: _ClassVar[int]
    PIXEL_PATH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_SHA256_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    name: str
    family: str
    architectures: _containers.RepeatedScalarFieldContainer[str]
    pixel_path: PixelPath
    fingerprint: str
    template_sha256: str
    info: bytes
    def __init__(self, name: _Optional[str] = ..., family: _Optional[str] = ..., architectures: _Optional[_Iterable[str]] = ..., pixel_path: _Optional[_Union[PixelPath, str]] = ..., fingerprint: _Optional[str] = ..., template_sha256: _Optional[str] = ..., info: _Optional[bytes] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: Model
    def __init__(self, model: _Optional[_Union[Model, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("server_instance", "lease_id", "generation")
    SERVER_INSTANCE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    server_instance: str
    lease_id: str
    generation: int
    def __init__(self, server_instance: _Optional[str] = ..., lease_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...

class ReleaseTensorsRequest(_message.Message):
    __slots__ = ("leases", "calls")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    calls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., calls: _Optional[_Iterable[str]] = ...) -> None: ...

class ReleaseTensorsResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: int
    def __init__(self, released: _Optional[int] = ...) -> None: ...

class RenewLeasesRequest(_message.Message):
    __slots__ = ("leases", "lease_time")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LEASE_TIME_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    lease_time: _duration_pb2.Duration
    def __init__(self, leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., lease_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RenewLeasesResponse(_message.Message):
    __slots__ = ("expires",)
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    expires: _timestamp_pb2.Timestamp
    def __init__(self, expires: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
