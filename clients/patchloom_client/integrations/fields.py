"""How the tensors of a response belong to its items, in the words that engines share."""

from dataclasses import dataclass
from enum import StrEnum

from patchloom_proto import preprocess_pb2 as pb

from patchloom_client.tensors import Response

POSITIONS = frozenset({"position_ids", "rope_deltas"})
"""Tensors of the prompt and not of the processor."""


class Kind(StrEnum):
    """One row per item, some indices per item, or the same for all."""

    BATCHED = "batched"
    FLAT = "flat"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Field:
    """Which part of a tensor is whose: `sizes` indices along `axis` per item that was sent, in order."""

    kind: Kind
    axis: int = 0
    sizes: tuple[int, ...] = ()


def sent_items(response: Response) -> tuple[pb.MediaItem, ...]:
    """The items whose pixels are in the response."""
    return tuple(item for item in response.items if not item.known)


def fields(response: Response) -> dict[str, Field]:
    """The field of every tensor but the positions, by its name."""
    slices: dict[str, list[pb.TensorSlice]] = {}
    for item in sent_items(response):
        for part in item.slices:
            slices.setdefault(part.tensor, []).append(part)
    names = [name for name in response.tensors if name not in POSITIONS]
    return {name: _field(slices.get(name, [])) for name in names}


def _field(parts: list[pb.TensorSlice]) -> Field:
    if not parts:
        return Field(Kind.SHARED)
    sizes = tuple(part.count for part in parts)
    kind = Kind.BATCHED if parts[0].axis == 0 and set(sizes) == {1} else Kind.FLAT
    return Field(kind, parts[0].axis, sizes)


def primary(response: Response) -> str:
    """The name of the pixels: pixel_values, else the largest tensor. ValueError where none was sent."""
    names = [name for name in response.tensors if name not in POSITIONS]
    if not names:
        raise ValueError("the response has no tensors; its items are known to the receiver")
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
