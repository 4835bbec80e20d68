"""The device pipeline in Triton's interpreter: the tensors of the CPU, whatever the files, whoever asks."""

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from bench.checkpoints import build_checkpoint
from tests.support.pictures import encode, noise, without_some_bytes
from tests.support.tokenizers import CACHE

PROGRAM = """
import sys
from tests.support.device_runs import {check}
{check}(sys.argv[1:])
print("done")
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return build_checkpoint("qwen2_5_vl", tmp_path_factory.mktemp("device") / "model", cache_dir=CACHE)


def interpreted(check, *arguments):
    """Run a check of device_runs in a process whose Triton interprets; the check asserts."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(check=check), *map(str, arguments)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "done", done.stderr[-3000:]


def rotated(image):
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode(image, "JPEG", quality=90, exif=exif)


def mixed():
    alpha = np.dstack([np.asarray(noise(29, 31, 5)), np.asarray(noise(29, 31, 6))[..., 0]])
    return {
        "420.jpg": encode(noise(33, 47, 1), "JPEG", quality=85, subsampling=2),
        "444.jpg": encode(noise(30, 41, 2), "JPEG", quality=90, subsampling=0),
        "gray.jpg": encode(noise(28, 35, 3).convert("L"), "JPEG", quality=75),
        "rgb.png": encode(noise(31, 37, 4)),
        "rgba.png": encode(Image.fromarray(alpha)),
        "lossy.webp": encode(noise(34, 33, 7), "WEBP"),
        "progressive.jpg": encode(noise(32, 39, 8), "JPEG", progressive=True),
        "rotated.jpg": rotated(noise(29, 45, 9)),
        "damaged.jpg": without_some_bytes(encode(noise(36, 44, 10), "JPEG", quality=85)),
    }


def test_a_shared_batch_of_all_kinds_of_files_gives_the_tensors_of_the_cpu(checkpoint, tmp_path):
    for name, data in mixed().items():
        (tmp_path / name).write_bytes(data)
    interpreted("equal_to_the_cpu", checkpoint, tmp_path)


def test_a_file_that_does_not_decode_fails_its_own_request_only(checkpoint):
    interpreted("one_bad_file", checkpoint)


def test_a_full_device_takes_smaller_batches_and_then_the_cpu(checkpoint):
    interpreted("full_device", checkpoint)


def test_kept_images_are_drawn_without_their_files(checkpoint):
    interpreted("kept_images", checkpoint)


def test_pictures_on_the_way_and_strided_places_are_those_of_the_cpu():
    interpreted("pieces_of_all_kinds")


def test_a_process_on_a_cpu_loads_no_device_code():
    code = (
        "import sys; from patchloom_kernels.backend import select;"
        "from patchloom_service.config import Config;"
        "from patchloom_service.preprocessor import Preprocessor;"
        "Preprocessor(Config(device='cpu'), {}, select('cpu')).close();"
        "device = {'patchloom_service.device', 'patchloom_kernels.patchify'};"
        "print(sorted(device & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
