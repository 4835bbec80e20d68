"""Pillow 12.3.0 beside the installed one, as an oracle in its own process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
VERSION = "12.3.0"
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


@pytest.fixture(scope="session")
def pillow12_home() -> Path:
    """A folder to put first on the path; installed once into the ignored cache."""
    home = ROOT / ".cache" / "pillow12"
    if not (home / f"pillow-{VERSION}.dist-info").exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        subprocess.run([*command, "--target", str(home), f"pillow=={VERSION}"], check=True)
    return home


@pytest.fixture
def pillow12_resize(pillow12_home: Path, tmp_path: Path) -> Callable[[list[Case]], list[np.ndarray]]:
    """Resize (image, target, resample) cases with Pillow 12.3.0."""

    def run(cases: list[Case]) -> list[np.ndarray]:
        names = {
            f"{i},{target[0]},{target[1]},{resample}": image
            for i, (image, target, resample) in enumerate(cases)
        }
        np.savez(tmp_path / "in.npz", **names)
        command = [sys.executable, "-c", PROGRAM, VERSION, "in.npz", "out.npz"]
        environment = os.environ | {"PYTHONPATH": str(pillow12_home)}
        subprocess.run(command, check=True, cwd=tmp_path, env=environment)
        results = np.load(tmp_path / "out.npz")
        return [results[str(i)] for i in range(len(cases))]

    return run
