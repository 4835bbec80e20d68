import struct
import zlib

import pytest
from patchloom_service.errors import InvalidImage, LimitExceeded
from patchloom_service.media.audio import probe_audio
from patchloom_service.media.containers.bounded import bounded
from patchloom_service.media.probe import probe
from patchloom_service.types import AudioPart, MediaSource, SourceKind

SIZE = 8 << 20


def filled(head: bytes, piece: bytes) -> bytes:
    return head + piece * (SIZE // len(piece))


IHDR = b"IHDR" + struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\x0d" + IHDR + struct.pack(">I", zlib.crc32(IHDR))
GIF = b"GIF89a\1\0\1\0\0\0\0"
EXIF = b"\xff\xe1\xff\xff" + b"Exif\0\0".ljust(0xFFFF - 2, b"\0")
BIG_TIFF = b"II\x2b\0\x08\0\0\0\x10\0\0\0\0\0\0\0"
RIFF = b"RIFF\xff\xff\xff\xff"


def test_as_many_pieces_as_allowed_pass():
    assert list(bounded(range(3), "thing has too many pieces", 3)) == [0, 1, 2]
    with pytest.raises(LimitExceeded, match="the thing has too many pieces; at most 2 are allowed"):
        list(bounded(range(3), "thing has too many pieces", 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (filled(PNG, b"\0\0\0\0IDATxxxx"), "png has too many chunks"),
        (filled(b"\xff\xd8", b"\xff\xe0\0\2"), "jpeg has too many segments"),
        (filled(b"\xff\xd8", b"\xff"), "jpeg ends before its pixels"),
        (filled(b"\xff\xd8\xff", b"\0"), "jpeg ends before its pixels"),
        (filled(b"\xff\xd8", b"\xff\xd0"), "jpeg ends before its pixels"),
        (filled(b"\xff\xd8\xff\xe0\0\2", EXIF), "jpeg ends before its pixels"),
        (filled(GIF, b"\0"), "gif has no frame"),
        (filled(GIF, b"\0" * 999 + b"!\xfe\0"), "gif has junk"),
        (filled(GIF + b"!\xfe", b"\1x"), "gif has too many blocks"),
        (filled(GIF, b"!\xfe\0"), "gif has too many blocks"),
        (filled(GIF + b",\0\0\0\0\1\0\1\0\0\2", b"\1x"), "gif has too many blocks"),
        (filled(RIFF + b"WEBPVP8X\x0a\0\0\0" + bytes(10), b"ALPH\0\0\0\0"), "webp has too many chunks"),
        (filled(BIG_TIFF + struct.pack("<Q", 400_000), b"\0" * 20), "400000 tags"),
        (filled(b"MM\0\x2a\0\0\0\x08\xff\xff", b"\1\x11\0\4\0\x10\0\0\0\0\0\x08"), "1048576 strips"),
    ],
    ids=range(14),
)
def test_a_file_of_countless_pieces_is_refused(data, message):
    with pytest.raises((LimitExceeded, InvalidImage), match=message):
        probe(data, 1 << 24)


def test_a_clip_of_countless_chunks_is_refused():
    part = AudioPart(MediaSource(SourceKind.DATA))
    with pytest.raises(LimitExceeded, match="wav has too many chunks"):
        probe_audio(filled(RIFF + b"WAVE", b"LIST\0\0\0\0"), part)
