"""Pillow 12.3.0 beside the installed one, as an oracle in its own process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.pillow12 import VERSION, pillow12_home

Case = tuple[np.ndarray, tuple[int, int], str]

PROGRAM = """
import sys
import numpy as np
import PIL
from PIL import Image
assert PIL.__version__ == sys.argv[1], PIL.__version__
cases = np.load(sys.argv[2])
results = {}
for name in cases.files:
    index, height, width, resample = name.split(",")
    filter = Image.Resampling[resample.upper()]
    image = Image.fromarray(cases[name]).resize((int(width), int(height)), filter)
    results[index] = np.asarray(image)
np.savez(sys.argv[3], **results)
"""


@pytest.fixture
def pillow12_resize(tmp_path: Path) -> Callable[[list[Case]], list[np.ndarray]]:
    """Resize (image, target, resample) cases with Pillow 12.3.0."""

    def run(cases: list[Case]) -> list[np.ndarray]:
        names = {
            f"{i},{target[0]},{target[1]},{resample}": image
            for i, (image, target, resample) in enumerate(cases)
        }
        np.savez(tmp_path / "in.npz", **names)
        command = [sys.executable, "-c", PROGRAM, VERSION, "in.npz", "out.npz"]
        environment = os.environ | {"PYTHONPATH": str(pillow12_home())}
        subprocess.run(command, check=True, cwd=tmp_path, env=environment)
        results = np.load(tmp_path / "out.npz")
        return [results[str(i)] for i in range(len(cases))]

    return run
