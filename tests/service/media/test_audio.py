import io
import struct
import wave

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidAudio, PatchloomError, UnsupportedContent
from patchloom_service.media.audio import decode_audio, probe_audio
from patchloom_service.models.base import AudioInfo
from patchloom_service.types import AudioPart, MediaSource, SourceKind


def part(**fields: object) -> AudioPart:
    return AudioPart(MediaSource(SourceKind.DATA), **fields)


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + b"\0" * (len(body) & 1)


def fmt(code: int, channels: int, rate: int, bits: int) -> bytes:
    block = channels * bits // 8
    return chunk(b"fmt ", struct.pack("<HHIIHH", code, channels, rate, rate * block, block, bits))


def wav(*chunks: bytes, riff: bytes = b"RIFF") -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return riff + struct.pack("<I", len(body)) + body


def test_a_file_of_the_standard_library_is_read():
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(44100)
        out.writeframes(struct.pack("<6h", 16384, 0, -32768, -32768, 32767, 1))
    data = buffer.getvalue()
    assert probe_audio(data, part()) == AudioInfo(frames=3, sample_rate=44100)
    samples, rate = decode_audio(data, part())
    assert (samples.tolist(), samples.dtype, rate) == ([0.25, -1.0, 0.5], np.float32, 44100)


@pytest.mark.parametrize(
    ("code", "bits", "body"),
    [
        (1, 8, bytes([0, 128, 192])),
        (1, 16, struct.pack("<3h", -32768, 0, 16384)),
        (1, 24, b"\0\0\x80\0\0\0\0\0\x40"),
        (1, 32, struct.pack("<3i", -(2**31), 0, 2**30)),
        (3, 32, struct.pack("<3f", -1, 0, 0.5)),
        (3, 64, struct.pack("<3d", -1, 0, 0.5)),
    ],
)
def test_every_encoding_gives_the_same_samples(code, bits, body):
    data = wav(fmt(code, 1, 8000, bits), chunk(b"LIST", b"odd"), chunk(b"data", body))
    samples, rate = decode_audio(data, part())
    assert (samples.tolist(), rate) == ([-1.0, 0.0, 0.5], 8000)
    assert probe_audio(data, part()) == AudioInfo(3, 8000)


def test_an_extensible_format_names_its_code_in_the_guid():
    guid = struct.pack("<H", 3) + bytes.fromhex("000000001000800000aa00389b71")
    body = struct.pack("<HHIIHH", 0xFFFE, 1, 16000, 64000, 4, 32) + struct.pack("<HHI", 22, 32, 4)
    data = wav(chunk(b"fmt ", body + guid), chunk(b"data", struct.pack("<2f", 0.5, -0.5)))
    assert decode_audio(data, part())[0].tolist() == [0.5, -0.5]


def test_rf64_takes_its_size_from_ds64_and_an_open_size_reaches_to_the_end():
    samples = struct.pack("<4h", 1, 2, 3, 4)
    data = b"data" + struct.pack("<I", 0xFFFFFFFF) + samples
    ds64 = chunk(b"ds64", struct.pack("<QQQI", 0, 6, 3, 0))
    assert probe_audio(wav(ds64, fmt(1, 1, 16000, 16), data, riff=b"RF64"), part()).frames == 3
    assert probe_audio(wav(fmt(1, 1, 16000, 16), data + b"\0"), part()).frames == 4


def test_bare_samples_take_rate_and_channels_from_the_part():
    data = struct.pack("<4h", 16384, 16384, -16384, 0)
    assert probe_audio(data, part(format="pcm16", sample_rate=24000, channels=2)) == AudioInfo(2, 24000)
    assert decode_audio(data, part(format="pcm16", sample_rate=24000, channels=2))[0].tolist() == [0.5, -0.25]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no wav"),
        (b"ID3 not a wav at all", "no wav"),
        (wav(), "no samples"),
        (wav(chunk(b"data", b"12")), "before their format"),
        (wav(fmt(1, 1, 16000, 16), chunk(b"data", b"")), "empty"),
        (wav(fmt(1, 1, 16000, 16), b"data\x08\0\0\0abcd"), "announces 8 bytes of samples and has 4"),
        (wav(fmt(1, 0, 16000, 16), chunk(b"data", b"12")), "0 channels"),
        (wav(fmt(1, 1, 0, 16), chunk(b"data", b"12")), "at 0 Hz"),
        (wav(chunk(b"fmt ", b"12")), "too short"),
        (wav(b"LIST\xff\xff\0\0"), "ends inside"),
        (wav(fmt(3, 1, 8000, 32), chunk(b"data", struct.pack("<f", np.nan))), "not finite"),
    ],
)
def test_a_broken_clip_is_refused(data, message):
    with pytest.raises(InvalidAudio, match=message):
        decode_audio(data, part())


def test_other_encodings_and_forms_are_refused_by_name():
    with pytest.raises(UnsupportedContent, match="encoding 7 with 8 bits"):
        probe_audio(wav(fmt(7, 1, 8000, 8), chunk(b"data", b"1")), part())
    with pytest.raises(UnsupportedContent, match="'mp3'"):
        probe_audio(b"", part(format="mp3"))
    with pytest.raises(InvalidAudio, match="no whole frames"):
        probe_audio(b"123", part(format="pcm16"))


@given(st.binary(max_size=80))
def test_any_bytes_end_in_samples_or_a_typed_error(tail):
    for data in (tail, wav(tail), wav(fmt(1, 2, 8000, 16), tail)):
        try:
            samples, _ = decode_audio(data, part())
        except PatchloomError:
            continue
        assert len(samples) == probe_audio(data, part()).frames
