"""Bytes moved by each PNG launch, from the inflated images alone, against the least possible."""

from collections.abc import Sequence

from patchloom_kernels.png.plan import FilteredPng


def launch_bytes(batch: Sequence[FilteredPng], channels: int = 3) -> dict[str, int]:
    """Bytes between memory and the launches of `decode_into`: filters undone, pixels emitted."""
    filtered = sum(image.rows.size for image in batch)
    rows = sum(image.png.height * image.png.row_bytes for image in batch)
    pixels = sum(image.png.height * image.png.width for image in batch)
    return {"unfilter": filtered + rows, "emit": rows + channels * pixels}


def floor_bytes(batch: Sequence[FilteredPng], channels: int = 3) -> int:
    """Filtered rows read once and pixels written once."""
    pixels = sum(image.png.height * image.png.width for image in batch)
    return sum(image.rows.size for image in batch) + channels * pixels
