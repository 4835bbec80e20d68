"""The whole pipeline with the Triton kernels in their interpreter: the same tensors as on the CPU."""

import os
import subprocess
import sys

from bench.checkpoints import build_checkpoint
from tests.support.pictures import encode, noise
from tests.support.tokenizers import CACHE

PROGRAM = """
import asyncio, sys
from pathlib import Path
import numpy as np
from patchloom_kernels import backend
from patchloom_service.config import Config
from patchloom_service.loading import load_model
from patchloom_service.preprocessor import Preprocessor
from patchloom_service.types import *

model = load_model(sys.argv[1], Config(), "m")
options = ImageOptions(None, 784, 6272)
files = [Path(name).read_bytes() for name in sys.argv[2:]]
parts = tuple(ImagePart(MediaSource(SourceKind.DATA, data), options) for data in files)
prompt = Conversation((Message(Role.USER, parts),))

def run(device, **output):
    preprocessor = Preprocessor(Config(device=device), {"m": model}, backend.select(device))
    result = asyncio.run(preprocessor.preprocess(Request("m", prompt, output=OutputOptions(**output))))
    preprocessor.close()
    return result.tensors

cases = ({"dtype": "float32"}, {"dtype": "bfloat16", "parity": "pillow13"}, {"encoding": Encoding.UINT8})
for output in cases:
    expected, found = run("cpu", **output), run("interpreter", **output)
    assert expected.keys() == found.keys()
    for name in expected:
        assert np.array_equal(expected[name].array, found[name].array), (output, name)
print("equal")
"""


def test_the_interpreter_gives_the_tensors_of_the_cpu(tmp_path):
    directory = build_checkpoint("qwen2_5_vl", tmp_path / "model", cache_dir=CACHE)
    files = []
    for index, size in enumerate([(41, 67), (90, 33)]):
        files.append(tmp_path / f"{index}.png")
        files[-1].write_bytes(encode(noise(*size, seed=index)))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), *map(str, files)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
