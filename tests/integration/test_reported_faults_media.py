"""Public fault reports about pixels, limits and sources: the right value of each, through the pipeline.

The report stands behind each test's name.
"""

import base64
import io
import socket
import struct
import zlib

import numpy as np
import patchloom_client.errors as client
import pytest
from patchloom_service import errors
from PIL import Image

from bench.checkpoints import build_checkpoint
from tests.support.dialects import Picture
from tests.support.pictures import encode, noise
from tests.support.pipeline import Pipeline, Served, write_checkpoint
from tests.support.tokenizers import CACHE


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """Qwen2.5-VL with bounds of 3136 and 12845056 pixels."""
    with Pipeline(write_checkpoint(Served("qwen", "qwen2_5_vl"), tmp_path_factory.mktemp("qwen"))) as made:
        yield made


def uri(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asking(*urls):
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": content}]}


def run(pipeline, *files, **options):
    return pipeline.run(asking(*map(uri, files)), **options)


def picture_of(response, index=0):
    """An item's resized picture, uint8 [height, width, 3], put together from its patches."""
    grid = response.items[index].grid.shape
    patches = response.item_tensors(index)["pixel_values"].array
    side = int((patches.shape[1] // 3) ** 0.5)
    _, down, across = grid
    blocks = patches.reshape(down // 2, across // 2, 2, 2, 3, side, side)
    return blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(down * side, across * side, 3)


def colours(response, index=0):
    return np.unique(picture_of(response, index).reshape(-1, 3), axis=0).tolist()


@pytest.mark.parametrize(
    ("pixel", "seen"), [((255, 0, 0, 128), [255, 127, 127]), ((0, 0, 0, 0), [255, 255, 255])]
)
def test_alpha_is_composited_on_white(qwen, pixel, seen):  # vllm-project/vllm#18508
    assert colours(run(qwen, encode(Image.new("RGBA", (1, 1), pixel)))) == [seen]


def test_a_grey_jpeg_has_three_equal_channels_alone_and_among_others(qwen):  # sgl-project/sglang#28828
    grey = encode(noise(384, 640, 1).convert("L"), "JPEG")
    alone = picture_of(run(qwen, grey))
    mixed = picture_of(run(qwen, grey, encode(noise(384, 640, 2), "JPEG")))
    assert np.array_equal(alone, mixed)
    assert (alone == alone[..., :1]).all()


def test_exif_orientation_turns_the_picture(qwen):  # sgl-project/sglang#33449
    image = Image.new("RGB", (640, 480), (255, 255, 255))
    image.paste((255, 0, 0), (0, 0, 120, 480))
    image.paste((0, 255, 0), (120, 360, 640, 480))
    exif = Image.Exif()
    exif[0x0112] = 6
    response = run(qwen, encode(image, "JPEG", quality=95, exif=exif))
    item = response.items[0]
    assert (item.size.height, item.size.width) == (640, 480)
    assert tuple(item.grid.shape) == (1, 46, 34)
    seen = picture_of(response)
    height, width = seen.shape[:2]
    assert np.abs(seen[height // 12, width // 2].astype(int) - (255, 0, 0)).max() < 12
    assert np.abs(seen[height // 2, width // 12].astype(int) - (0, 255, 0)).max() < 12


def test_malformed_exif_leaves_the_picture_as_it_is(qwen):  # vllm-project/vllm#56527
    plain = encode(noise(60, 90), "JPEG")
    junk = b"Exif\0\0" + bytes(range(200, 212))
    bad = plain[:2] + b"\xff\xe1" + struct.pack(">H", len(junk) + 2) + junk + plain[2:]
    first, again = run(qwen, bad), run(qwen, bad)
    assert np.array_equal(picture_of(first), picture_of(run(qwen, plain)))
    assert first.items[0].content_key == again.items[0].content_key


def test_an_animation_is_its_first_frame(qwen):  # meme-search#191
    red, green, blue = (Image.new("RGB", (56, 56), c) for c in ((255, 0, 0), (0, 255, 0), (0, 0, 255)))
    response = run(qwen, encode(red, "GIF", save_all=True, append_images=[green, blue]))
    assert len(response.items) == 1
    assert colours(response) == [[255, 0, 0]]


def test_a_cmyk_jpeg_with_the_adobe_marker_is_red(qwen):  # pytorch/vision#6538
    data = encode(Image.new("CMYK", (56, 56), (0, 255, 255, 0)), "JPEG", quality=100)
    wanted = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))[0, 0].tolist()
    assert colours(run(qwen, data)) == [wanted]
    assert np.abs(np.subtract(wanted, (255, 0, 0))).max() <= 1


def test_png_and_jpeg_differ_in_nothing_later(qwen):  # sgl-project/sglang#24699
    image = Image.new("RGB", (84, 56), (128, 128, 128))
    response = run(qwen, encode(image), encode(image, "JPEG", quality=100))
    one, two = (response.item_tensors(index)["pixel_values"] for index in range(2))
    assert (one.dtype, one.shape) == (two.dtype, two.shape)
    assert np.array_equal(one.array, two.array)


@pytest.mark.parametrize(
    ("width", "height", "resized", "tokens"),
    [
        (332, 27, (28, 336), 12),  # vllm-project/vllm#21109
        (500, 19, (28, 504), 18),
        (257, 27, (28, 252), 9),
        (28, 26, (56, 84), 6),
        (1, 1, (56, 56), 4),  # vllm-project/vllm#8954
        (200, 1, (28, 812), 29),
        (1024, 484, (476, 1036), 629),  # ggml-org/llama.cpp#17534
    ],
)
def test_odd_sizes_have_the_size_and_count_of_the_processor(qwen, width, height, resized, tokens):
    response = run(qwen, Picture(height, width, (9, 90, 200)).data)
    item = response.items[0]
    assert (item.resized.height, item.resized.width) == resized
    assert item.token_count == tokens
    assert tuple(item.grid.shape) == (1, resized[0] // 14, resized[1] // 14)
    assert colours(response) == [[9, 90, 200]]


def test_floats_of_particular_sizes_are_finite(qwen):  # ggml-org/llama.cpp#17534
    response = run(qwen, encode(noise(484, 1024)), encoding="model")
    assert np.isfinite(response.tensors["pixel_values"].array).all()


def test_sides_under_the_factor_of_qwen3_vl(tmp_path):  # ollama/ollama#13113
    with Pipeline(write_checkpoint(Served("qwen3", "qwen3_vl"), tmp_path)) as pipeline:
        item = run(pipeline, Picture(30, 305, (9, 90, 200)).data).items[0]
    assert (item.resized.width, item.resized.height, item.token_count) == (832, 96, 78)


def test_an_aspect_ratio_over_200_is_refused_by_its_ratio(qwen):
    with pytest.raises(errors.SizeRefused, match="201") as error:
        run(qwen, Picture(1, 201, (1, 2, 3)).data)
    assert error.value.field_path == "messages[0].content[0]"


def test_a_huge_header_is_refused_before_decoding(qwen):  # sgl-project/sglang#28587
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 12000, 12000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(errors.LimitExceeded, match=r"144000000.*64000000"):
        qwen.run(asking(uri(data)), count=True)


def test_a_truncated_image_fails_its_own_request_only(qwen):  # vllm-project/vllm#38253
    cut = encode(noise(64, 64), "JPEG")[:-128]
    with pytest.raises(errors.InvalidImage) as error:
        run(qwen, encode(noise(56, 56)), cut)
    assert error.value.field_path == "messages[0].content[1]"
    assert len(run(qwen, encode(noise(56, 56))).items) == 1


def test_bytes_decide_the_format(qwen):  # anthropics/claude-code-action#1280
    data = encode(Image.new("RGB", (56, 56), (128, 128, 128)), "JPEG")
    assert colours(run(qwen, data)) == [[128, 128, 128]]


@pytest.mark.parametrize(
    "url", [uri(b"\x01\x02garbage" * 230_000), "data:image/png;base64," + "!" * 2_000_000]
)
def test_an_error_shows_no_payload(qwen, url):  # vllm-project/vllm#46631
    with pytest.raises((errors.InvalidImage, client.InvalidImage)) as error:
        qwen.run(asking(url))
    assert len(str(error.value)) <= 1024
    assert " at 0x" not in str(error.value)
    assert url[30:94] not in str(error.value)


PNG = Picture(56, 56, (10, 20, 30)).data
BASE64 = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    "url",
    [
        f"data:image/png;charset=utf-8;base64,{BASE64}",  # vllm-project/vllm#48973
        f"DATA:image/png;base64,{BASE64}",  # Helicone#4223
        f"data:image/png;BASE64,{BASE64}",
        f"data:image/png;base64,{BASE64.rstrip('=')}",  # openedai-vision#4
    ],
)
def test_data_uris_of_every_spelling_give_the_same_bytes(qwen, url):
    assert qwen.run(asking(url)).items[0].content_key == run(qwen, PNG).items[0].content_key


@pytest.mark.parametrize("url", [f"data:image/png;base64, {BASE64}", f"data:image/png;base64{BASE64}"])
def test_malformed_data_uris_are_refused(qwen, url):  # Helicone#4223
    with pytest.raises(client.InvalidArgument) as error:
        qwen.run(asking(url))
    assert error.value.status == "INVALID_ARGUMENT"


def test_hosts_that_are_not_public_are_never_asked(tmp_path):  # vllm-project/vllm#57157
    directory = write_checkpoint(Served("qwen", "qwen2_5_vl"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]
        urls = [
            f"http://127.0.0.1:{port}/x.png",
            f"https://127.0.0.1:{port}/x.png",
            "http://169.254.169.254/",
        ]
        for hosts in ((), ("127.0.0.1", "169.254.169.254")):
            with Pipeline(directory, allow_fetch=hosts, fetch_timeout=2.0) as pipeline:
                for url in urls:
                    with pytest.raises((errors.PatchloomError, client.PatchloomError)) as error:
                        pipeline.run(asking(url))
                    assert error.value.reason in ("FETCH_DISABLED", "ADDRESS_REFUSED", "UNSUPPORTED_CONTENT")
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("url", ["/etc/hostname", "/tmp/secret.png", "file:///tmp/secret.png", "secret.png"])
def test_a_path_is_never_opened(qwen, url):  # lm-sys/FastChat#3873
    with pytest.raises(client.InvalidArgument) as error:
        qwen.run(asking(url))
    assert error.value.field_path.startswith("messages[0].content[0]")


def test_a_repeated_request_decodes_nothing(qwen):  # vllm-project/vllm#22825
    files = [encode(noise(200, 300, seed)) for seed in range(8)]
    assert run(qwen, *files).message.counters.decodes == 8
    assert run(qwen, *files).message.counters.decodes == 0


def keys(pipeline, *files):
    return {item.content_key for item in run(pipeline, *files).items}


def test_the_same_bytes_in_another_shape_have_another_key(qwen):  # CVE-2025-46722
    pixels = np.arange(72, dtype=np.uint8)
    files = [encode(Image.fromarray(pixels.reshape(shape))) for shape in ((4, 6, 3), (6, 4, 3))]
    assert len(keys(qwen, *files)) == 2


def test_palette_and_mode_are_part_of_the_key(qwen):  # vllm-project/vllm#24969
    def indexed(colour):
        image = Image.new("P", (56, 56), 0)
        image.putpalette(list(colour) * 256)
        return encode(image)

    files = [indexed((255, 0, 0)), indexed((0, 0, 255))]
    assert len(keys(qwen, *files)) == 2
    response = run(qwen, *files)
    assert [colours(response, index) for index in range(2)] == [[[255, 0, 0]], [[0, 0, 255]]]
    grey, palette = Image.new("L", (56, 56), 7), Image.new("P", (56, 56), 7)
    palette.putpalette([9] * 768)
    assert len(keys(qwen, encode(grey), encode(palette))) == 2


def test_equal_ids_of_two_images_come_with_different_keys(qwen):  # LMCache#4086
    red, blue = (run(qwen, Picture(56, 56, c).data) for c in ((255, 0, 0), (0, 0, 255)))
    assert red.token_ids == blue.token_ids
    assert len(bytes.fromhex(red.items[0].content_key)) == 32
    assert red.items[0].content_key != blue.items[0].content_key


@pytest.mark.parametrize("parity", ["aten_u8", "pillow12", "pillow13"])
def test_a_checkerboard_is_antialiased(tmp_path, parity):  # pytorch/vision#2950
    settings = {
        "patch_size": 2,
        "min_pixels": 64,
        "max_pixels": 64,
        "size": {"shortest_edge": 64, "longest_edge": 64},
    }
    directory = build_checkpoint("qwen2_5_vl", tmp_path, image_processor=settings, cache_dir=CACHE)
    board = np.indices((64, 64)).sum(0) % 2 * 255
    with Pipeline(directory) as pipeline:
        response = run(pipeline, encode(Image.fromarray(board.astype(np.uint8))), parity=parity)
    seen = picture_of(response)
    assert seen.shape == (8, 8, 3)
    assert set(np.unique(seen)) <= {127, 128}


def test_many_images_come_back_in_the_order_they_were_sent(qwen):  # sgl-project/sglang#33409
    pictures = [Picture(1400 if n < 2 else 28 + n, 28 + n, (n + 1, n + 1, n + 1)) for n in range(64)]
    response = run(qwen, *(one.data for one in pictures))
    assert [colours(response, n) for n in range(64)] == [[list(one.colour)] for one in pictures]
    assert [item.size.height for item in response.items] == [one.height for one in pictures]


def test_tiles_are_counted_by_the_plan_that_cuts_them(tmp_path):  # vllm-project/vllm#7996
    with Pipeline(write_checkpoint(Served("internvl", "internvl_chat"), tmp_path)) as pipeline:
        response = run(pipeline, Picture(896, 1344, (9, 90, 200)).data)
    assert response.items[0].token_count == 7 * 256 == 1792
    assert response.tensors["pixel_values"].shape[0] == 7
