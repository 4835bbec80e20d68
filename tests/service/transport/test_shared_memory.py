"""The arena is bounded, never rewrites what is read, and leaves nothing behind."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from patchloom_client.errors import FailedPrecondition, StaleHandle
from patchloom_client.shm import map_segment
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.errors import OutOfMemory
from patchloom_service.transport import shared_memory
from patchloom_service.transport.shared_memory import HEADER_BYTES, Arena, namespace_id, sweep_leftovers

ROOT = Path(__file__).resolve().parents[3]
MIB = 1 << 20


@pytest.fixture
def arena(tmp_path):
    made = Arena(8 * MIB, directory=tmp_path)
    yield made
    made.close()


def files(directory):
    return sorted(name for name in os.listdir(directory) if not name.endswith(".lock"))


def handle_of(arena, segment, directory, size=1000, **change):
    handle = pb.TensorHandle(
        server_instance=arena.instance,
        lease_id="1" * 32,
        generation=segment.generation,
        offset=HEADER_BYTES,
        size=size,
        shared_memory=pb.SharedMemory(name=segment.name, namespace_id=namespace_id(directory)),
    )
    for name, value in change.items():
        setattr(handle, name, value)
    return handle


def written(arena, value, size=1000):
    segment = arena.take(size, "")
    segment.data[:size] = value
    arena.publish(segment, "1" * 32)
    return segment


def seen(memory, size=1000):
    return set(np.frombuffer(memory, np.uint8, size, HEADER_BYTES).tolist())


def test_a_reader_sees_what_was_written_and_cannot_write(arena, tmp_path):
    segment = written(arena, 7)
    memory = map_segment(handle_of(arena, segment, tmp_path), tmp_path)
    assert seen(memory) == {7}
    assert not np.frombuffer(memory, np.uint8).flags.writeable


def test_a_given_back_segment_is_used_again_without_a_new_file(arena, tmp_path):
    first = written(arena, 1)
    arena.give(first)
    second = written(arena, 2)
    assert (second is first, second.generation, len(files(tmp_path))) == (True, 2, 1)


def test_a_handle_of_an_earlier_generation_is_stale_though_the_file_is_there(arena, tmp_path):
    first = written(arena, 1)
    old = handle_of(arena, first, tmp_path)
    arena.give(first)
    with pytest.raises(StaleHandle):
        map_segment(old, tmp_path)
    written(arena, 2)
    with pytest.raises(StaleHandle):
        map_segment(old, tmp_path)


def test_a_segment_that_is_written_to_cannot_be_read(arena, tmp_path):
    segment = arena.take(1000, "")
    with pytest.raises(StaleHandle):
        map_segment(handle_of(arena, segment, tmp_path), tmp_path)


def test_memory_under_a_reader_is_never_rewritten(arena, tmp_path):
    first = written(arena, 1)
    memory = map_segment(handle_of(arena, first, tmp_path), tmp_path)
    arena.give(first)
    second = written(arena, 2)
    assert second is not first
    assert seen(memory) == {1}
    memory.close()
    assert written(arena, 3) is first


def test_a_dropped_segment_stays_readable_and_counts_until_its_reader_is_gone(arena, tmp_path):
    segment = written(arena, 5)
    memory = map_segment(handle_of(arena, segment, tmp_path), tmp_path)
    used = arena.used
    arena.drop(segment)
    arena.sweep()
    assert (files(tmp_path), seen(memory), arena.used) == ([], {5}, used)
    memory.close()
    arena.sweep()
    assert arena.used == 0


def test_dropping_or_giving_twice_does_nothing(arena):
    segment = written(arena, 5)
    arena.drop(segment)
    arena.drop(segment)
    arena.give(segment)
    arena.sweep()
    assert (arena.used, arena.idle) == (0, 0)


def test_another_namespace_never_gets_the_memory(arena):
    first = arena.take(1000, "alice")
    arena.publish(first, "1" * 32)
    arena.give(first)
    assert arena.take(1000, "bob") is not first


def test_the_bound_is_hard_and_idle_memory_makes_room(arena):
    held = [written(arena, 1, 2 * MIB) for _ in range(3)]
    with pytest.raises(OutOfMemory) as caught:
        arena.take(3 * MIB, "")
    assert caught.value.retry_after is not None
    arena.give(held[0])
    arena.give(held[1])
    arena.take(3 * MIB, "")
    assert arena.used <= 8 * MIB


def test_a_tensor_larger_than_the_arena_is_refused_for_good(arena, tmp_path):
    with pytest.raises(OutOfMemory) as caught:
        arena.take(9 * MIB, "")
    assert (caught.value.retry_after, files(tmp_path)) == (None, [])


def test_a_full_file_system_is_an_error_and_leaves_no_file(arena, tmp_path, monkeypatch):
    def full(fd, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory.os, "posix_fallocate", full)
    with pytest.raises(OutOfMemory):
        arena.take(1000, "")
    assert (files(tmp_path), arena.used) == ([], 0)


def test_a_small_file_system_refuses_instead_of_killing_the_process(tmp_path):
    """In a mount namespace of its own: a tmpfs of 1 MiB and a segment of 4 MiB."""
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from patchloom_service.errors import OutOfMemory\n"
        "from patchloom_service.transport.shared_memory import Arena\n"
        f"arena = Arena(64 << 20, directory=Path({str(tmp_path)!r}))\n"
        "try:\n    arena.take(4 << 20, '')\nexcept OutOfMemory:\n    print('refused', arena.used)\n"
        "segment = arena.take(100_000, '')\nsegment.data[:] = 1\nprint('fits')\narena.close()\n"
    )
    script = f'mount -t tmpfs -o size=1m none {tmp_path} && exec {sys.executable} -c "$CODE"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        capture_output=True,
        text=True,
        env=environment() | {"CODE": code},
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("this machine allows no mount namespace")
    assert (done.returncode, done.stdout) == (0, "refused 0\nfits\n")


@pytest.mark.parametrize(
    "change",
    [
        {"lease_id": "2" * 32},
        {"server_instance": "f" * 32},
        {"generation": 9},
        {"offset": 0},
        {"size": 1 << 40},
    ],
)
def test_a_handle_that_differs_anywhere_is_stale(arena, tmp_path, change):
    segment = written(arena, 1)
    with pytest.raises(StaleHandle):
        map_segment(handle_of(arena, segment, tmp_path, **change), tmp_path)


@pytest.mark.parametrize("name", ["", "../passwd", "/etc/passwd", "patchloom-x.1", "patchloom-" + "a" * 32])
def test_a_malformed_name_is_never_opened(arena, tmp_path, name):
    handle = handle_of(arena, written(arena, 1), tmp_path)
    handle.shared_memory.name = name
    with pytest.raises(StaleHandle):
        map_segment(handle, tmp_path)


def test_a_link_in_the_place_of_a_segment_is_not_followed(arena, tmp_path):
    segment = written(arena, 1)
    handle = handle_of(arena, segment, tmp_path)
    os.rename(tmp_path / segment.name, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / segment.name)
    with pytest.raises(StaleHandle):
        map_segment(handle, tmp_path)


def test_memory_of_another_host_is_said_to_be_that(arena, tmp_path):
    handle = handle_of(arena, written(arena, 1), tmp_path)
    handle.shared_memory.namespace_id = "other:1"
    with pytest.raises(FailedPrecondition, match="inline"):
        map_segment(handle, tmp_path)


def test_readers_are_counted(arena, tmp_path):
    segment = written(arena, 1)
    handle = handle_of(arena, segment, tmp_path)
    maps = [map_segment(handle, tmp_path) for _ in range(3)]
    assert arena.readers() == 3
    maps[0].close()
    assert arena.readers() == 2


def environment():
    path = ":".join(str(ROOT / part) for part in ("proto", "kernels", "service", "clients"))
    return os.environ | {"PYTHONPATH": path}


def killed_server(directory):
    """A process that leaves a segment and its lock behind."""
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from patchloom_service.transport.shared_memory import Arena\n"
        f"arena = Arena(1 << 20, directory=Path({str(directory)!r}))\n"
        "arena.publish(arena.take(1000, ''), '1' * 32)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment())
    assert done.returncode == -signal.SIGKILL


def test_a_new_server_sweeps_a_dead_ones_leftovers_and_nothing_else(tmp_path):
    neighbour = Arena(MIB, directory=tmp_path)
    kept = written(neighbour, 1)
    foreign = [f"patchloom-{'a' * 32}.1.txt", "patchloom-data", "other"]
    for name in foreign:
        (tmp_path / name).write_text("mine")
    killed_server(tmp_path)
    assert len(files(tmp_path)) == 2 + len(foreign)
    restarted = Arena(MIB, directory=tmp_path)
    assert restarted.swept == 1
    assert set(files(tmp_path)) == {kept.name, *foreign}
    assert seen(map_segment(handle_of(neighbour, kept, tmp_path), tmp_path)) == {1}
    restarted.close()
    neighbour.close()
    assert sorted(os.listdir(tmp_path)) == sorted(foreign)


def test_a_segment_without_a_lock_file_is_a_leftover(tmp_path):
    name = f"patchloom-{'a' * 32}.1"
    (tmp_path / name).write_bytes(b"")
    assert (sweep_leftovers(tmp_path), os.listdir(tmp_path)) == (1, [])


def test_a_reader_that_is_killed_frees_the_memory(arena, tmp_path):
    segment = written(arena, 1)
    code = (
        "import fcntl, mmap, os, sys\n"
        f"fd = os.open({str(tmp_path / segment.name)!r}, os.O_RDONLY)\n"
        "fcntl.flock(fd, fcntl.LOCK_SH)\nmemory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)\nos.close(fd)\n"
        "print('mapped', flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout.readline() == b"mapped\n"
        arena.drop(segment)
        arena.sweep()
        assert arena.used > 0
        reader.kill()
        reader.wait()
        arena.sweep()
        assert arena.used == 0


def test_a_closed_arena_leaves_no_file(tmp_path):
    arena = Arena(MIB, directory=tmp_path)
    written(arena, 1)
    arena.give(written(arena, 2))
    arena.close()
    arena.close()
    assert os.listdir(tmp_path) == []


def test_files_are_for_the_user_alone_unless_said_otherwise(tmp_path):
    for mode in (0o600, 0o640, 0o644):
        arena = Arena(MIB, mode, tmp_path)
        segment = written(arena, 1)
        assert os.stat(tmp_path / segment.name).st_mode & 0o777 == mode
        arena.close()


def test_the_lock_of_a_living_instance_is_held(arena, tmp_path):
    with (tmp_path / f"patchloom-{arena.instance}.lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_that_cannot_be_made_leaves_nothing_counted(arena, tmp_path, monkeypatch):
    def none_left(*_):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(shared_memory.os, "open", none_left)
        with pytest.raises(OutOfMemory, match="Too many open files"):
            arena.take(1000, "")
    assert (files(tmp_path), arena.used) == ([], 0)
    arena.take(1000, "")


def test_a_sweep_holds_the_lock_of_what_it_takes_for_dead(tmp_path):
    path = tmp_path / f"patchloom-{'a' * 32}.lock"
    path.touch()
    with shared_memory._held_if_dead(path) as dead, path.open("rb") as starting:
        assert dead
        with pytest.raises(BlockingIOError):
            fcntl.flock(starting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("rb") as living:
        fcntl.flock(living, fcntl.LOCK_EX)
        with shared_memory._held_if_dead(path) as dead:
            assert not dead


@pytest.mark.timeout(20)
def test_something_else_in_the_place_of_a_segment_is_not_waited_for(arena, tmp_path):
    segment = written(arena, 1)
    handle = handle_of(arena, segment, tmp_path)
    os.unlink(tmp_path / segment.name)
    os.mkfifo(tmp_path / segment.name)
    with pytest.raises(StaleHandle):
        map_segment(handle, tmp_path)
