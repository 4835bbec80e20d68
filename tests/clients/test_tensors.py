"""The parts of a response, also of one that names what it does not have."""

import numpy as np
import pytest
from patchloom_client.cuda import CudaMemory
from patchloom_client.errors import Internal
from patchloom_client.tensors import Tensor, read_response
from patchloom_proto import preprocess_pb2 as pb


def response(**part):
    message = pb.PreprocessResponse(items=[pb.MediaItem()])
    message.tensors["t"].MergeFrom(pb.TensorData(dtype=pb.DTYPE_UINT8, shape=[4, 2], inline=bytes(range(8))))
    message.items[0].slices.add(**{"tensor": "t", "axis": 0, "start": 1, "count": 2, **part})
    message.shards.add(items=[0])
    message.shards.add(items=[1])
    return read_response(message)


def test_a_part_is_a_view_of_its_tensor():
    whole = response()
    part = whole.item_tensors(0)["t"].array
    np.testing.assert_array_equal(part, [[2, 3], [4, 5]])
    assert np.shares_memory(part, whole.tensors["t"].array)
    np.testing.assert_array_equal(whole.shard(0).tensors["t"][0].array, part)


@pytest.mark.parametrize(
    "part", [{"tensor": "x"}, {"axis": 2}, {"axis": 2**32 - 1}, {"start": 3}, {"start": 2**40}, {"count": 4}]
)
def test_a_part_that_no_tensor_has_is_the_servers_fault(part):
    with pytest.raises(Internal):
        response(**part).item_tensors(0)


def test_a_shard_of_an_item_that_is_not_there_is_the_servers_fault():
    with pytest.raises(Internal):
        response().shard(1)


def test_a_closed_response_has_no_parts():
    whole = response()
    whole.close()
    with pytest.raises(Internal, match="closed"):
        whole.item_tensors(0)


class OfHost:
    """Memory of the host under CUDA's interface, and back."""

    def __init__(self, memory):
        self.__array_interface__ = memory.__cuda_array_interface__


def on_device(array):
    return CudaMemory(array.__array_interface__["data"][0], array.dtype, array.shape, array)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_parts_of_device_memory_share_it(axis):
    array = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)
    part = (slice(None),) * axis + (slice(1, 3),)
    view = on_device(array)[part]
    again = view[(slice(0, 1),)]
    for own, expected in ((view, array[part]), (again, array[part][:1])):
        assert (own.shape, own.ndim, own.size) == (expected.shape, expected.ndim, expected.size)
        np.testing.assert_array_equal(np.asarray(OfHost(own)), expected)


def test_items_and_shards_of_device_memory_are_views():
    array = np.arange(8, dtype=np.uint8).reshape(4, 2)
    whole = response()
    whole.tensors["t"] = Tensor("t", "uint8", on_device(array))
    for part in (whole.item_tensors(0)["t"], whole.shard(0).tensors["t"][0]):
        np.testing.assert_array_equal(np.asarray(OfHost(part.array)), [[2, 3], [4, 5]])
