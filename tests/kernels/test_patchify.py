"""The fused Triton kernel: bit-exact in the interpreter, compiled without spills, near the floor."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype
from patchloom_kernels.patchify import traffic

HERE = Path(__file__).parent
QWEN = PatchLayout((14, 14), merge=2, temporal=2)


def run_program(name: str) -> dict:
    """The JSON that a program beside this file prints, run with the paths of this process."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(HERE / name)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_interpreter_writes_the_bytes_of_the_reference() -> None:
    results = run_program("interpreted_patchify.py")
    assert len(results) == 10
    assert results == dict.fromkeys(results, 0)


def test_registers_and_spills_are_those_of_the_committed_table() -> None:
    committed = json.loads((HERE / "resources.json").read_text())
    compiled = run_program("compiled_patchify.py")
    assert {row["spills"] for name, row in compiled["kernels"].items() if "sm_90" in name} == {0}
    if compiled["triton"] != committed["triton"]:
        pytest.skip(f"the table is of triton {committed['triton']}, this is {compiled['triton']}")
    assert compiled == committed
    assert {row["spills"] for row in compiled["kernels"].values()} == {0}


def test_a_1080p_image_moves_little_more_than_the_floor() -> None:
    piece = Piece((1080, 1920), (1092, 1932), (1092, 1932), QWEN)
    for parity in Parity:
        counted = traffic([Job.contiguous(0, piece, 0)], [3], Dtype.BFLOAT16, parity)
        assert counted.source_bytes == 1080 * 1920 * 3
        assert counted.output_bytes == 10764 * 1176 * 2
        assert counted.over_floor < 1.1


@pytest.mark.parametrize(
    ("source", "target"),
    [((2400, 1080), (1876, 840)), ((2160, 3840), (756, 1344)), ((3024, 4032), (1176, 1568)),
     ((480, 640), (476, 644)), ((224, 224), (1008, 1008))],
)  # fmt: skip
def test_common_sizes_stay_within_a_quarter_of_the_floor(
    source: tuple[int, int], target: tuple[int, int]
) -> None:
    piece = Piece(source, target, target, QWEN)
    counted = traffic([Job.contiguous(0, piece, 0)], [3], Dtype.BFLOAT16, Parity.PILLOW13)
    assert counted.over_floor < 1.25


def test_traffic_of_one_tile_is_counted_by_hand() -> None:
    piece = Piece((8, 8), (4, 8), (4, 8), PatchLayout((4, 8)))
    counted = traffic([Job.contiguous(0, piece, 0)], [4], Dtype.FLOAT32, Parity.PILLOW13)
    assert counted.source_bytes == counted.read_bytes == 8 * 8 * 4
    assert counted.output_bytes == 4 * 8 * 3 * 4
    assert counted.scratch_bytes == 4 * (32 + 32)
    # halving by bicubic takes 7 taps once zero weights are cut off
    assert counted.multiply_adds == 3 * (32 * 7 + 32)
