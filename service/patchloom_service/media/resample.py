"""Changes the sample rate of a clip as torchaudio.functional.resample does by default.

Band-limited interpolation by a sinc under a Hann window (https://ccrma.stanford.edu/~jos/resample/), in
float32: six zero crossings to each side, the cutoff at 0.99 of the lower Nyquist frequency.
"""

import math
from functools import lru_cache

import numpy as np
import torch

from patchloom_service.errors import InvalidAudio

METHOD = "sinc, Hann, 6 zero crossings, rolloff 0.99, float32"
"""Names the method for fingerprints."""

_CROSSINGS, _ROLLOFF = 6, 0.99
_MAX_TAPS = 1 << 22  # 16 MiB of filters; 44.1 kHz to 16 kHz takes 76,000


def check_rate(rate: int, target: int) -> None:
    """InvalidAudio where the filters from `rate` to `target` Hz would be too large."""
    old, new = _ratio(rate, target)
    if old != new and new * (old + 2 * _width(old, new)) > _MAX_TAPS:
        raise InvalidAudio(
            f"a clip of {rate} Hz cannot be resampled, it has too few divisors in common with {target} Hz; "
            f"send {target} Hz or a usual rate: 8000, 11025, 22050, 24000, 32000, 44100, 48000"
        )


def resampled_length(frames: int, rate: int, target: int) -> int:
    """Samples of a clip of `frames` samples after resampling: frames * target / rate, rounded up.

    The quotient is a float32, as torchaudio has it, so that a fraction may be lost.
    """
    if rate == target:
        return frames
    old, new = _ratio(rate, target)
    return min(math.ceil(np.float32(new * frames / old)), new * (frames // old + 1))


def resample(waveform: torch.Tensor, rate: int, target: int) -> torch.Tensor:
    """float32 [samples] at `rate` Hz to float32 [resampled_length] at `target` Hz."""
    if rate == target:
        return waveform
    old, new = _ratio(rate, target)
    filters = _filters(old, new)
    width = _width(old, new)
    padded = torch.nn.functional.pad(waveform[None, None], (width, width + old))
    phases = torch.nn.functional.conv1d(padded, filters, stride=old)  # [1, new, steps]
    return phases[0].T.reshape(-1)[: resampled_length(waveform.shape[0], rate, target)]


def _ratio(rate: int, target: int) -> tuple[int, int]:
    divisor = math.gcd(rate, target)
    return rate // divisor, target // divisor


def _width(old: int, new: int) -> int:
    """Input samples to each side that a filter reaches."""
    return math.ceil(_CROSSINGS * old / (min(old, new) * _ROLLOFF))


@lru_cache(maxsize=8)
def _filters(old: int, new: int) -> torch.Tensor:
    """One filter for each phase of the output, float32 [new, 1, old + 2 * width]."""
    cutoff = min(old, new) * _ROLLOFF
    width = _width(old, new)
    taps = torch.arange(-width, width + old, dtype=torch.float32) / old
    phases = torch.arange(0, -new, -1, dtype=torch.float32) / new
    crossings = ((phases[:, None, None] + taps) * cutoff).clamp(-_CROSSINGS, _CROSSINGS)
    window = torch.cos(crossings * math.pi / _CROSSINGS / 2) ** 2
    angle = crossings * math.pi
    sinc = torch.where(angle == 0, torch.ones(()), angle.sin() / angle)
    return sinc * (window * (cutoff / old))
