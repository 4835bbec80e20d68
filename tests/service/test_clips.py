import io
import struct
import wave

import numpy as np
import pytest
from patchloom_service.errors import ContentKeyNotFound, InvalidAudio, OutOfMemory, UnsupportedContent
from patchloom_service.models.base import TensorSlice
from patchloom_service.types import (
    AudioPart,
    Conversation,
    Encoding,
    ImagePart,
    MediaSource,
    Message,
    OutputOptions,
    Request,
    Role,
    SourceKind,
    TextPart,
    ToolCall,
)
from PIL import Image

from tests.service.models.test_inkling_audio import by_the_processor
from tests.support.pipeline import Pipeline, Served, write_checkpoint

IDS, MASK = "audio_input_ids", "audio_input_ids_mask"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    directory = write_checkpoint(Served("inkling", "inkling"), tmp_path_factory.mktemp("inkling"))
    with Pipeline(directory) as made:
        yield made


def levels(length: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9000, 9000, length).astype(np.int16)


def wav(samples: np.ndarray, channels: int = 1, rate: int = 16000) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(samples.astype("<i2").tobytes())
    return buffer.getvalue()


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 40), (10, 20, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def data(content: bytes) -> MediaSource:
    return MediaSource(SourceKind.DATA, data=content)


def by_key(key: str) -> MediaSource:
    return MediaSource(SourceKind.CONTENT_KEY, text=key)


def clip(content: bytes) -> AudioPart:
    return AudioPart(data(content))


def user(*parts) -> Message:
    return Message(Role.USER, parts)


def request(*messages: Message, **output) -> Request:
    return Request("model", Conversation(messages), output=OutputOptions(**output))


def processed(*clips: np.ndarray) -> dict[str, np.ndarray]:
    """What the processor makes of 16-bit samples."""
    return by_the_processor([(samples / 32768).astype(np.float32) for samples in clips])


def assert_tensors(response, want: dict[str, np.ndarray]) -> None:
    assert {name for name in response.tensors if name.startswith("audio")} == set(want)
    for name, array in want.items():
        found = response.tensors[name]
        assert (found.dtype, found.array.dtype, found.shape) == (array.dtype.name, array.dtype, array.shape)
        np.testing.assert_array_equal(found.array, array, err_msg=name)


def slices(item) -> list[TensorSlice]:
    return [TensorSlice(s.tensor, s.axis, s.start, s.count) for s in item.slices]


def rows(number: int) -> list[TensorSlice]:
    return [TensorSlice(IDS, 0, number, 1), TensorSlice(MASK, 0, number, 1)]


def test_clips_of_user_and_tool_messages_have_their_rows_between_images(pipeline):
    first, second = levels(801, 1), levels(16000, 2)
    response = pipeline.answer(
        request(
            user(TextPart("hear"), clip(wav(first)), ImagePart(data(picture()))),
            Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "listen", {}),)),
            Message(Role.TOOL, (ImagePart(data(picture())), clip(wav(second))), tool_call_id="c"),
        )
    )
    assert_tensors(response, processed(first, second))
    assert [(item.path, slices(item)) for item in response.items] == [
        ("messages[0].content[1]", rows(0)),
        ("messages[0].content[2]", [TensorSlice("pixel_values", 0, 0, 2)]),
        ("messages[2].content[0]", [TensorSlice("pixel_values", 0, 2, 2)]),
        ("messages[2].content[1]", rows(1)),
    ]
    assert [item.token_count for item in response.items] == [2, 2, 2, 20]
    assert response.tensors[MASK].array.sum(axis=1).tolist() == [2, 20]
    assert response.tensors["pixel_values"].shape == (4, 2, 40, 40, 3)


@pytest.mark.parametrize("length", [1, 799, 800, 801, 16000])
def test_a_clip_alone_equals_the_processor(pipeline, length):
    samples = levels(length, length)
    assert_tensors(pipeline.answer(request(user(clip(wav(samples))))), processed(samples))


def test_stereo_is_the_mean_of_its_channels(pipeline):
    both = levels(4000, 5).reshape(-1, 2)
    mono = (both.astype(np.float32) / 32768).mean(axis=1)
    assert_tensors(pipeline.answer(request(user(clip(wav(both, 2))))), by_the_processor([mono]))


