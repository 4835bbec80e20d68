"""Converters from the dialects that clients speak to the service's normalized request."""

from collections.abc import Callable, Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.protocols import (
    anthropic_messages,
    normalized,
    openai_chat,
    openai_responses,
    tokens,
)
from patchloom_client.protocols.normalized import messages_to_json
from patchloom_client.protocols.options import OPTIONS, apply_options

Converter = Callable[[Mapping[str, Any]], pb.PreprocessRequest]

PROTOCOLS: dict[str, Converter] = {
    "chat": openai_chat.to_request,
    "responses": openai_responses.to_request,
    "messages": anthropic_messages.to_request,
    "normalized": normalized.to_request,
    "tokens": tokens.to_request,
}
"""The converter of each protocol name."""

__all__ = ["OPTIONS", "PROTOCOLS", "Converter", "apply_options", "messages_to_json"]
