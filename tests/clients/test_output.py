import numpy as np
import pytest
from patchloom_client.output import write_safetensors
from patchloom_client.tensors import Tensor
from safetensors.numpy import load_file


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int64", "int32", "bool"])
def test_a_tensor_file_is_read_by_safetensors(dtype, tmp_path):
    array = np.array([[0, 1, 1], [1, 0, 0]], dtype)
    write_safetensors(tmp_path / "out.safetensors", {"mask": Tensor("mask", dtype, array)})
    made = load_file(tmp_path / "out.safetensors")["mask"]
    assert made.dtype == array.dtype
    np.testing.assert_array_equal(made, array)