def test_levels_of_pixels_leave_features_as_they_are(pipeline):
    samples = levels(2000, 6)
    body = user(clip(wav(samples)), ImagePart(data(picture())))
    response = pipeline.answer(request(body, encoding=Encoding.UINT8))
    assert_tensors(response, processed(samples))
    assert response.tensors["pixel_values"].dtype == "uint8"


def test_a_clip_is_computed_once_and_found_by_its_key(pipeline):
    samples = levels(3000, 7)
    first = pipeline.answer(request(user(clip(wav(samples)), clip(wav(samples)))))
    assert_tensors(first, processed(samples, samples))
    assert (first.message.counters.decodes, first.message.counters.cache_hits) == (1, 1)
    key = first.items[0].content_key
    again = pipeline.answer(request(user(AudioPart(by_key(key)))))
    assert_tensors(again, processed(samples))
    assert (again.message.counters.decodes, again.message.counters.cache_hits) == (0, 1)
    assert list(again.token_ids).count(pipeline.model.placeholder_ids["audio"]) == 4


def test_the_key_of_a_clip_is_no_image(pipeline):
    key = pipeline.answer(request(user(clip(wav(levels(900, 8)))))).items[0].content_key
    with pytest.raises(ContentKeyNotFound) as caught:
        pipeline.answer(request(user(ImagePart(by_key(key)))))
    assert caught.value.field_path == "messages[0].content[0]"


def test_a_known_clip_has_its_ranges_and_no_row(pipeline):
    known, new = levels(1700, 9), levels(900, 10)
    key = pipeline.answer(request(user(clip(wav(known))))).items[0].content_key
    response = pipeline.answer(
        request(user(clip(wav(known)), clip(wav(new))), known_content_keys=frozenset({key}))
    )
    assert_tensors(response, processed(new))
    assert [(item.known, item.token_count, slices(item)) for item in response.items] == [
        (True, 3, []),
        (False, 2, rows(0)),
    ]


def test_a_count_computes_no_features(pipeline):
    response = pipeline.answer(request(user(clip(wav(levels(1700, 11))))), count=True)
    assert (dict(response.tensors), response.items[0].token_count) == ({}, 3)


def test_samples_that_are_no_numbers_are_an_error_at_their_item(pipeline):
    header = struct.pack("<4sIHHIIHH", b"fmt ", 16, 3, 1, 16000, 64000, 4, 32)
    body = b"WAVE" + header + struct.pack("<4sI2f", b"data", 8, 0.5, float("nan"))
    broken = b"RIFF" + struct.pack("<I", len(body)) + body
    with pytest.raises(InvalidAudio, match="not finite") as caught:
        pipeline.answer(request(user(clip(wav(levels(900, 12))), clip(broken))))
    assert caught.value.field_path == "messages[0].content[1]"


def test_a_rate_that_cannot_be_resampled_is_refused_before_decoding(pipeline):
    with pytest.raises(InvalidAudio, match="44101 Hz cannot be resampled") as caught:
        pipeline.answer(request(user(clip(wav(levels(900, 13), rate=44101)))), count=True)
    assert caught.value.field_path == "messages[0].content[0]"


def test_short_clips_beside_a_long_one_are_bounded_in_bytes(tmp_path):
    directory = write_checkpoint(Served("inkling", "inkling"), tmp_path / "inkling")
    clips = [clip(wav(levels(1, 15))), *(clip(wav(levels(1, seed))) for seed in range(20, 28))]
    long = clip(wav(levels(100, 16), rate=1))  # 2,000 frames
    with Pipeline(directory, max_inflight_bytes=60 << 20) as bounded:
        bounded.answer(request(user(*clips)))
        bounded.answer(request(user(long)))
        with pytest.raises(OutOfMemory, match="at most 62914560 are allowed"):
            bounded.answer(request(user(*clips, long)))


def test_a_checkpoint_that_does_not_state_its_bins_takes_images_only(tmp_path):
    directory = write_checkpoint(Served("inkling", "inkling"), tmp_path / "inkling")
    (directory / "processor_config.json").write_text('{"processor_class": "InklingProcessor"}')
    with Pipeline(directory) as images_only:
        assert len(images_only.answer(request(user(ImagePart(data(picture()))))).items) == 1
        with pytest.raises(UnsupportedContent, match="lacks num_dmel_bins, dmel_min_value") as caught:
            images_only.answer(request(user(clip(wav(levels(900, 14))))))
    assert caught.value.field_path == "messages[0].content[0]"
