import numpy as np
import pytest
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.result import Expansion, Result, Tensor
from patchloom_service.wire import serialize_response, write_response


def result(**tensors):
    return Result(
        model="m",
        ids=np.arange(5, dtype=np.int32),
        items=(),
        fingerprint="f",
        tensors={name: Tensor(*value) for name, value in tensors.items()},
    )


def large(rows, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, 1176)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 13, 14, 100])
def test_a_serialized_response_is_the_message_of_the_result(rows):
    levels = large(rows).view(np.uint8).reshape(rows, -1)
    made = result(
        pixel_values=("float32", large(rows)),
        image_grid_thw=("int64", np.ones((1, 3), np.int64)),
        levels=("uint8", levels, Expansion("bfloat16", (rows, 9), "cthw", (14, 14), 2, 2)),
    )
    serialized = serialize_response(made, lambda array: None)
    assert pb.PreprocessResponse.FromString(serialized) == write_response(made)


def test_a_fallen_back_response_says_so_when_serialized():
    made = result(pixel_values=("float32", large(40)))
    read = pb.PreprocessResponse.FromString(serialize_response(made, lambda array: None, fell_back=True))
    assert [warning.reason for warning in read.warnings] == ["TRANSPORT_FELL_BACK"]
