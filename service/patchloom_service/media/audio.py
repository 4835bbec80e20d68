"""Reads audio clips: WAV files and bare 16-bit samples."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from patchloom_service.errors import InvalidAudio, UnsupportedContent
from patchloom_service.media.containers.bounded import bounded
from patchloom_service.models.base import AudioInfo
from patchloom_service.types import AudioPart

WAV, PCM16 = "wav", "pcm16"
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_GUID_TAIL = bytes.fromhex("000000001000800000aa00389b71")
_BITS = {_PCM: (8, 16, 24, 32), _FLOAT: (32, 64)}
_UNKNOWN_SIZE = 0xFFFFFFFF
_MAX_RATE, _MAX_CHANNELS = 768_000, 256


@dataclass(frozen=True, slots=True)
class _Clip:
    """Interleaved little-endian samples."""

    samples: memoryview
    code: int
    bits: int
    channels: int
    sample_rate: int

    @property
    def frames(self) -> int:
        return len(self.samples) // (self.channels * self.bits // 8)


def probe_audio(data: bytes, part: AudioPart) -> AudioInfo:
    """Frames per channel and rate, from the header alone.

    The part's format is "wav", or "pcm16" for bare little-endian samples of the part's rate and channels,
    which a WAV file states itself. InvalidAudio for a broken or empty clip, UnsupportedContent for
    another format or encoding.
    """
    clip = _read(data, part)
    return AudioInfo(clip.frames, clip.sample_rate)


def decode_audio(data: bytes, part: AudioPart) -> tuple[npt.NDArray[np.float32], int]:
    """(float32 [frames], rate in Hz): the mean over the channels, integers scaled to [-1, 1).

    8-bit samples are (v - 128) / 128, n-bit ones v / 2^(n - 1). Errors as in `probe_audio`, and
    InvalidAudio for samples that are not finite.
    """
    clip = _read(data, part)
    frames = _scale(clip).reshape(clip.frames, clip.channels)
    mono = frames[:, 0] if clip.channels == 1 else frames.mean(axis=1, dtype=np.float64)
    if not np.isfinite(mono).all():
        raise InvalidAudio("the clip has samples that are not finite numbers")
    return mono.astype(np.float32), clip.sample_rate


def _read(data: bytes, part: AudioPart) -> _Clip:
    if part.format == PCM16:
        clip = _Clip(memoryview(data), _PCM, 16, part.channels, part.sample_rate)
    elif part.format == WAV:
        clip = _wav(data)
    else:
        raise UnsupportedContent(
            f"audio of the form {part.format[:32]!r} is not supported; send wav or pcm16"
        )
    if not (0 < clip.channels <= _MAX_CHANNELS and 0 < clip.sample_rate <= _MAX_RATE):
        raise InvalidAudio(
            f"the clip has {clip.channels} channels at {clip.sample_rate} Hz; "
            f"1 to {_MAX_CHANNELS} channels and 1 to {_MAX_RATE} Hz are allowed"
        )
    if part.format == PCM16 and len(data) % (2 * part.channels):
        raise InvalidAudio(f"{len(data)} bytes are no whole frames of {part.channels} 16-bit samples")
    if not clip.frames:
        raise InvalidAudio("the clip is empty; send at least one frame")
    return clip


def _wav(data: bytes) -> _Clip:
    if data[:4] not in (b"RIFF", b"RF64") or data[8:12] != b"WAVE":
        raise InvalidAudio("these bytes are no wav file; send RIFF or RF64 with WAVE")
    kind: tuple[int, int, int, int, int] | None = None
    long_size: int | None = None
    for name, size, start in bounded(_chunks(data), "wav has too many chunks"):
        if name == b"ds64" and size >= 16:
            long_size = struct.unpack_from("<Q", data, start + 8)[0]
        elif name == b"fmt ":
            kind = _format(data[start : start + size])
        elif name == b"data":
            if kind is None:
                raise InvalidAudio("the wav has samples before their format")
            return _clip(data, start, size, long_size, kind)
    raise InvalidAudio("the wav has no samples")


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(name, size as written, start of the body)."""
    position = 12
    while position + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, position)
        if name != b"data" and position + 8 + size > len(data):
            raise InvalidAudio("the wav ends inside a chunk")
        yield name, size, position + 8
        position += 8 + size + (size & 1)


def _clip(
    data: bytes,
    start: int,
    size: int,
    long_size: int | None,
    kind: tuple[int, int, int, int, int],
) -> _Clip:
    code, channels, rate, block, bits = kind
    if size == _UNKNOWN_SIZE:
        # A writer that could not seek back leaves the size open: the samples reach to the end.
        size = long_size if long_size is not None else (len(data) - start) // block * block
    if start + size > len(data):
        raise InvalidAudio(f"the wav announces {size} bytes of samples and has {len(data) - start}")
    return _Clip(memoryview(data)[start : start + size // block * block], code, bits, channels, rate)


def _format(body: bytes) -> tuple[int, int, int, int, int]:
    """(code, channels, rate, bytes of a frame, bits)."""
    if len(body) < 16:
        raise InvalidAudio("the format of the wav is too short")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", body)
    if code == _EXTENSIBLE and len(body) >= 40 and body[26:40] == _GUID_TAIL:
        (code,) = struct.unpack_from("<H", body, 24)
    if bits not in _BITS.get(code, ()):
        raise UnsupportedContent(
            f"wav encoding {code} with {bits} bits is not supported; "
            "send PCM with 8, 16, 24 or 32 bits, or float with 32 or 64"
        )
    if not channels or block != channels * bits // 8:
        raise InvalidAudio(f"the wav has {channels} channels of {bits} bits in {block} bytes")
    return code, channels, rate, block, bits


def _scale(clip: _Clip) -> npt.NDArray[np.float64]:
    if clip.code == _FLOAT:
        return np.frombuffer(clip.samples, f"<f{clip.bits // 8}").astype(np.float64)
    if clip.bits == 8:
        return (np.frombuffer(clip.samples, np.uint8).astype(np.float64) - 128) / 128
    if clip.bits == 24:
        wide = np.zeros((len(clip.samples) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(clip.samples, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0].astype(np.float64) / 2**31
    return np.frombuffer(clip.samples, f"<i{clip.bits // 8}") / 2.0 ** (clip.bits - 1)
