import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from patchloom_service.models import inkling, inkling_audio
from patchloom_service.models.base import AudioInfo
from patchloom_service.models.image_config import ConfigRefused
from patchloom_service.models.inkling_audio import features_of, missing_settings, read_settings
from transformers.models.inkling.feature_extraction_inkling import InklingFeatureExtractor
from transformers.models.inkling.processing_inkling import InklingProcessor

from tests.oracles.audio import CASES, clip_levels
from tests.oracles.families import digest
from tests.support.families import checkpoint

GOLDEN = Path(__file__).resolve().parents[2] / "data" / "golden_audio" / "inkling.json"
DMEL = {"num_dmel_bins": 16, "dmel_min_value": -7.0, "dmel_max_value": 2.0}
EXTRACTOR = {
    "feature_size": 80,
    "sampling_rate": 16000,
    "audio_token_duration_s": 0.05,
    "window_size_multiplier": 2.0,
}
LENGTHS = (1, 799, 800, 801, 16000)


def settings(extractor=None, config=None, **dmel):
    processor = {**DMEL, **dmel, "feature_extractor": {**EXTRACTOR, **(extractor or {})}}
    return read_settings(processor, config or {})


def by_the_processor(clips, extractor=None, **dmel) -> dict[str, np.ndarray]:
    """audio_input_ids and audio_input_ids_mask as InklingProcessor makes them, which needs torchvision."""
    dmel = {**DMEL, **dmel}
    low, high, bins = dmel["dmel_min_value"], dmel["dmel_max_value"], dmel["num_dmel_bins"]
    processor = SimpleNamespace(
        dmel_min_value=low,
        dmel_max_value=high,
        bin_centers=torch.linspace(low, high, bins, dtype=torch.float64).to(torch.float32),
    )
    extract = InklingFeatureExtractor(**{**EXTRACTOR, **(extractor or {})})
    made = extract(clips, sampling_rate=extract.sampling_rate, return_tensors="pt")
    ids = InklingProcessor._extract_dmel_bins(processor, made["input_features"])
    return {"audio_input_ids": ids.numpy(), "audio_input_ids_mask": made["input_features_mask"].numpy()}


