"""Leases end by release, time or the owner's death, and every other handle is stale."""

import os
import subprocess
import sys

import pytest
from patchloom_service.errors import InvalidMessage, StaleHandle
from patchloom_service.transport.leases import (
    Ending,
    LeaseKey,
    Leases,
    Owner,
    pid_namespace,
    start_time,
)


class Memory:
    """Backing that remembers how it ended."""

    def __init__(self):
        self.ended = []

    def end(self, how):
        self.ended.append(how)


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def leases(clock=None):
    return Leases("a" * 32, 60.0, clock or Clock())


def sleeper():
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def owner_of(process):
    return Owner(process.pid, start_time(process.pid), pid_namespace())


def test_a_release_ends_the_lease_once():
    held, memory = leases(), Memory()
    key = held.grant(memory, 1, "", None, None).key
    assert held.release([key]) == 1
    with pytest.raises(StaleHandle) as caught:
        held.release([key])
    assert (caught.value.field_path, memory.ended, len(held)) == ("leases[0]", [Ending.RELEASED], 0)


@pytest.mark.parametrize(
    "change",
    [
        {"instance": "b" * 32},
        {"lease_id": "0" * 32},
        {"lease_id": "../../etc/passwd"},
        {"lease_id": ""},
        {"generation": 2},
        {"generation": 0},
    ],
)
def test_a_foreign_malformed_or_older_handle_is_stale_and_ends_nothing(change):
    held, memory = leases(), Memory()
    key = held.grant(memory, 1, "", None, None).key
    wrong = LeaseKey(**{**{name: getattr(key, name) for name in LeaseKey.__slots__}, **change})
    for attempt in (lambda: held.release([wrong]), lambda: held.renew([wrong], 5.0)):
        with pytest.raises(StaleHandle):
            attempt()
    assert (list(memory.ended), held.release([key])) == ([], 1)


def test_a_lease_of_another_namespace_is_stale():
    held = leases()
    key = held.grant(Memory(), 1, "alice", None, None).key
    with pytest.raises(StaleHandle):
        held.release([key], "bob")
    assert held.release([key], "alice") == 1


def test_a_stale_lease_in_a_list_does_not_keep_the_others():
    held, memory = leases(), Memory()
    key = held.grant(memory, 1, "", None, None).key
    with pytest.raises(StaleHandle) as caught:
        held.release([LeaseKey("a" * 32, "0" * 32, 1), key])
    assert (caught.value.field_path, memory.ended) == ("leases[0]", [Ending.RELEASED])


def test_a_lease_expires_and_cannot_be_renewed_or_released_then():
    clock = Clock()
    held, memory = leases(clock), Memory()
    key = held.grant(memory, 1, "", None, 5.0).key
    clock.now += 5.0
    for attempt in (lambda: held.release([key]), lambda: held.renew([key], None)):
        with pytest.raises(StaleHandle):
            attempt()
    held.sweep()
    assert (memory.ended, held.endings) == ([Ending.EXPIRED], {Ending.EXPIRED: 1})


def test_a_renewed_lease_lives_on():
    clock = Clock()
    held, memory = leases(clock), Memory()
    key = held.grant(memory, 1, "", None, 5.0).key
    clock.now += 4.0
    held.renew([key], 10.0)
    clock.now += 9.0
    held.sweep()
    assert (list(memory.ended), held.release([key])) == ([], 1)


def test_a_renewal_of_many_with_one_stale_prolongs_none():
    clock = Clock()
    held, memory = leases(clock), Memory()
    key = held.grant(memory, 1, "", None, 5.0).key
    with pytest.raises(StaleHandle):
        held.renew([key, LeaseKey("a" * 32, "0" * 32, 1)], 100.0)
    clock.now += 6.0
    held.sweep()
    assert memory.ended == [Ending.EXPIRED]


def test_a_killed_owners_leases_end_and_a_living_ones_do_not():
    process = sleeper()
    held, lost, kept = leases(), Memory(), Memory()
    held.grant(lost, 1, "", owner_of(process), 1000.0)
    held.grant(kept, 1, "", Owner(os.getpid(), start_time(os.getpid()), pid_namespace()), 1000.0)
    held.sweep()
    assert (lost.ended, kept.ended) == ([], [])
    process.kill()
    process.wait()
    held.sweep()
    assert (lost.ended, kept.ended) == ([Ending.OWNER_LOST], [])


def test_a_zombie_is_gone():
    process = sleeper()
    owner = owner_of(process)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert owner.lost()
    process.wait()


def test_a_process_with_a_reused_id_is_not_the_owner():
    assert Owner(os.getpid(), start_time(os.getpid()) - 1, pid_namespace()).lost()


def test_an_owner_of_another_pid_namespace_cannot_be_seen_to_die():
    assert not Owner(4_000_000_000, 1, pid_namespace() + 1).lost()


@pytest.mark.parametrize("text", ["", "1", "1.2", "0.1.1", "1.2.3.4", "-1.2.3", "1.2.x", "1.2.3\n", "9" * 30])
def test_an_owner_that_is_no_process_is_refused(text):
    with pytest.raises(InvalidMessage):
        Owner.parse(text)


def test_closing_ends_every_lease():
    held, memory = leases(), Memory()
    held.grant(memory, 1, "", None, None)
    held.close()
    assert (memory.ended, len(held)) == ([Ending.CLOSED], 0)


def test_the_lease_of_a_call_ends_by_the_calls_name():
    held, memory, other = leases(), Memory(), Memory()
    first = held.grant(memory, 1, "", None, None, "a name")
    held.grant(other, 1, "alice", None, None, "another")
    assert held.release_calls(["unknown", "another", ""]) == 0
    assert held.release_calls(["a name", "a name"]) == 1
    assert (len(held), held.release_calls(["a name"])) == (1, 0)
    with pytest.raises(StaleHandle):
        held.release([first.key])
    assert memory.ended == [Ending.RELEASED]
    assert held.release_calls(["another"], "alice") == 1
    assert not held._by_call


def test_a_lease_that_ended_another_way_is_no_longer_its_calls():
    clock = Clock()
    held = leases(clock)
    keys = [held.grant(Memory(), 1, "", None, seconds, f"{seconds}").key for seconds in (1.0, 2.0, 3.0, 4.0)]
    held.release([keys[1]])
    held.revoke(keys[2])
    clock.now += 1.5
    held.sweep()
    assert list(held._by_call) == ["4.0"]
    held.close()
    assert not held._by_call
