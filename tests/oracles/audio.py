"""Clips that the oracle and the tests process, the same on every machine."""

import numpy as np

PROMPT = "a<|content_audio_input|><|unused_200053|><|audio_end|>"
CASES: tuple[tuple[int, ...], ...] = ((1,), (799,), (800,), (801,), (16000,), (801, 16000, 1, 12345))
"""The samples of each clip of a prompt."""


def clip_levels(length: int) -> np.ndarray:
    """A rising tone in noise, int16 [length] at 16 kHz."""
    time = np.arange(length)
    tone = (time * time // 4096 % 256 - 128) * 40
    noise = np.random.default_rng(length).integers(-2000, 2000, length)
    return (tone + noise).astype(np.int16)
