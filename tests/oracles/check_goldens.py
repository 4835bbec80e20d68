"""The committed goldens are what the oracle environment gives; `make parity` runs this, not `make test`."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.oracles.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-oracles" / "bin" / "python"
GOLDEN = ROOT / "tests" / "data" / "golden"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden")
    command = [str(PYTHON), "-m", "tests.oracles.generate", "--out", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    return folder


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", FAMILIES)
def test_the_committed_golden_is_fresh(name, fresh):
    committed, made = (json.loads((folder / f"{name}.json").read_text()) for folder in (GOLDEN, fresh))
    assert made == committed


def test_the_committed_golden_of_audio_is_fresh(tmp_path):
    command = [str(PYTHON), "-m", "tests.oracles.generate_audio", "--out", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    committed, made = (folder / "inkling.json" for folder in (GOLDEN.parent / "golden_audio", tmp_path))
    assert json.loads(made.read_text()) == json.loads(committed.read_text())
