"""Memory of a tmpfs file: all of it there, at a huge page's boundary, and unmapped with its last view."""

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patchloom_service.transport import huge_pages
from patchloom_service.transport.huge_pages import allocate

HUGE = 2 << 20


@pytest.fixture
def file():
    path = Path("/dev/shm") / f"patchloom-test-{os.getpid()}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    yield fd, path
    os.close(fd)
    path.unlink()


def mapped(path):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


@pytest.mark.parametrize("size", [1, 4096, 4097, HUGE - 1, HUGE, HUGE + 4096, 5 * HUGE + 70_000])
def test_the_file_and_its_mapping_are_whole(file, size):
    fd, path = file
    memory = allocate(fd, size)
    assert os.fstat(fd).st_size == size
    assert os.fstat(fd).st_blocks * 512 >= size
    assert len(memory) == size
    assert ctypes.addressof(memory) % HUGE == 0
    assert len(mapped(path)) == 1
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    np.frombuffer(memory, np.uint8)[:] = values
    assert os.pread(fd, size, 0) == values.tobytes()


def test_the_mapping_ends_with_the_last_view(file):
    fd, path = file
    memory = allocate(fd, HUGE + 4096)
    view = np.frombuffer(memory, np.uint8, offset=4096)[7:]
    del memory
    gc.collect()
    view[:] = 5
    assert len(mapped(path)) == 1
    before = sum("patchloom" not in line for line in Path("/proc/self/maps").read_text().splitlines())
    del view
    gc.collect()
    assert mapped(path) == []
    after = sum("patchloom" not in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert after <= before


def test_no_address_space_is_left_reserved(file):
    fd, _ = file
    allocate(fd, 3 * HUGE + 1)
    before = int(Path("/proc/self/statm").read_text().split()[0])
    for _ in range(200):
        allocate(fd, 3 * HUGE + 1)
    assert int(Path("/proc/self/statm").read_text().split()[0]) - before < 200


def test_a_kernel_without_huge_pages_on_request_changes_nothing(file, monkeypatch):
    fd, _ = file
    monkeypatch.setattr(huge_pages, "_madvise", lambda *arguments: -1)
    memory = allocate(fd, 2 * HUGE)
    assert os.fstat(fd).st_blocks * 512 >= 2 * HUGE
    np.frombuffer(memory, np.uint8)[:] = 1


def test_an_address_space_that_is_full_is_an_error_and_reserves_nothing():
    code = (
        "import os, resource\nfrom patchloom_service.transport.huge_pages import allocate\n"
        "fd = os.memfd_create('full')\nsize = 64 << 20\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + size, used + size))\n"
        "try:\n    allocate(fd, size)\nexcept OSError as error:\n    print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "12"  # ENOMEM