def assert_same(made, want):
    assert made.keys() == want.keys()
    for name, array in want.items():
        assert (made[name].dtype, made[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(made[name], array, err_msg=name)


def signal(kind: str, length: int) -> np.ndarray:
    time = np.arange(length) / 16000
    noise = np.random.default_rng(length).standard_normal(length)
    made = {
        "silence": np.zeros(length),
        "tone": 0.5 * np.sin(2 * np.pi * 440 * time),
        "noise": 0.1 * noise,
        "clipped": np.clip(100 * noise, -1, 1),
        "faint": 1e-5 * noise,
    }
    return made[kind].astype(np.float32)


KINDS = ("silence", "tone", "noise", "clipped", "faint")


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_clip_has_the_bins_of_the_processor(kind, length):
    features = features_of(settings())
    samples = signal(kind, length)
    bins = features.compute(samples, 16000)
    assert (bins.dtype, bins.shape) == (np.uint8, (-(-length // 800), 80))
    assert_same(features.stack([bins]), by_the_processor([samples]))


def test_clips_of_one_response_are_padded_like_those_of_the_processor():
    features = features_of(settings())
    clips = [signal("noise", 801), signal("tone", 16000), signal("silence", 1), signal("clipped", 12345)]
    made = features.stack([features.compute(samples, 16000) for samples in clips])
    assert made["audio_input_ids"].shape == (4, 20, 80)
    assert made["audio_input_ids"].nbytes + made["audio_input_ids_mask"].nbytes == 4 * 20 * 321
    assert features.frame_bytes == 321
    assert_same(made, by_the_processor(clips))


@pytest.mark.parametrize("stretch", [1, 7, 20])
def test_a_long_clip_is_computed_in_stretches(monkeypatch, stretch):
    monkeypatch.setattr(inkling_audio, "_STRETCH", stretch)
    features = features_of(settings())
    samples = signal("noise", 16000)
    assert_same(features.stack([features.compute(samples, 16000)]), by_the_processor([samples]))


@pytest.mark.parametrize(
    ("extractor", "dmel"),
    [
        ({"n_fft": 2048}, {}),
        ({"window_size_multiplier": 0.5}, {}),
        ({"feature_size": 40, "sampling_rate": 8000}, {}),
        ({"audio_token_duration_s": 0.08}, {"num_dmel_bins": 32, "dmel_min_value": -1.5}),
    ],
)
def test_other_settings_follow_the_processor(extractor, dmel):
    features = features_of(settings(extractor, **dmel))
    samples, rate = signal("noise", 5000), extractor.get("sampling_rate", 16000)
    made = features.stack([features.compute(samples, rate)])
    assert_same(made, by_the_processor([samples], extractor, **dmel))


def test_a_clip_of_another_rate_has_the_bins_of_its_pitch():
    features = features_of(settings())
    slow, fast = (
        np.sin(2 * np.pi * 1000 * np.arange(rate) / rate).astype(np.float32) for rate in (16000, 48000)
    )
    want, made = features.compute(slow, 16000), features.compute(fast, 48000)
    assert made.shape == want.shape == (20, 80)
    # Off the pitch the two filters leave different faint remains.
    loud = want >= 10
    assert loud.sum() > 40
    assert (np.abs(made.astype(int) - want)[loud] <= 1).all()


def test_missing_settings_are_named():
    assert missing_settings({**DMEL, "feature_extractor": EXTRACTOR}) == ()
    assert missing_settings({"num_dmel_bins": 16, "feature_extractor": {"feature_size": 80}}) == (
        "dmel_min_value",
        "dmel_max_value",
        "feature_extractor.sampling_rate",
        "feature_extractor.audio_token_duration_s",
        "feature_extractor.window_size_multiplier",
    )


def test_the_settings_that_transformers_writes_are_read():
    written = InklingFeatureExtractor().to_dict()
    assert settings(written) == settings()


@pytest.mark.parametrize(
    ("extractor", "config", "dmel", "named"),
    [
        ({"audio_token_duration_s": 0.05001}, {}, {}, "window"),
        ({"sampling_rate": 0}, {}, {}, "window"),
        ({"hop_length": 160}, {}, {}, "hop_length"),
        ({"padding_value": 1.0}, {}, {}, "padding_value"),
        ({"padding_side": "left"}, {}, {}, "padding_side"),
        ({"n_fft": 512}, {}, {}, "n_fft"),
        ({"dither": 0.1}, {}, {}, "dither"),
        ({}, {"audio_config": {"n_mel_bins": 128}}, {}, "n_mel_bins"),
        ({}, {"audio_config": {"mel_vocab_size": 8}}, {}, "num_dmel_bins"),
        ({}, {}, {"num_dmel_bins": 1}, "num_dmel_bins"),
        ({}, {}, {"num_dmel_bins": 257}, "num_dmel_bins"),
        ({}, {}, {"dmel_min_value": 2.0}, "dmel_min_value"),
    ],
)
def test_settings_that_cannot_be_reproduced_are_refused(extractor, config, dmel, named):
    with pytest.raises(ConfigRefused, match=named):
        settings(extractor, config, **dmel)


def recorded() -> list[dict]:
    """What the whole processor gave in the oracle environment."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]


@pytest.mark.parametrize("case", recorded(), ids=lambda case: "+".join(map(str, case["lengths"])))
def test_placeholders_and_tensors_equal_the_recorded_processor(case):
    processor = {**DMEL, "feature_extractor": EXTRACTOR}
    spec = inkling.build(replace(checkpoint("inkling"), processor=processor))
    plans = [spec.plan_audio(AudioInfo(length, 16000)) for length in case["lengths"]]
    assert [[token.id, token.count] for plan in plans for token in plan.run] == case["ids"][2::4]
    clips = [clip_levels(length).astype(np.float32) / 32768 for length in case["lengths"]]
    made = spec.audio.stack([spec.audio.compute(samples, 16000) for samples in clips])
    assert {name: described(array) for name, array in made.items()} == case["tensors"]


def described(array: np.ndarray) -> dict:
    return {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": digest(array)}


def test_every_recorded_case_is_one_that_the_oracle_runs():
    assert [tuple(case["lengths"]) for case in recorded()] == list(CASES)
