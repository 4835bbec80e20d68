"""A backend is chosen once, and an unavailable one is refused in words."""

import numpy as np
import pytest
import torch
from patchloom_kernels import backend, reference
from patchloom_kernels.layout import Job, Parity, PatchLayout, Piece
from patchloom_kernels.normalize import Dtype, NormalizeFormula, NormalizeTable


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_backend_writes_the_bytes_of_the_reference(device: str) -> None:
    chosen = backend.select(device)
    chosen.warm([Dtype.BFLOAT16])
    piece = Piece((31, 17), (28, 56), (28, 56), PatchLayout((14, 14), merge=2, temporal=2))
    source = np.random.default_rng(0).integers(0, 256, (31, 17, 3)).astype(np.uint8)
    table = NormalizeTable.build(NormalizeFormula.HF_TORCHVISION, [0.5] * 3, [0.25] * 3)
    size = piece.rows * piece.layout.row_size()
    expected = np.empty(size, np.uint16)
    out = chosen.empty(size, Dtype.BFLOAT16)
    for run, target in ((reference.resize_patchify, expected), (chosen.resize_patchify, out)):
        jobs = [Job.contiguous(0, piece, 0)]
        run([source], jobs, table, target, Dtype.BFLOAT16, Parity.PILLOW13)
    got = out if isinstance(out, np.ndarray) else out.cpu().view(torch.int16).numpy()
    assert np.array_equal(got.view(np.uint16), expected)


def test_auto_is_the_cpu_where_torch_sees_no_device() -> None:
    assert backend.select("auto").name == ("cuda" if torch.cuda.is_available() else "cpu")


def test_an_unknown_device_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="device 'tpu' is unknown; use one of auto, cuda, cpu"):
        backend.select("tpu")


def test_a_missing_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="torch sees no CUDA device; use auto or cpu"):
        backend.select("cuda")
    with pytest.raises(ValueError, match="start the process with TRITON_INTERPRET=1"):
        backend.select("interpreter")
