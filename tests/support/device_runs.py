"""What the device tests check, in functions that run in a process whose Triton interprets."""

import asyncio
import io
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from patchloom_kernels import backend, reference
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable
from patchloom_service import batching
from patchloom_service.config import Config
from patchloom_service.device import DeviceImage, DevicePipeline
from patchloom_service.device_source import read_source
from patchloom_service.errors import InvalidImage
from patchloom_service.loading import load_model
from patchloom_service.media.decode import decode
from patchloom_service.media.probe import probe
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import (
    Conversation,
    Encoding,
    ImageOptions,
    ImagePart,
    MediaSource,
    Message,
    OutputOptions,
    Request,
    Role,
    SourceKind,
)
from PIL import Image

from tests.support.pictures import encode, noise, without_some_bytes

# Fills what torch.empty returns, so that a read of unwritten memory shows.
torch.use_deterministic_algorithms(True)
SMALL = ImageOptions(None, 784, 3136)
PATIENT = {"batch_wait": 0.5}


def request(files, **output):
    parts = tuple(ImagePart(MediaSource(SourceKind.DATA, data), SMALL) for data in files)
    return Request("m", Conversation((Message(Role.USER, parts),)), output=OutputOptions(**output))


def served(directory, device, **settings):
    config = Config(device=device, **settings)
    return Preprocessor(config, {"m": load_model(str(directory), config, "m")}, backend.select(device))


def answers(preprocessor, requests):
    """The results, or the errors, of requests that run at the same time."""

    async def run():
        return await asyncio.gather(*map(preprocessor.preprocess, requests), return_exceptions=True)

    return asyncio.run(run())


def check_equal(found, expected):
    assert not isinstance(found, BaseException), found
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert tensor.dtype == found.tensors[name].dtype
        assert np.array_equal(tensor.array, found.tensors[name].array), name


def count(preprocessor, name):
    return preprocessor.gauges()[f"patchloom_device_{name}_total"]


def equal_to_the_cpu(arguments):
    model, directory = arguments
    files = [path.read_bytes() for path in sorted(Path(directory).iterdir())]
    requests = [
        request(files[:4], dtype="float32"),
        request(files[4:], dtype="bfloat16", parity="pillow13"),
        request(files[3:5], encoding=Encoding.UINT8),
    ]
    device, cpu = served(model, "interpreter", **PATIENT), served(model, "cpu")
    for found, expected in zip(answers(device, requests), answers(cpu, requests), strict=True):
        check_equal(found, expected)
    assert (count(device, "batches"), count(device, "flagged")) == (2, 1)  # the flagged one again
    assert count(device, "images") == 4 + len(files[4:]) + 2 + 1
    device.close()


def one_bad_file(arguments):
    (model,) = arguments
    good, bad = encode(noise(30, 30)), without_some_bytes(encode(noise(41, 30), "JPEG"))
    requests = [request([good]), request([good, bad]), request([good])]
    # what Pillow refuses only after the device has flagged it
    batching.decode = partial(_refuse, decode)
    device = served(model, "interpreter", **PATIENT)
    first, second, third = answers(device, requests)
    check_equal(third, first)
    assert [error.field_path for error in _errors(second)] == ["messages[0].content[1]"]
    assert (count(device, "flagged"), count(device, "batches")) == (1, 1)
    device.close()


def _refuse(truth, data, header, *rest):
    if data.startswith(b"\xff\xd8"):
        raise InvalidImage("the jpeg is damaged and does not decode")
    return truth(data, header, *rest)


def _errors(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _errors(part)]
    return [error]


def full_device(arguments):
    (model,) = arguments
    files = [encode(noise(30 + i, 33, i)) for i in range(3)]
    files.append(encode(noise(45, 40, 9), "JPEG"))
    device, cpu = served(model, "interpreter", **PATIENT), served(model, "cpu")
    (expected,) = answers(cpu, [request(files)])
    device._engine._device._allocate = partial(_within, 12 * 1176)  # 12 of 20 patches
    (found,) = answers(device, [request(files)])
    check_equal(found, expected)
    assert (count(device, "halved"), count(device, "batches"), count(device, "on_cpu")) == (1, 2, 0)
    device._engine._device._allocate = partial(_within, 0)
    (found,) = answers(device, [request([encode(noise(29, 31))])])
    (expected_alone,) = answers(cpu, [request([encode(noise(29, 31))])])
    check_equal(found, expected_alone)
    assert count(device, "on_cpu") == 1
    device.close()
    tiny = served(model, "interpreter", device_pool_bytes=1, **PATIENT)
    (found,) = answers(tiny, [request(files)])
    check_equal(found, expected)
    assert (count(tiny, "on_cpu"), count(tiny, "batches")) == (4, 0)
    tiny.close()


