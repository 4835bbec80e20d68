"""Inkling's audio features: for every 50 ms of a clip the bins of its 80 mel bands (dMel).

Follows transformers' InklingFeatureExtractor and the quantization of its InklingProcessor. It knows nothing
of files and placeholders.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from transformers.audio_utils import mel_filter_bank

from patchloom_service.media.resample import METHOD, resample
from patchloom_service.models.base import AudioFeatures
from patchloom_service.models.image_config import ConfigRefused

Bins: TypeAlias = npt.NDArray[np.uint8]  # [frames, mels]

_EXTRACTOR = "feature_extractor"
_REQUIRED = (
    *("num_dmel_bins", "dmel_min_value", "dmel_max_value"),
    *(f"{_EXTRACTOR}.{key}" for key in ("feature_size", "sampling_rate")),
    *(f"{_EXTRACTOR}.{key}" for key in ("audio_token_duration_s", "window_size_multiplier")),
)
_FIXED = {"padding_value": 0, "padding_side": "right"}
_INERT = frozenset(("feature_extractor_type", "processor_class", "return_attention_mask"))
_TOLERANCE = 1e-6  # of a whole number of samples, as the extractor has it
_FLOOR = 1e-10
_STRETCH = 8192
"""Frames that are computed at a time; a longer clip takes no more memory for its spectrum."""


@dataclass(frozen=True, slots=True)
class DmelSettings:
    """Lengths in samples at `sample_rate`; `low` and `high` are the log10 of the outer bins' centres."""

    sample_rate: int
    mels: int
    hop: int
    window: int
    fft: int
    bins: int
    low: float
    high: float

    def settings(self) -> dict[str, Any]:
        """Everything that changes a feature, for the fingerprint."""
        return {**asdict(self), "resampling": METHOD}


