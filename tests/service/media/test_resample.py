import math

import numpy as np
import pytest
import torch
from patchloom_service.errors import InvalidAudio
from patchloom_service.media.resample import check_rate, resample, resampled_length

RECORDED = {
    8000: [-0.7808199524879456, -0.7267023324966431, -0.20213103294372559, 0.3356136381626129],
    22050: [-0.6982119679450989, 0.15097129344940186, -0.34513649344444275, 0.08388352394104004],
    44100: [-0.29040324687957764, -0.10960826277732849, 0.035624489188194275, 0.16626064479351044],
    48000: [-0.2644706070423126, -0.12331875413656235, 0.1110289990901947, 0.046066947281360626],
}
"""The first four samples that torchaudio 2.11.1 makes of `zigzag` at 16 kHz, by the clip's rate."""


def zigzag() -> torch.Tensor:
    return torch.tensor([((i * 37) % 101 - 50) / 64 for i in range(12)])


@pytest.mark.parametrize("rate", RECORDED)
def test_the_samples_are_those_of_torchaudio(rate):
    made = resample(zigzag(), rate, 16000)
    assert made.dtype == torch.float32
    np.testing.assert_allclose(made[:4].numpy(), RECORDED[rate], rtol=0, atol=3e-7)


def by_the_formula(samples: np.ndarray, rate: int, target: int, index: int) -> float:
    """Sample `index` of the output: the whole clip under a windowed sinc, in float64."""
    cutoff = min(rate, target) * 0.99
    crossings = np.clip((np.arange(len(samples)) / rate - index / target) * cutoff, -6, 6)
    window = np.cos(crossings * math.pi / 12) ** 2
    return float((samples * np.sinc(crossings) * window).sum() * cutoff / rate)


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 32000, 44100, 48000])
def test_the_samples_follow_the_formula(rate):
    samples = np.random.default_rng(3).uniform(-1, 1, 500)
    made = resample(torch.from_numpy(samples.astype(np.float32)), rate, 16000).numpy()
    want = [by_the_formula(samples, rate, 16000, index) for index in range(len(made))]
    np.testing.assert_allclose(made, want, rtol=0, atol=1e-4)  # the phases are float32


def test_a_clip_at_the_target_rate_is_left_alone():
    samples = zigzag()
    assert resample(samples, 16000, 16000) is samples


@pytest.mark.parametrize("rate", [1, 100, 8000, 11025, 12000, 22050, 44100, 48000, 768000])
@pytest.mark.parametrize("frames", [1, 2, 441, 1000, 4801])
def test_the_length_is_known_before_resampling(rate, frames):
    check_rate(rate, 16000)
    assert resample(torch.zeros(frames), rate, 16000).shape == (resampled_length(frames, rate, 16000),)


def test_the_length_is_rounded_up():
    assert resampled_length(44101, 44100, 16000) == 16001
    assert resampled_length(44100 * 600, 44100, 16000) == 16000 * 600


@pytest.mark.parametrize("rate", [44101, 15999, 767999])
def test_a_rate_with_huge_filters_is_refused(rate):
    with pytest.raises(InvalidAudio, match=f"{rate} Hz cannot be resampled.*44100, 48000"):
        check_rate(rate, 16000)
