"""The JPEG kernels compiled ahead of time: registers as in the committed table, no spills."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def test_registers_are_those_of_the_table_and_nothing_spills():
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.jpeg.compiled_jpeg"]
    printed = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    compiled = json.loads(printed.stdout)
    committed = json.loads((HERE / "resources.json").read_text())
    assert {name for name, row in compiled["kernels"].items() if row["spills"]} == set()
    assert compiled["kernels"].keys() == committed["kernels"].keys()
    if compiled["triton"] == committed["triton"]:
        assert compiled == committed
