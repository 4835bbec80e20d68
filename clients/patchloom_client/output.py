"""What the command line prints and writes: one JSON object, and a safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.errors import PatchloomError
from patchloom_client.protocols import messages_to_json
from patchloom_client.tensors import Response, Tensor

_GRIDS = {pb.GRID_KIND_PATCHES: "patches", pb.GRID_KIND_TILES: "tiles", pb.GRID_KIND_FRAMES: "frames"}
_MODALITIES = {pb.MODALITY_IMAGE: "image", pb.MODALITY_AUDIO: "audio"}
_SAFETENSORS = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "uint8": "U8",
    "int64": "I64",
    "int32": "I32",
    "bool": "BOOL",
}


def response_json(response: Response) -> dict[str, Any]:
    """The JSON object of a response; its keys are relied on and stay."""
    message = response.message
    types = response.token_types
    value: dict[str, Any] = {
        "model": message.model,
        "token_ids": list(message.token_ids),
        "token_types": {} if types is None else {message.token_types.name: types.tolist()},
        "items": [_item(item) for item in message.items],
        "tensors": {name: _tensor(tensor) for name, tensor in response.tensors.items()},
        "warnings": [
            {"reason": w.reason, "field_path": w.field_path, "message": w.message} for w in message.warnings
        ],
        "fingerprint": message.fingerprint,
        "timings_ms": {name: round(ms, 3) for name, ms in sorted(message.timings_ms.items())},
        "counters": {
            field.name: getattr(message.counters, field.name) for field in pb.Counters.DESCRIPTOR.fields
        },
    }
    if message.shards:
        value["shards"] = [{"items": list(s.items), "patches": s.patches} for s in message.shards]
    if message.messages:
        value["messages"] = messages_to_json(message.messages)
    return value


def _item(item: pb.MediaItem) -> dict[str, Any]:
    image = item.HasField("size")
    return {
        "index": item.index,
        "modality": _MODALITIES[item.modality],
        "path": item.path,
        "tool_call_id": item.tool_call_id,
        "content_key": item.content_key,
        "size": [item.size.height, item.size.width] if image else None,
        "resized": [item.resized.height, item.resized.width] if image else None,
        "grid": {"kind": _GRIDS[item.grid.kind], "shape": list(item.grid.shape)},
        "token_count": item.token_count,
        "ranges": [{"offset": r.offset, "length": r.length} for r in item.ranges],
        "slices": [
            {"tensor": s.tensor, "axis": s.axis, "start": s.start, "count": s.count} for s in item.slices
        ],
        "span": {"offset": item.span.offset, "length": item.span.length},
        "known": item.known,
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    value: dict[str, Any] = {"dtype": tensor.dtype, "shape": list(tensor.shape)}
    if (expansion := tensor.expansion) is not None:
        value["expansion"] = {
            "dtype": expansion.dtype,
            "shape": list(expansion.shape),
            "columns": expansion.columns,
            "patch": list(expansion.patch),
            "merge": expansion.merge,
            "temporal": expansion.temporal,
        }
    return value


def error_json(error: PatchloomError) -> dict[str, Any]:
    """The JSON object of an error."""
    return {
        "error": {
            "reason": error.reason,
            "field_path": error.field_path,
            "message": error.message,
            "status": error.status,
        }
    }


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors under their names, in the safetensors format: 8 bytes of length, a JSON header, the data.

    Written here because the library's numpy writer has no bfloat16; the format is that of
    https://github.com/huggingface/safetensors. OSError where the file cannot be written.
    """
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.array.nbytes
        header[name] = {
            "dtype": _SAFETENSORS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            file.write(tensor.array.reshape(-1).view(np.uint8).data)
