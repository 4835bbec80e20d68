"""Multimodal rotary positions (M-RoPE) of the Qwen-VL line, from spans and grids."""

from collections.abc import Sequence

import numpy as np

from patchloom_service.models.base import IdArray, ItemSpan


def mrope_positions(merge: int, ids: IdArray, spans: Sequence[ItemSpan]) -> tuple[IdArray, IdArray]:
    """Positions int64 [3, tokens] (temporal, height, width) and delta int64 [1, 1].

    Equals get_rope_index of transformers' Qwen-VL and GLM-4V models for images: text counts on in
    all three; the tokens of an image share the temporal position where it starts, add their row and
    column, and the text behind goes on after its longer side. Items stand in prompt order.
    """
    positions = np.empty((3, len(ids)), np.int64)
    done, current = 0, 0
    for span in spans:
        start, length = span.ranges[0]
        _, down, across = span.plan.grid.shape
        rows, columns = down // merge, across // merge
        text = start - done
        positions[:, done:start] = np.arange(current, current + text)
        current += text
        run = positions[:, start : start + length]
        run[0] = current
        run[1] = current + np.repeat(np.arange(rows), columns)
        run[2] = current + np.tile(np.arange(columns), rows)
        done, current = start + length, current + max(rows, columns)
    positions[:, done:] = np.arange(current, current + len(ids) - done)
    delta = int(positions.max()) + 1 - len(ids) if len(ids) else 0
    return positions, np.array([[delta]], np.int64)
