"""Encoded bytes to tensors, bit-equal to the reference of each declared parity, through the whole pipeline.

Cells: JPEG and PNG, six odd sizes, enlarged and reduced, three parities, two families, three dtypes.
"""

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from patchloom_kernels import backend
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import (
    Conversation,
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

from bench.checkpoints import build_checkpoint
from tests.support.pictures import encode, noise
from tests.support.pillow12 import pillow12_home
from tests.support.tokenizers import CACHE

SIZES = [(37, 53), (61, 29), (101, 67), (45, 131), (149, 83), (211, 35)]
BOUNDS = {"up": (40_000, 90_000), "down": (1_024, 3_200)}
FAMILIES = ("qwen2_5_vl", "qwen3_vl")
FORMS = {"JPEG": {"quality": 88}, "PNG": {}}
PARITIES = ("aten_u8", "pillow12", "pillow13")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CASES = [(form, size, way) for form in FORMS for size in SIZES for way in BOUNDS]


def picture(form, size):
    return encode(noise(*size, seed=size[0]), form, **FORMS[form])


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    directory = build_checkpoint(request.param, tmp_path_factory.mktemp("model"), cache_dir=CACHE)
    model = load_model(str(directory), Config(), "m")
    settings = json.loads((directory / "preprocessor_config.json").read_text())
    preprocessor = Preprocessor(Config(device="cpu"), {"m": model}, backend.select("cpu"))
    yield preprocessor, settings
    preprocessor.close()


def ours(preprocessor, parity, dtype, form, size, way):
    low, high = BOUNDS[way]
    part = ImagePart(MediaSource(SourceKind.DATA, picture(form, size)), ImageOptions(None, low, high))
    request = Request(
        "m",
        Conversation((Message(Role.USER, (part,)),)),
        output=OutputOptions(parity=parity, dtype=dtype),
    )
    result = asyncio.run(preprocessor.preprocess(request))
    return result.tensors["pixel_values"].array, result.tensors["image_grid_thw"].array


def pil_reference(settings, folder, home):
    """The PIL backend's output of all cases, under the Pillow in `home`, or the installed one."""
    cases = []
    for form, size, way in CASES:
        path = folder / f"{form}-{size[0]}.bin"
        path.write_bytes(picture(form, size))
        low, high = BOUNDS[way]
        own = {k: v for k, v in settings.items() if k not in ("size", "min_pixels", "max_pixels")}
        own["size"] = {"shortest_edge": low, "longest_edge": high}
        cases.append({"file": str(path), "settings": own})
    (folder / "cases.json").write_text(json.dumps(cases))
    program = Path(__file__).resolve().parents[1] / "support" / "hf_pil.py"
    environment = {**os.environ, "PYTHONPATH": str(home)} if home else dict(os.environ)
    command = [sys.executable, "-P", str(program), str(folder / "cases.json"), str(folder / "out.npz")]
    subprocess.run(command, check=True, env=environment, capture_output=True)
    found = np.load(folder / "out.npz")
    return [(found[f"p{i}"], found[f"g{i}"]) for i in range(len(CASES))]


def torch_reference(settings, form, size, way, grid):
    """What the torchvision backend does on a CPU: uint8 antialiased resize, fused normalise, patches."""
    image = torch.from_numpy(np.asarray(Image.open(io.BytesIO(picture(form, size))).convert("RGB")).copy())
    p, m = settings["patch_size"], settings["merge_size"]
    _, down, across = grid
    pixels = image.permute(2, 0, 1)[None]
    if tuple(pixels.shape[2:]) != (down * p, across * p):
        pixels = torch.nn.functional.interpolate(
            pixels, (down * p, across * p), mode="bicubic", antialias=True, align_corners=False
        )
    mean = torch.tensor(settings["image_mean"]) * (1 / settings["rescale_factor"])
    std = torch.tensor(settings["image_std"]) * (1 / settings["rescale_factor"])
    values = (pixels[0].float() - mean[:, None, None]) / std[:, None, None]
    blocks = values.reshape(3, down // m, m, p, across // m, m, p).permute(1, 4, 2, 5, 0, 3, 6)
    doubled = blocks.unsqueeze(5).expand(-1, -1, -1, -1, -1, 2, -1, -1)
    return doubled.reshape(down * across, -1)


def bits(values, dtype):
    """The values rounded to `dtype` by torch, as an integer array."""
    rounded = torch.from_numpy(np.ascontiguousarray(values)).to(DTYPES[dtype])
    return rounded.view(torch.int32 if dtype == "float32" else torch.int16).numpy()


def compare(preprocessor, parity, expected):
    for (form, size, way), (values, grid) in zip(CASES, expected, strict=True):
        for dtype in DTYPES:
            pixels, grids = ours(preprocessor, parity, dtype, form, size, way)
            assert grids.tolist() == np.asarray(grid).tolist(), (form, size, way)
            got = pixels.view(np.int32 if dtype == "float32" else np.int16)
            assert np.array_equal(got, bits(values, dtype)), (form, size, way, dtype)


def test_pillow13_equals_the_pil_backend_under_the_installed_pillow(served, tmp_path):
    preprocessor, settings = served
    compare(preprocessor, "pillow13", pil_reference(settings, tmp_path, None))


def test_pillow12_equals_the_pil_backend_under_pillow_12(served, tmp_path):
    preprocessor, settings = served
    compare(preprocessor, "pillow12", pil_reference(settings, tmp_path, pillow12_home()))


def test_aten_u8_equals_torch_as_the_torchvision_backend_calls_it(served, tmp_path):
    preprocessor, settings = served
    settings = {"rescale_factor": 1 / 255, "merge_size": 2, **settings}
    expected = []
    for form, size, way in CASES:
        grid = ours(preprocessor, "aten_u8", "float32", form, size, way)[1]
        expected.append((torch_reference(settings, form, size, way, grid[0]).numpy(), grid))
    compare(preprocessor, "aten_u8", expected)


def test_the_parities_differ_on_these_pictures(served):
    preprocessor, _ = served
    found = {p: ours(preprocessor, p, "float32", "PNG", (211, 35), "down")[0].tobytes() for p in PARITIES}
    assert len(set(found.values())) == 3
