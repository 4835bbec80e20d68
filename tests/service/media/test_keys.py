import hashlib
import io

import pytest
from patchloom_service.media.keys import Keyed, content_keys
from patchloom_service.types import Detail, ImageOptions
from PIL import Image

FIELDS = {
    "namespace": "team",
    "encoded": b"abc",
    "policy": "p",
    "fingerprint": "f",
    "options": (ImageOptions(), (1, 2)),
    "dtype": "float32",
}


def key(**changes):
    return content_keys([Keyed(**{**FIELDS, **changes})])[0]


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def test_a_key_is_the_sha256_of_the_framed_fields():
    options = b'[{"detail":null,"max_pixels":null,"min_pixels":null},[1,2]]'
    framed = b"".join(
        len(field).to_bytes(8, "big") + field for field in (b"team", b"p", b"f", options, b"float32", b"abc")
    )
    assert key() == hashlib.sha256(framed).hexdigest()


def test_several_items_have_the_keys_that_each_has_alone():
    sizes = [0, 1, 63, 64, 65, 5000, 200_000, 3]
    items = [Keyed(**{**FIELDS, "encoded": bytes(size), "policy": "p" * size}) for size in sizes]
    assert content_keys(items) == [content_keys([item])[0] for item in items]
    assert content_keys([]) == []


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"encoded": b"abd"},
        {"policy": "q"},
        {"fingerprint": "g"},
        {"options": (ImageOptions(detail=Detail.HIGH), (1, 2))},
        {"options": (ImageOptions(max_pixels=1), (1, 2))},
        {"options": (ImageOptions(min_pixels=1), (1, 2))},
        {"options": (ImageOptions(), (2, 1))},
        {"options": ()},
        {"dtype": "bfloat16"},
        {"policy": "pf", "fingerprint": ""},
    ],
)
def test_every_field_changes_the_key(change):
    assert key(**change) != key()


@pytest.mark.parametrize(("one", "other"), [((6, 4), (4, 6)), ((30, 100), (100, 30))])
def test_the_same_bytes_in_another_shape_have_another_key(one, other):
    raw = bytes(i % 251 for i in range(one[0] * one[1] * 3))
    pictures = [png(Image.frombytes("RGB", size, raw)) for size in (one, other)]
    assert key(encoded=pictures[0]) != key(encoded=pictures[1])


def test_palette_and_mode_are_part_of_the_picture():
    red, blue = Image.new("P", (2, 2), 0), Image.new("P", (2, 2), 0)
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    assert key(encoded=png(red)) != key(encoded=png(blue))
    gray, index = Image.new("L", (2, 2), 7), Image.new("P", (2, 2), 7)
    assert key(encoded=png(gray)) != key(encoded=png(index))
