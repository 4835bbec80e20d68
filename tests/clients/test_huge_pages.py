import fcntl
import gc
import os

import numpy as np
import pytest
from patchloom_client.huge_pages import map_file

SIZES = [1, 4096, 4096 * 3 + 5, 4 << 20, (6 << 20) + 4097]


@pytest.fixture(params=SIZES)
def opened(request, tmp_path):
    content = np.random.default_rng(0).integers(0, 256, request.param, np.uint8)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    fd = os.open(path, os.O_RDONLY)
    yield fd, path, content
    os.close(fd)


def maps(path):
    with open("/proc/self/maps", encoding="ascii") as file:
        return [line for line in file if str(path) in line]


def test_a_mapping_has_the_file_and_cannot_be_written_to(opened):
    fd, path, content = opened
    array = np.frombuffer(map_file(fd, len(content)), np.uint8)
    np.testing.assert_array_equal(array, content)
    assert len(maps(path)) == 1
    assert " r--s " in maps(path)[0]
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    if len(content) >= 4 << 20:
        assert array.ctypes.data % (2 << 20) == 0


def test_a_mapping_ends_with_its_last_view_and_leaves_no_other(opened):
    fd, path, content = opened

    def count():
        gc.collect()
        with open("/proc/self/maps", encoding="ascii") as file:
            return len(file.readlines())

    map_file(fd, len(content))
    before = count()
    for _ in range(20):
        view = np.frombuffer(map_file(fd, len(content)), np.uint8)[len(content) // 2 :]
        np.testing.assert_array_equal(view, content[len(content) // 2 :])
    del view
    assert maps(path) == []
    assert count() <= before + 3


def test_a_lock_lasts_as_long_as_the_mapping(opened):
    _, path, content = opened
    own = os.open(path, os.O_RDONLY)
    fcntl.flock(own, fcntl.LOCK_SH)
    view = np.frombuffer(map_file(own, len(content)), np.uint8)[:1]
    os.close(own)
    other = os.open(path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    del view
    gc.collect()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
