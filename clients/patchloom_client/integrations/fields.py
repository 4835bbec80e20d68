"""How the tensors of a response belong to its items, in the words that engines share."""

from dataclasses import dataclass
from enum import StrEnum

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.tensors import Response

POSITIONS = frozenset({"position_ids", "rope_deltas"})
"""Tensors of the prompt and not of the processor."""

MODALITIES = {pb.MODALITY_IMAGE: "image", pb.MODALITY_AUDIO: "audio"}
"""What engines call a modality."""

# Families that have one of these give every image one row of it and one of pixel_values (vLLM's models
# llava_next.py, step3_vl.py). The others lay the patches or tiles of all images one after the other, be there
# one of each or more (interns1.py, qwen2_vl.py).
_BESIDE_ROWS_OF_PIXELS = frozenset({"image_sizes", "image_position_ids", "num_local_patches"})
_ROWS = _BESIDE_ROWS_OF_PIXELS | {"image_grid_thw", "audio_input_ids", "audio_input_ids_mask"}


class Kind(StrEnum):
    """One row per item, some indices per item, or the same for all."""

    BATCHED = "batched"
    FLAT = "flat"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Field:
    """Which part of a tensor is whose: `sizes` indices along `axis` per item that was sent, in order.

    The items are those of one modality.
    """

    kind: Kind
    modality: pb.Modality
    axis: int = 0
    sizes: tuple[int, ...] = ()


def sent_items(response: Response) -> tuple[pb.MediaItem, ...]:
    """All items, for formats that cannot refer to what the receiver holds.

    ValueError names an item without tensors.
    """
    for item in response.items:
        check_sent(item)
    return response.items


def check_sent(item: pb.MediaItem) -> None:
    """ValueError where the pixels of an item are not in its response."""
    if item.known:
        raise ValueError(
            f"{item.path}: its pixels were left out as known and this format cannot refer to them; ask again "
            f"without the known content key {item.content_key}"
        )
    if not item.slices:
        raise ValueError(f"{item.path}: the response has no tensors for it; ask Preprocess, not CountTokens")


def fields(response: Response) -> dict[str, Field]:
    """The field of every tensor but the positions, by its name."""
    slices: dict[str, list[pb.TensorSlice]] = {}
    modalities: dict[str, pb.Modality] = {}
    for item in response.items:
        for part in item.slices:
            slices.setdefault(part.tensor, []).append(part)
            modalities[part.tensor] = item.modality
    rows = _ROWS | {"pixel_values"} if _BESIDE_ROWS_OF_PIXELS & slices.keys() else _ROWS
    found: dict[str, Field] = {}
    for name in response.tensors:
        if name in slices:
            found[name] = _field(slices[name], modalities[name], name in rows)
        elif name not in POSITIONS:  # pixel_values.table goes with pixel_values
            owner = modalities.get(name.partition(".")[0])
            found[name] = Field(Kind.SHARED, owner or only_modality(response.items))
    return found


def _field(parts: list[pb.TensorSlice], modality: pb.Modality, row_an_item: bool) -> Field:
    axis, sizes = parts[0].axis, tuple(part.count for part in parts)
    batched = row_an_item and axis == 0 and set(sizes) == {1}
    return Field(Kind.BATCHED if batched else Kind.FLAT, modality, axis, sizes)


def only_modality(items: tuple[pb.MediaItem, ...]) -> pb.Modality:
    """The modality of all items, for formats that know one. ValueError where there are more or no items."""
    found = sorted({item.modality for item in items})
    if not found:
        raise ValueError("the response has no media items; this format needs at least one")
    if len(found) > 1:
        names = " and ".join(MODALITIES[modality] for modality in found)
        raise ValueError(
            f"this format holds items of one modality, not {names}; vllm.features, sglang.mm_items and "
            "engine_proto.tokenspeed_inputs say it for each item"
        )
    return found[0]


def primary(response: Response, item: pb.MediaItem) -> str:
    """The name of an item's pixels or features: pixel_values, else the largest of its tensors.

    ValueError where the response has none of them.
    """
    names = [part.tensor for part in item.slices if part.tensor in response.tensors]
    if not names:
        raise ValueError(f"{item.path}: the response has no tensors for it, or is closed")
    if "pixel_values" in names:
        return "pixel_values"
    return max(names, key=lambda name: response.tensors[name].array.nbytes)


def hash_u64(content_key: str) -> int:
    """The first eight bytes of a hash in hex as a big-endian number."""
    return int(content_key[:16], 16)


def pad_value(content_key: str) -> int:
    """SGLang's placeholder id of an item: 1,000,000 and the low 30 bits of its hash.

    30 bits collide; a prefix cache is to be salted with the whole content key besides.
    """
    return 1_000_000 + (hash_u64(content_key) & ((1 << 30) - 1))


def inclusive(offset: int, length: int) -> tuple[int, int]:
    """(first, last) of a range."""
    return offset, offset + length - 1


def from_inclusive(first: int, last: int) -> tuple[int, int]:
    """(offset, length) of SGLang's (first, last)."""
    return first, last - first + 1


def only_range(item: pb.MediaItem) -> tuple[int, int]:
    """The single placeholder range of an item, for formats that know one. ValueError names the others."""
    if len(item.ranges) != 1:
        raise ValueError(
            f"item {item.index} has {len(item.ranges)} placeholder ranges; this format takes one an item, "
            "use one with is_embed"
        )
    return item.ranges[0].offset, item.ranges[0].length


def embed_mask(item: pb.MediaItem) -> list[bool]:
    """For each token of the item's span, whether an embedding replaces it."""
    mask = [False] * item.span.length
    for part in item.ranges:
        for index in range(part.offset, part.offset + part.length):
            mask[index - item.span.offset] = True
    return mask
