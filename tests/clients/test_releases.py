"""Leases go back together after a moment, at once before a request, and all at the end."""

import asyncio
import time

from patchloom_client.errors import StaleHandle
from patchloom_client.releases import Releases
from patchloom_proto import preprocess_pb2 as pb


def lease(number):
    return pb.Lease(lease_id=str(number))


async def test_leases_of_one_moment_go_back_in_one_call():
    calls = []

    async def send(leases):
        calls.append([own.lease_id for own in leases])

    releases = Releases(send)
    for number in range(3):
        releases.add(lease(number))
        await asyncio.sleep(0)
    assert calls == []
    await asyncio.sleep(0.2)
    assert calls == [["0", "1", "2"]]


async def test_nothing_waits_beyond_the_next_request_or_the_end():
    calls = []

    async def send(leases):
        calls.append((time.perf_counter(), [own.lease_id for own in leases]))

    releases = Releases(send)
    start = time.perf_counter()
    for number in range(5):
        releases.add(lease(number))
        releases.hurry()
        await asyncio.sleep(0.001)
    releases.add(lease(5))
    await releases.flush()
    assert [name for _, names in calls for name in names] == list("012345")
    assert len(calls) > 1
    assert calls[-1][0] - start < 0.1


async def test_a_failed_call_loses_no_later_lease():
    calls = []

    async def send(leases):
        calls.append([own.lease_id for own in leases])
        if len(calls) == 1:
            raise StaleHandle("gone")

    releases = Releases(send)
    releases.add(lease(0))
    await releases.flush()
    releases.add(lease(1))
    await releases.flush()
    assert calls == [["0"], ["1"]]
