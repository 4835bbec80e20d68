from pathlib import Path

from patchloom_service.buffers import BufferPool, huge_buffer

MIB = 1 << 20


def test_a_returned_buffer_is_handed_out_again():
    pool = BufferPool(100 * MIB)
    first = pool.take(5 * MIB)
    pool.give(first)
    assert pool.take(5 * MIB).ctypes.data == first.ctypes.data


def test_a_buffer_in_use_is_not_handed_out_twice():
    pool = BufferPool(100 * MIB)
    assert pool.take(5 * MIB).ctypes.data != pool.take(5 * MIB).ctypes.data


def test_a_buffer_is_at_least_as_large_as_asked_for_and_wastes_an_eighth_at_most():
    pool = BufferPool(0)
    for size in (0, 1, MIB, 3 * MIB + 1, 33 * MIB, 100 * MIB + 7):
        got = pool.take(size).nbytes
        assert size <= got <= max(size * 9 // 8, size + 2 * MIB) + 1


def test_idle_memory_is_bounded_and_the_longest_idle_goes_first():
    pool = BufferPool(6 * MIB)
    buffers = [pool.take(4 * MIB) for _ in range(3)]
    addresses = [b.ctypes.data for b in buffers]
    for buffer in buffers:
        pool.give(buffer)
    again = [pool.take(4 * MIB) for _ in range(3)]
    assert again[0].ctypes.data == addresses[2]
    assert pool._idle_bytes == 0


def test_buffers_of_sizes_that_come_no_more_give_way():
    pool = BufferPool(20 * MIB)
    for size in (4, 6, 8):
        pool.give(pool.take(size * MIB))
    steady = pool.take(10 * MIB)
    address = steady.ctypes.data
    pool.give(steady)
    assert pool.take(10 * MIB).ctypes.data == address


def test_a_huge_buffer_is_private_memory():
    """Shared anonymous memory gets huge pages only where the system allows them for shared memory too."""
    buffer = huge_buffer(8 * MIB)
    address = buffer.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_ = line.split()
        start, end = (int(edge, 16) for edge in span.split("-"))
        if start <= address < end:
            assert permissions == "rw-p"
            return
    raise AssertionError
