"""CUDA IPC behind a driver that keeps its memory in this process; one test with a real device."""

import os
import subprocess
import sys

import numpy as np
import pytest
from patchloom_client.cuda import map_cuda
from patchloom_client.errors import FailedPrecondition, StaleHandle
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.buffers import BufferPool
from patchloom_service.config import Config
from patchloom_service.errors import OutOfMemory
from patchloom_service.result import Result, Tensor
from patchloom_service.transport.cuda_ipc import CudaPool
from patchloom_service.transport.leases import Owner, pid_namespace
from patchloom_service.transport.transports import Transports
from patchloom_service.types import OutputOptions, Transport
from patchloom_service.wire import carry_handles, write_response

MIB = 1 << 20
UUID = bytes(range(16))
CUDA = OutputOptions(transport=Transport.CUDA_IPC)


class Driver:
    """Device memory as numpy arrays; also the side that opens it."""

    def __init__(self):
        self.memory = {}
        self.log = []

    def device_uuid(self):
        return UUID

    def allocate(self, size):
        array = np.zeros(size, np.uint8)
        address = array.ctypes.data
        self.memory[address] = array
        return address

    def free(self, address):
        del self.memory[address]

    def memory_handle(self, address):
        return address.to_bytes(64, "little")

    def event(self):
        return "event", b"e" * 64

    def upload(self, address, content, event):
        self.memory[address][: content.nbytes] = content
        self.log.append(("recorded", event))

    def device_of(self, uuid):
        if uuid != UUID:
            raise LookupError(uuid)
        return 0

    def open_memory(self, device, handle):
        address = int.from_bytes(handle, "little")
        if address not in self.memory:
            raise OSError("invalid handle")
        return address, lambda: self.log.append("closed")

    def wait_event(self, device, handle):
        self.log.append("waited")


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def transports(driver):
    made = Transports(Config(cuda_ipc_bytes=8 * MIB), BufferPool(MIB), driver)
    yield made
    made.close()


def deliver(transports, value, size=1000, owner=None):
    """A response whose pixels all have one value."""
    delivery = transports.delivery(CUDA, "", owner)
    [buffer] = delivery.take([size * 4])
    array = buffer[: size * 4].view(np.float32)
    array[:] = value
    delivery.commit()
    result = Result("m", np.zeros(1, np.int64), (), "f", tensors={"pixel_values": Tensor("float32", array)})
    message = write_response(result, carry_handles(delivery.handle))
    delivery.close(True)
    return message.tensors["pixel_values"]


def opened(data, driver):
    memory = map_cuda(data.handle, np.dtype("<f4"), tuple(data.shape), driver)
    address, read_only = memory.__cuda_array_interface__["data"]
    assert read_only
    base = next(a for a in driver.memory if a <= address < a + driver.memory[a].nbytes)
    content = driver.memory[base][address - base : address - base + memory.nbytes]
    return memory, set(content.view(np.float32).tolist())


def key(data):
    handle = data.handle
    return pb.Lease(
        server_instance=handle.server_instance, lease_id=handle.lease_id, generation=handle.generation
    )


def released(transports, data):
    from patchloom_service.wire import read_lease

    return transports.release([read_lease(key(data))])


def test_a_reader_waits_for_the_event_and_closes_what_it_opened(transports, driver):
    data = deliver(transports, 7.0)
    memory, values = opened(data, driver)
    assert (values, memory.shape) == ({7.0}, (1000,))
    assert driver.log == [("recorded", "event"), "waited"]
    del memory
    assert driver.log[-1] == "closed"


def test_a_released_block_is_used_again_under_a_new_generation(transports, driver):
    first = deliver(transports, 1.0)
    assert released(transports, first) == 1
    second = deliver(transports, 2.0)
    assert second.handle.cuda_ipc == first.handle.cuda_ipc
    assert second.handle.generation == first.handle.generation + 1


def test_a_held_or_expired_block_is_never_rewritten(driver):
    transports = Transports(Config(cuda_ipc_bytes=8 * MIB, lease_time=1e-9), BufferPool(MIB), driver)
    data = deliver(transports, 1.0)
    transports.sweep()
    deliver(transports, 2.0)
    assert opened(data, driver)[1] == {1.0}
    transports.close()


def test_an_expired_block_comes_back_once_its_owner_is_gone(driver):
    pool = CudaPool(driver, 2 * MIB)
    block = pool.take(1000)
    pool.abandon(block, Owner(os.getpid(), 1, pid_namespace()))
    with pytest.raises(OutOfMemory):
        pool.take(1000)
    pool.sweep()
    assert pool.take(1000) is block


def test_the_pool_is_bounded(transports, driver):
    held = [deliver(transports, float(i), size=MIB // 2) for i in range(4)]
    with pytest.raises(OutOfMemory) as caught:
        deliver(transports, 9.0)
    assert caught.value.retry_after is not None
    with pytest.raises(OutOfMemory) as caught:
        deliver(transports, 9.0, size=4 * MIB)
    assert caught.value.retry_after is None
    released(transports, held[0])
    deliver(transports, 9.0, size=MIB // 2)
    assert sum(array.nbytes for array in driver.memory.values()) <= 8 * MIB


def test_closing_frees_what_nobody_holds(driver):
    transports = Transports(Config(cuda_ipc_bytes=8 * MIB), BufferPool(MIB), driver)
    data = deliver(transports, 1.0)
    released(transports, data)
    transports.close()
    assert driver.memory == {}


def test_a_handle_that_leads_nowhere_is_stale_or_of_another_device(transports, driver):
    data = deliver(transports, 1.0)
    data.handle.cuda_ipc.memory_handle = bytes(64)
    with pytest.raises(StaleHandle):
        opened(data, driver)
    data.handle.cuda_ipc.device_uuid = bytes(16)
    with pytest.raises(FailedPrecondition):
        opened(data, driver)


def test_without_cuda_bindings_the_error_says_what_to_install(transports, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    data = deliver(transports, 1.0)
    with pytest.raises(FailedPrecondition, match="cuda-bindings"):
        map_cuda(data.handle, np.dtype("<f4"), (1000,))


@pytest.mark.cuda
def test_another_process_reads_the_pixels_of_a_real_device():
    transports = Transports(Config(cuda_ipc_bytes=8 * MIB), BufferPool(MIB))
    data = deliver(transports, 7.0)
    message = pb.PreprocessResponse(tensors={"pixel_values": data})
    code = (
        "import sys\nfrom patchloom_client.tensors import read_response\n"
        "from patchloom_proto import preprocess_pb2 as pb\n"
        "response = read_response(pb.PreprocessResponse.FromString(sys.stdin.buffer.read()))\n"
        "tensor = response.tensors['pixel_values'].torch()\n"
        "print(tensor.device.type, tuple(tensor.shape), tensor.unique().tolist())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=message.SerializeToString(), capture_output=True, check=False
    )
    assert done.stdout.decode() == "cuda (1000,) [7.0]\n", done.stderr.decode()
    transports.close()