def _within(limit, elements, dtype):
    if elements > limit:
        raise torch.OutOfMemoryError("the test's device is full")
    return torch.empty(elements, dtype=dtype)


def kept_images(arguments):
    (model,) = arguments
    files = [encode(noise(30, 33, 1)), encode(noise(31, 33, 2), "JPEG"), encode(noise(32, 33, 3), "WEBP")]
    device = served(model, "interpreter")
    (first,) = answers(device, [request(files)])
    (again,) = answers(device, [request(files)])
    check_equal(again, first)
    keys = tuple(
        ImagePart(MediaSource(SourceKind.CONTENT_KEY, text=item.content_key)) for item in first.items
    )
    by_key = Request("m", Conversation((Message(Role.USER, keys),)))
    (third,) = answers(device, [by_key])
    check_equal(third, first)
    assert [r.counters.decodes for r in (first, again, third)] == [3, 0, 0]
    device.close()


def pieces_of_all_kinds(arguments):
    """Steps on the way and strided places, which few families have, against the reference."""
    assert not arguments
    step = Piece((20, 30), (15, 21), (16, 24), PatchLayout((16, 24)), offset=(0, 2), pad=(9, 8, 7))
    second = Piece((16, 24), (12, 12), (12, 12), PatchLayout((12, 12)))
    last = Piece((12, 12), (8, 8), (8, 8), PatchLayout((4, 4)), via=(step, second))
    plain = Piece((20, 30), (9, 11), (12, 12), PatchLayout((4, 4), temporal=2), pad=(256, 256, 256))
    table = NormalizeTable.build(NormalizeFormula.HF_PIL, [0.5] * 3, [0.25] * 3, 1 / 255)
    data = encode(noise(20, 30))
    header = probe(data, 1 << 20)
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    image = DeviceImage(
        ("", "key"),
        read_source(data, header, (255, 255, 255)),
        partial(decode, data, header),
        (255, 255, 255),
        (last, plain),
        table,
        Dtype.FLOAT16,
        Parity.PILLOW12,
    )
    twin = replace(image, result=Future())
    pipeline = DevicePipeline(Config(), interpreter=True)
    pipeline.run([image, twin])
    for made in (image, twin):
        drawn = made.result.result()
        assert np.array_equal(drawn.decoded.numpy(), pixels)
        check_pieces(drawn.patches, pixels, (last, plain), table)
    flat = np.zeros(9 * 96 + 7, np.float16)
    strides = PatchLayout((4, 4), temporal=2, columns="yxct").strides()
    job = Job(0, plain, 7, strides)
    expected = flat.copy()
    reference.resize_patchify([pixels], [job], table, expected, Dtype.FLOAT16, Parity.PILLOW12)
    batching._scatter([(flat, job)], [image.result.result().patches[1]])
    assert np.array_equal(flat, expected)
    pipeline.close()


def check_pieces(patches, pixels, pieces, table):
    for values, piece in zip(patches, pieces, strict=True):
        picture = pixels
        for step in piece.via:
            whole = replace(step, layout=PatchLayout(step.canvas, columns="tyxc"))
            canvas = np.empty((*step.canvas, 3), np.uint8)
            job = Job.contiguous(0, whole, 0)
            reference.resize_patchify(
                [picture], [job], None, canvas.reshape(-1), Dtype.UINT8, Parity.PILLOW12
            )
            picture = canvas
        expected = np.empty(values.size, np.float16)
        job = Job.contiguous(0, replace(piece, via=()), 0)
        reference.resize_patchify([picture], [job], table, expected, Dtype.FLOAT16, Parity.PILLOW12)
        assert np.array_equal(values, expected)
