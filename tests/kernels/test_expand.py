"""The expansion of levels: compiled code, Triton and plain numpy give the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_client.expand import expand_levels_numpy
from patchloom_kernels.cpu.expand import expand_levels

HERE = Path(__file__).parent


@settings(deadline=None)
@given(st.data())
def test_compiled_code_equals_numpy_for_every_order_of_axes(data):
    order = data.draw(st.permutations("ctyx"))
    sides = {"c": 3, **{axis: data.draw(st.integers(1, 5), axis) for axis in "tyx"}}
    sizes = tuple(sides[axis] for axis in order)
    rows = data.draw(st.integers(0, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    size = rows * int(np.prod(sizes)) // sides["t"]
    levels = rng.integers(0, 256, size, np.uint8)
    padding = rng.integers(0, 2, size).astype(np.bool_) if data.draw(st.booleans()) else None
    kind = data.draw(st.sampled_from([np.float32, np.float16, np.uint16]))
    entries = rng.integers(0, 9999, (3, 257)).astype(kind)
    outs = [np.full(size * sides["t"], 77, kind) for _ in range(2)]
    where = (sizes, order.index("c"), order.index("t"))
    expand_levels_numpy(levels, padding, entries, *where, outs[0])
    expand_levels(levels, padding, entries, *where, outs[1])
    np.testing.assert_array_equal(outs[1], outs[0])


def run(name, **environment):
    done = subprocess.run(
        [sys.executable, str(HERE / name)], capture_output=True, text=True, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_triton_in_the_interpreter_equals_numpy():
    assert run("interpreted_expand.py", TRITON_INTERPRET="1") == "8\n"


def test_the_kernel_compiles_for_sm_90_without_local_memory():
    rows = [json.loads(line) for line in run("compiled_expand.py").splitlines()]
    assert rows == [{"dtype": dtype, "cubin": True, "local": 0} for dtype in ("fp32", "bf16", "fp16")]


@pytest.mark.cuda
def test_triton_on_the_gpu_equals_numpy():
    from patchloom_kernels.expand import expand_levels as on_gpu

    rng = np.random.default_rng(1)
    sizes = (3, 2, 14, 14)
    levels = rng.integers(0, 256, 1000 * 588, np.uint8)
    entries = rng.standard_normal((3, 257)).astype(np.float32)
    expected = np.empty(2 * levels.size, np.float32)
    expand_levels_numpy(levels, None, entries, sizes, 0, 1, expected)
    out = torch.full((expected.size,), float("nan"), device="cuda")
    on_gpu(torch.from_numpy(levels).cuda(), None, torch.from_numpy(entries).cuda(), sizes, 0, 1, out)
    np.testing.assert_array_equal(out.cpu().numpy(), expected)
