"""A response as SGLang takes it: `processor_output` beside input_ids, and its pipeline's item objects."""

import hashlib
from typing import Any

from patchloom_client.integrations.fields import (
    MODALITIES,
    POSITIONS,
    hash_u64,
    inclusive,
    only_modality,
    pad_value,
    primary,
    sent_items,
)
from patchloom_client.shm import DIRECTORY
from patchloom_client.tensors import Response


def generate_arguments(response: Response) -> dict[str, Any]:
    """Keyword arguments of Engine.generate: input_ids, and image_data with one dict for all images.

    ValueError where pixels were left out as known, or modalities are mixed.
    """
    arguments: dict[str, Any] = {"input_ids": response.token_ids}
    if response.items:
        arguments["image_data"] = [processor_output(response)]
    return arguments


def processor_output(response: Response) -> dict[str, Any]:
    """The one dict of format processor_output: torch tensors without a copy, offsets inclusive.

    SGLang takes exactly one of each modality, so the hash is over the content keys of all items. ValueError
    where pixels were left out as known, or the items are not of one modality.
    """
    items = sent_items(response)
    keys = hashlib.sha256("".join(item.content_key for item in items).encode("ascii")).hexdigest()
    return {
        "format": "processor_output",
        "modality": MODALITIES[only_modality(items)].upper(),
        **{name: t.torch() for name, t in response.tensors.items() if name not in POSITIONS},
        "offsets": [inclusive(part.offset, part.length) for item in items for part in item.ranges],
        "hash": hash_u64(keys),
        "pad_value": pad_value(keys),
    }


def mm_items(response: Response) -> list[dict[str, Any]]:
    """The fields of one MultimodalDataItem an item: `feature` without a copy, its other tensors apart.

    ValueError where pixels were left out as known.
    """
    made = []
    for item in sent_items(response):
        main = primary(response, item)
        parts = response.item_tensors(item.index)
        made.append(
            {
                "modality": MODALITIES[item.modality].upper(),
                "feature": parts[main].torch(),
                "hash": hash_u64(item.content_key),
                "pad_value": pad_value(item.content_key),
                "offsets": [inclusive(part.offset, part.length) for part in item.ranges],
                "model_specific_data": {n: t.torch() for n, t in parts.items() if n != main},
            }
        )
    return made


def shm_pointers(response: Response) -> list[dict[str, Any]]:
    """The fields of one ShmPointerMMData an item, for tensors that came by shared memory.

    `shm_name` is the file and `offset` the bytes to skip in it; the lease must be held until all ranks
    have read. ValueError where the pixels are in the message, or were left out as known.
    """
    pointers = []
    for item in sent_items(response):
        main = primary(response, item)
        data = response.message.tensors[main]
        if data.WhichOneof("payload") != "handle" or not data.handle.HasField("shared_memory"):
            raise ValueError(f"{main} is not in shared memory; ask for the transport shared_memory")
        start = response.tensors[main].array.__array_interface__["data"][0]
        part = response.item_tensors(item.index)[main]
        pointers.append(
            {
                "shm_name": data.handle.shared_memory.name,
                "path": str(DIRECTORY / data.handle.shared_memory.name),
                "offset": data.handle.offset + part.array.__array_interface__["data"][0] - start,
                "shape": part.shape,
                "dtype": part.dtype,
                "precomputed_hash": hash_u64(item.content_key),
            }
        )
    return pointers


def mrope(response: Response) -> dict[str, Any]:
    """mrope_positions [3, tokens] and mrope_position_delta [[d]] int64; ask for `positions`."""
    return {
        "mrope_positions": response.tensors["position_ids"].torch(),
        "mrope_position_delta": response.tensors["rope_deltas"].torch(),
    }


def handover(response: Response) -> dict[str, Any]:
    """What mm.meta of the Rust pipeline holds: items without features, ids and the M-RoPE delta.

    ValueError where pixels were left out as known.
    """
    items = [
        {name: value for name, value in item.items() if name not in ("feature", "pad_value")}
        for item in mm_items(response)
    ]
    for item in items:
        data = item["model_specific_data"]
        item["model_specific_data"] = {name: tensor.tolist() for name, tensor in data.items()}
    meta: dict[str, Any] = {"items": items, "token_ids": response.token_ids}
    if "rope_deltas" in response.tensors:
        meta["mrope_delta"] = response.tensors["rope_deltas"].array.tolist()
    return meta
