from patchloom_service.buffers import BufferPool

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


def test_idle_memory_is_bounded():
    pool = BufferPool(6 * MIB)
    buffers = [pool.take(4 * MIB) for _ in range(3)]
    addresses = [b.ctypes.data for b in buffers]
    for buffer in buffers:
        pool.give(buffer)
    again = [pool.take(4 * MIB) for _ in range(3)]
    assert sum(b.ctypes.data in addresses[:1] for b in again) == 1
