"""A response in the words of smg-grpc-proto: fields of the messages that vLLM, SGLang and TokenSpeed take.

Each function gives keyword arguments of a protobuf message (`MultimodalInputs(**fields)`), so nothing of an
engine is imported here. A tensor in shared memory goes by its place, without a copy; its lease must be
held until the engine has read it, which is when its first answer comes.
"""

from typing import Any

import numpy as np

from patchloom_client.integrations.fields import (
    MODALITIES,
    POSITIONS,
    Kind,
    fields,
    only_modality,
    only_range,
    primary,
    sent_items,
)
from patchloom_client.tensors import Response, Tensor

SIZES = "patches_per_image"
"""Name of the added tensor that says how many indices of a flat tensor each item has."""


def vllm_inputs(response: Response, placeholder_id: int | None = None) -> dict[str, Any]:
    """vllm_engine.MultimodalInputs. Shared memory by ShmHandle where the response came by it.

    Empty without media. ValueError where pixels were left out as known, or modalities are mixed.
    """
    items = sent_items(response)
    if not items:
        return {}
    modality = only_modality(items)
    main = primary(response, items[0])
    known = fields(response)
    others = [name for name in known if name != main]
    tensors = {name: _inline(response.tensors[name]) for name in others}
    flat = {name: field for name, field in known.items() if field.kind is Kind.FLAT}
    sizes = {name: SIZES if name == main else f"{name}_sizes" for name in flat}
    for name, field in flat.items():
        tensors[sizes[name]] = _inline(Tensor(sizes[name], "int64", np.array(field.sizes, np.int64)))
    batched = [name for name, field in known.items() if field.kind is Kind.BATCHED]
    made: dict[str, Any] = {
        "pixel_values": _placed(response, main),
        "model_specific_tensors": tensors,
        "mm_placeholders": [_range(*only_range(item)) for item in items],
        "mm_hashes": [item.content_key for item in items],
        "batched_keys": sorted([*batched, *sizes.values()]),
        "flat_keys": sizes,
        "modality": modality,
    }
    if main != "pixel_values":
        made["encoder_input_key"] = main
    if placeholder_id is not None:
        made["im_token_id"] = placeholder_id
    return made


def sglang_inputs(response: Response, placeholder_id: int | None = None) -> dict[str, Any]:
    """sglang_scheduler.MultimodalInputs: all items in one, tensors in the message, no hashes.

    Empty without media. ValueError where pixels were left out as known, or modalities are mixed.
    """
    items = sent_items(response)
    if not items:
        return {}
    modality = only_modality(items)
    main = primary(response, items[0])
    made: dict[str, Any] = {
        "pixel_values": _data(response.tensors[main]),
        "modalities": [MODALITIES[modality]] * len(items),
        "model_specific_tensors": {
            name: _data(tensor)
            for name, tensor in response.tensors.items()
            if name != main and name not in POSITIONS
        },
        "mm_placeholders": [_range(part.offset, part.length) for item in items for part in item.ranges],
    }
    if placeholder_id is not None:
        made["im_token_id"] = placeholder_id
    return made


def tokenspeed_inputs(response: Response, placeholder_id: int | None = None) -> dict[str, Any]:
    """tokenspeed_scheduler.MultimodalInputs: one item for each, with its own tensors and hash.

    ValueError where pixels were left out as known.
    """
    made = []
    for item in sent_items(response):
        main = primary(response, item)
        parts = response.item_tensors(item.index)
        fields_of = {
            "modality": item.modality,
            "content_hash": bytes.fromhex(item.content_key),
            "encoder_input": _inline(parts[main]),
            "model_specific_tensors": {n: _inline(t) for n, t in parts.items() if n != main},
            "placeholders": [_range(part.offset, part.length) for part in item.ranges],
        }
        made.append(fields_of | ({} if placeholder_id is None else {"placeholder_token_id": placeholder_id}))
    return {"items": made}


def _placed(response: Response, name: str) -> dict[str, Any]:
    data = response.message.tensors[name]
    tensor = response.tensors[name]
    if data.WhichOneof("payload") != "handle" or not data.handle.HasField("shared_memory"):
        return _inline(tensor)
    handle = data.handle
    place = {
        "name": handle.shared_memory.name,
        "offset": handle.offset,
        "nbytes": handle.size,
        "owner_id": handle.server_instance,
    }
    return {"shape": list(tensor.shape), "dtype": tensor.dtype, "shm": place}


def _inline(tensor: Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": tensor.dtype,
        "inline": np.ascontiguousarray(tensor.array).tobytes(),
    }


def _data(tensor: Tensor) -> dict[str, Any]:
    """SGLang's TensorData, whose bytes are called data."""
    made = _inline(tensor)
    made["data"] = made.pop("inline")
    return made


def _range(offset: int, length: int) -> dict[str, int]:
    return {"offset": offset, "length": length}
