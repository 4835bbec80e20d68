"""Prompts that are tokenized already: ids and the media items that their placeholders stand for."""

from collections.abc import Mapping
from typing import Any

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import InvalidMessage, UnsupportedContent
from patchloom_client.protocols._request import apply_own_options, model_name
from patchloom_client.protocols._values import integer, items, mapping, only_keys
from patchloom_client.protocols.normalized import content_part

_MAX_TOKEN_ID = 2**32 - 1


def to_request(body: Mapping[str, Any]) -> pb.PreprocessRequest:
    """The request of {"token_ids": [...], "media": [parts], "model": ..., "patchloom": {...}}.

    `media` are image and audio parts of the normalized form, in the order of their placeholders. Raises
    InvalidMessage, UnsupportedContent, InvalidImage or InvalidAudio with the path of the field.
    """
    body = mapping(body, "")
    only_keys(body, ("model", "token_ids", "media", "patchloom"), "")
    ids = [integer(id_, path, 0, _MAX_TOKEN_ID) for id_, path in items(body.get("token_ids"), "token_ids")]
    if not ids:
        raise InvalidMessage("a token prompt needs at least one id", "token_ids")
    media = [] if body.get("media") is None else items(body["media"], "media")
    prompt = pb.TokenPrompt(token_ids=ids, media=[_media(part, path) for part, path in media])
    request = pb.PreprocessRequest(model=model_name(body), tokens=prompt)
    apply_own_options(request, body)
    return request


def _media(value: object, path: str) -> pb.ContentPart:
    part = content_part(value, path)
    if part.WhichOneof("part") not in ("image", "audio"):
        raise UnsupportedContent("this part is no media; send image or audio parts", path)
    return part
