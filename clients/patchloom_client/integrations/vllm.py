"""A response as vLLM takes it: the token-in endpoint, the Rust front end's gRPC, and in process."""

import base64
from typing import Any

import numpy as np

from patchloom_client.integrations.fields import (
    MODALITIES,
    POSITIONS,
    Field,
    Kind,
    check_sent,
    embed_mask,
    fields,
    only_range,
    sent_items,
)
from patchloom_client.integrations.msgpack import Ext, pack
from patchloom_client.tensors import Response, Tensor

_RAW_VIEW = 3  # vllm/v1/serial_utils.py: an extension that holds a tensor's bytes


def generate_body(response: Response, sampling_params: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The JSON body of POST /inference/v1/generate; `more` are further keys of it."""
    body = {"token_ids": response.token_ids, "sampling_params": sampling_params}
    return {**body, **({"features": features(response)} if response.items else {}), **more}


def features(response: Response) -> dict[str, Any]:
    """The `features` of the body: hashes, placeholders and encoded tensors by modality.

    Items that the engine knows have None for their tensors. ValueError where an item has several ranges:
    this endpoint knows one, `media_features` all.
    """
    hashes: dict[str, list[str]] = {}
    placeholders: dict[str, list[dict[str, int]]] = {}
    kwargs: dict[str, list[str | None]] = {}
    for item in response.items:
        modality = MODALITIES[item.modality]
        offset, length = only_range(item)
        hashes.setdefault(modality, []).append(item.content_key)
        placeholders.setdefault(modality, []).append({"offset": offset, "length": length})
        encoded = None if item.known else base64.b64encode(item_kwargs(response, item.index)).decode("ascii")
        kwargs.setdefault(modality, []).append(encoded)
    return {"mm_hashes": hashes, "mm_placeholders": placeholders, "kwargs_data": kwargs}


def media_features(response: Response) -> list[dict[str, Any]]:
    """The fields of one PreprocessedMediaFeatures an item, by offset: keyword arguments of the message.

    ValueError where pixels were left out as known: the front end takes no references to its cache.
    """
    made = [
        {
            "kwargs": item_kwargs(response, item.index),
            "identifier": item.content_key,
            "mm_hash": item.content_key,
            "offset": item.span.offset,
            "length": item.span.length,
            "is_embed": embed_mask(item),
        }
        for item in sent_items(response)
    ]
    return sorted(made, key=lambda item: item["offset"])


def item_kwargs(response: Response, index: int) -> bytes:
    """The tensors of one item as vLLM's MsgpackEncoder writes a MultiModalKwargsItem.

    ValueError where its pixels were left out as known.
    """
    item = response.items[index]
    check_sent(item)
    known = fields(response)
    parts = response.item_tensors(index)
    shared = {
        name: response.tensors[name]
        for name, field in known.items()
        if field.kind is Kind.SHARED and field.modality == item.modality
    }
    return pack(
        {
            name: {"data": _tensor(_row(part, known[name])), "field": _field(part, known[name])}
            for name, part in {**parts, **shared}.items()
        }
    )


def hf_inputs(response: Response) -> dict[str, Any]:
    """All tensors as a BatchFeature's data, torch tensors without a copy, for `from_hf_inputs`.

    ValueError where pixels were left out as known.
    """
    sent_items(response)
    return {name: t.torch() for name, t in response.tensors.items() if name not in POSITIONS}


def field_config(response: Response) -> dict[str, tuple[Any, ...]]:
    """The arguments of MultiModalFieldConfig by tensor.

    ("batched", modality), ("flat_from_sizes", modality, sizes, dim) or ("shared", modality, items).
    ValueError where pixels were left out as known.
    """
    items = sent_items(response)
    config: dict[str, tuple[Any, ...]] = {}
    for name, field in fields(response).items():
        modality = MODALITIES[field.modality]
        if field.kind is Kind.BATCHED:
            config[name] = ("batched", modality)
        elif field.kind is Kind.FLAT:
            config[name] = ("flat_from_sizes", modality, field.sizes, field.axis)
        else:
            config[name] = ("shared", modality, sum(item.modality == field.modality for item in items))
    return config


def _row(part: Tensor, field: Field) -> Tensor:
    """A batched field's element has no item axis."""
    return Tensor(part.name, part.dtype, part.array[0]) if field.kind is Kind.BATCHED else part


def _tensor(tensor: Tensor) -> list[Any]:
    array = np.ascontiguousarray(tensor.array)
    return [tensor.dtype, list(tensor.shape), Ext(_RAW_VIEW, array.tobytes())]


def _field(part: Tensor, field: Field) -> list[Any]:
    if field.kind is Kind.BATCHED:
        return ["batched", {"keep_on_cpu": False}]
    if field.kind is Kind.SHARED:
        return ["shared", {"batch_size": 1, "keep_on_cpu": False}]
    whole: list[list[int | None]] = [[None, None, None]] * field.axis
    own: list[int | None] = [0, part.shape[field.axis], None]
    slices = [[*whole, own]] if field.axis else [own]
    return ["flat", {"slices": slices, "dim": field.axis, "keep_on_cpu": False}]
