import threading
import time

import numpy as np
import pytest
from patchloom_service.transport.message import join


@pytest.mark.parametrize("size", [0, 1, 1000, (4 << 20) + 3])
def test_parts_are_joined_in_order(size):
    array = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert join([b"head", array, b"", b"tail"]) == b"head" + array.tobytes() + b"tail"


def test_arrays_of_any_layout_are_joined_in_c_order():
    array = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert join([array]) == np.ascontiguousarray(array).tobytes()


def test_nothing_joins_to_nothing():
    assert join([]) == b""


def test_other_threads_run_while_a_large_message_is_joined():
    large, gaps, done = np.zeros(256 << 20, np.uint8), [], threading.Event()

    def tick():
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.01)
    gaps.clear()
    join([large])
    done.set()
    thread.join()
    assert len(gaps) > 3  # a copy that held the lock would allow none or one
