import io
import struct

import numpy as np
import pytest
from patchloom_service.errors import InvalidImage
from patchloom_service.media.containers.tiff import bare
from patchloom_service.media.decode import decode
from patchloom_service.media.probe import probe
from PIL import Image

from tests.support.pictures import encode, noise

ALLOWED = 1 << 20
HEIGHT, WIDTH = 13, 21
SAMPLES = np.random.default_rng(4).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
COMPRESSIONS = [None, "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg"]


def decoded(data: bytes) -> np.ndarray:
    return decode(data, probe(data, ALLOWED))[:, :, :3]


def plane(samples: np.ndarray) -> list[bytes]:
    """Strips of five rows."""
    return [samples[top : top + 5].tobytes() for top in range(0, HEIGHT, 5)]


def written(endian: str, directory_first: bool, planar: int = 1, counted: int | None = None) -> bytes:
    """An uncompressed RGB file whose strips say that they have `counted` bytes."""
    strips = plane(SAMPLES) if planar == 1 else [s for band in range(3) for s in plane(SAMPLES[:, :, band])]
    counts = [len(strip) if counted is None else counted for strip in strips]
    size = sum(map(len, strips))
    table = 2 + 12 * 10 + 4
    values = (8 if directory_first else 8 + size) + table
    start = values + 8 * len(strips) + 6 if directory_first else 8
    offsets = [start + sum(map(len, strips[:index])) for index in range(len(strips))]
    external = struct.pack(f"{endian}{len(strips)}L", *offsets) + struct.pack(
        f"{endian}{len(strips)}L", *counts
    )
    external += struct.pack(endian + "3H", 8, 8, 8)
    entries = [
        (256, 4, 1, WIDTH),
        (257, 4, 1, HEIGHT),
        (258, 3, 3, values + 8 * len(strips)),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, len(strips), values),
        (277, 3, 1, 3),
        (278, 4, 1, 5),
        (279, 4, len(strips), values + 4 * len(strips)),
        (284, 3, 1, planar),
    ]
    directory = struct.pack(endian + "H", len(entries))
    for tag, kind, count, value in entries:
        packed = (
            struct.pack(endian + "HH", value, 0)
            if (kind, count) == (3, 1)
            else struct.pack(endian + "L", value)
        )
        directory += struct.pack(endian + "HHL", tag, kind, count) + packed
    directory += bytes(4) + external
    signature = b"II" if endian == "<" else b"MM"
    head = signature + struct.pack(endian + "HL", 42, values - table)
    pixels = b"".join(strips)
    return head + (directory + pixels if directory_first else pixels + directory)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("options", [{}, {"big_tiff": True}, {"strip_size": 500}])
@pytest.mark.parametrize("cut", [1, 10, 100, 120, 150])
def test_a_cut_file_is_an_invalid_image(compression, options, cut):
    data = encode(noise(64, 64), "TIFF", compression=compression, **options)
    with pytest.raises(InvalidImage):
        decoded(data[:-cut])


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("planar", [1, 2])
@pytest.mark.parametrize("cut", [1, 10, WIDTH * 3 * 5])
def test_a_cut_file_whose_directory_comes_first_is_an_invalid_image(endian, planar, cut):
    with pytest.raises(InvalidImage):
        decoded(written(endian, True, planar)[:-cut])


@pytest.mark.parametrize("endian", "<>")
@pytest.mark.parametrize("planar", [1, 2])
@pytest.mark.parametrize("directory_first", [True, False])
@pytest.mark.parametrize("counted", [None, 0, 7, WIDTH * 3 * 5, 9999])
def test_uncompressed_strips_are_whole_whatever_they_say_of_their_length(
    endian, planar, directory_first, counted
):
    data = written(endian, directory_first, planar, counted)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(data))), SAMPLES)
    np.testing.assert_array_equal(decoded(data), SAMPLES)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("big", [False, True])
def test_a_bare_file_keeps_its_length_and_all_bytes_but_its_directory(compression, big):
    pages = [noise(3, 3)]
    data = encode(
        noise(9, 9), "TIFF", compression=compression, big_tiff=big, save_all=True, append_images=pages
    )
    plain = bare(data)
    image = Image.open(io.BytesIO(data))
    start = image.tag_v2.offset
    end = start + (8 + 20 * len(image.tag_v2) + 8 if big else 2 + 12 * len(image.tag_v2) + 4)
    assert (plain[:start], plain[end:]) == (data[:start], data[end:])
    assert Image.open(io.BytesIO(plain)).n_frames == 1


def test_a_width_of_eight_bytes_that_lie_inside_the_directory_is_read():
    data = bytearray(written("<", True))
    width, gap = 10, 8 + 2 + 12 * 9  # the first entry, and the last, which is given up
    data[gap + 4 : gap + 12] = struct.pack("<Q", WIDTH)
    struct.pack_into("<H", data, gap, 65000)
    struct.pack_into("<HHLL", data, width, 256, 16, 1, gap + 4)
    np.testing.assert_array_equal(decoded(bytes(data)), SAMPLES)