def missing_settings(processor: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields that processor_config.json lacks; servers disagree on what they would default to."""
    flat = {**processor, **{f"{_EXTRACTOR}.{k}": v for k, v in (processor.get(_EXTRACTOR) or {}).items()}}
    return tuple(name for name in _REQUIRED if flat.get(name) is None)


def read_settings(processor: Mapping[str, Any], config: Mapping[str, Any]) -> DmelSettings:
    """The settings of processor_config.json; ConfigRefused where they cannot be reproduced."""
    extractor = processor[_EXTRACTOR]
    rate, seconds = int(extractor["sampling_rate"]), float(extractor["audio_token_duration_s"])
    window = _whole(seconds * float(extractor["window_size_multiplier"]) * rate, "the window")
    found = DmelSettings(
        sample_rate=rate,
        mels=int(extractor["feature_size"]),
        hop=_whole(seconds * rate, "audio_token_duration_s"),
        window=window,
        fft=int(extractor.get("n_fft") or window),
        bins=int(processor["num_dmel_bins"]),
        low=float(processor["dmel_min_value"]),
        high=float(processor["dmel_max_value"]),
    )
    _check_extractor(extractor, found)
    _check_bins(found, config.get("audio_config") or {})
    return found


def _whole(samples: float, name: str) -> int:
    nearest = round(samples)
    if abs(samples - nearest) > _TOLERANCE or nearest < 1:
        raise ConfigRefused(f"{name} is {samples} samples long; it must be a whole number of at least 1")
    return nearest


def _check_extractor(extractor: Mapping[str, Any], found: DmelSettings) -> None:
    derived = {"hop_length": found.hop, "window_size": found.window, **_FIXED}
    for key, value in derived.items():
        if extractor.get(key, value) != value:
            raise ConfigRefused(f"{_EXTRACTOR}.{key}={extractor[key]!r} is not supported; it must be {value}")
    read = {name.removeprefix(f"{_EXTRACTOR}.") for name in _REQUIRED}
    for key in extractor.keys() - derived.keys() - read - _INERT - {"n_fft"}:
        raise ConfigRefused(f"unknown setting {_EXTRACTOR}.{key}={extractor[key]!r}")
    if found.fft < found.window:
        raise ConfigRefused(f"n_fft={found.fft} is shorter than the window of {found.window} samples")


def _check_bins(found: DmelSettings, audio_config: Mapping[str, Any]) -> None:
    if not 2 <= found.bins <= min(256, int(audio_config.get("mel_vocab_size", 256))):
        raise ConfigRefused(
            f"num_dmel_bins={found.bins} is not supported; it must be from 2 to 256 and mel_vocab_size"
        )
    if audio_config.get("n_mel_bins", found.mels) != found.mels or found.mels < 1:
        raise ConfigRefused(
            f"feature_size is {found.mels}, audio_config.n_mel_bins {audio_config.get('n_mel_bins')}; "
            "they must be equal"
        )
    if not -math.inf < found.low < found.high < math.inf:
        raise ConfigRefused(f"dmel_min_value={found.low} must be below dmel_max_value={found.high}")


def features_of(found: DmelSettings) -> AudioFeatures:
    """What these settings make of clips.

    One clip is uint8 [ceil(samples / hop), mels], the clips of a response are audio_input_ids int32
    [clips, frames, mels] and audio_input_ids_mask bool [clips, frames], the processor's tensors. Frames
    behind the end of a shorter clip hold the bin of 0.0, as the processor has it.
    """
    dmel = _Dmel(found)
    return AudioFeatures(
        compute=dmel.compute,
        stack=partial(_stack, found.mels, int(dmel.quantize(torch.zeros(1))[0])),
        frame_bytes=found.mels * 4 + 1,
        cost=partial(_cost, found),
    )


class _Dmel:
    """The constants of the transform; safe to use from any thread."""

    def __init__(self, found: DmelSettings) -> None:
        self._settings = found
        self._window = torch.hann_window(found.window, periodic=True, dtype=torch.float32)
        filters = mel_filter_bank(
            num_frequency_bins=found.fft // 2 + 1,
            num_mel_filters=found.mels,
            min_frequency=0.0,
            max_frequency=found.sample_rate / 2.0,
            sampling_rate=found.sample_rate,
            norm="slaney",
            mel_scale="slaney",
        )
        self._filters = torch.from_numpy(np.ascontiguousarray(filters.T, dtype=np.float32))
        centres = torch.linspace(found.low, found.high, found.bins, dtype=torch.float64)
        self._centres = centres.to(torch.float32)

    def compute(self, samples: npt.NDArray[np.float32], rate: int) -> Bins:
        """The bins of one mono clip at `rate` Hz."""
        waveform = resample(torch.from_numpy(samples), rate, self._settings.sample_rate)
        bins = [self.quantize(self._log_mel(stretch)) for stretch in self._stretches(waveform)]
        return torch.cat(bins, 1)[0].numpy()

    def _stretches(self, waveform: torch.Tensor) -> Iterator[torch.Tensor]:
        """The padded samples [1, n] that `_STRETCH` frames at a time are made from."""
        hop, fft = self._settings.hop, self._settings.fft
        frames = -(-waveform.shape[0] // hop)
        missing = frames * hop - waveform.shape[0]
        padded = torch.nn.functional.pad(waveform[None], (max(fft - hop, 0), missing))
        for first in range(0, frames, _STRETCH):
            last = min(first + _STRETCH, frames) - 1
            yield padded[:, first * hop : last * hop + fft]

    def _log_mel(self, padded: torch.Tensor) -> torch.Tensor:
        """log10 of the magnitudes in each mel band, float32 [1, frames, mels]."""
        spectrum = torch.stft(
            padded,
            self._settings.fft,
            hop_length=self._settings.hop,
            win_length=self._settings.window,
            window=self._window,
            center=False,
            return_complex=True,
        )
        power = torch.view_as_real(spectrum).pow(2).sum(-1)
        mel = self._filters @ power.clamp_min(_FLOOR).sqrt()
        return mel.clamp_min(_FLOOR).log10().transpose(1, 2)

    def quantize(self, log_mel: torch.Tensor) -> torch.Tensor:
        """The nearest bin of each value, the lower one of two, uint8."""
        clamped = log_mel.clamp(min=self._settings.low, max=self._settings.high)
        distance = (clamped.unsqueeze(-1) - self._centres).abs()
        return distance.argmin(dim=-1).to(torch.uint8)


def _cost(found: DmelSettings, frames: int) -> int:
    """Three copies of the samples as float32, and of a stretch's spectrum about 24 bytes a frequency."""
    return frames * found.hop * 12 + min(frames, _STRETCH) * found.fft * 12


def _stack(mels: int, padding: int, clips: Sequence[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    longest = max(len(clip) for clip in clips)
    ids = np.full((len(clips), longest, mels), padding, np.int32)
    mask = np.zeros((len(clips), longest), np.bool_)
    for index, clip in enumerate(clips):
        ids[index, : len(clip)] = clip
        mask[index, : len(clip)] = True
    return {"audio_input_ids": ids, "audio_input_ids_mask": mask}
