"""A conversation finds its server, and another one only while that is away."""

from collections import Counter

import pytest
from patchloom_client.client import AsyncClient
from patchloom_client.errors import OutOfMemory, QueueFull, Unavailable
from patchloom_client.fleet import Fleet, rank
from patchloom_client.retry import ONCE, Retry

from tests.support.servers import png, request, running

ADDRESSES = tuple(f"10.0.0.{index}:50055" for index in range(5))


def answered(server, method):
    return server.metrics.value("patchloom_requests_total", method=method, code="OK")


def test_every_server_gets_its_part_of_the_conversations():
    counts = Counter(rank(ADDRESSES, f"conversation {index}")[0] for index in range(5000))
    assert all(850 < counts[address] < 1150 for address in ADDRESSES)


def test_a_server_that_goes_moves_only_its_own_conversations():
    for index in range(500):
        before = rank(ADDRESSES, str(index))
        after = rank(ADDRESSES[:-1], str(index))
        assert after == tuple(address for address in before if address != ADDRESSES[-1])


async def test_a_conversation_stays_and_moves_on_while_its_server_is_away():
    async with running() as (first, one), running() as (second, two):
        servers = {one.address: first, two.address: second}
        dead = "127.0.0.1:1"
        async with Fleet([one.address, two.address, dead]) as fleet:
            for index in range(6):
                name = f"conversation {index}"
                alive = next(a for a in rank([one.address, two.address, dead], name) if a != dead)
                before = servers[alive].metrics.value(
                    "patchloom_requests_total", method="Preprocess", code="OK"
                )
                for _ in range(2):
                    await fleet.preprocess(name, request(png(index)))
                after = servers[alive].metrics.value(
                    "patchloom_requests_total", method="Preprocess", code="OK"
                )
                assert after - before == 2


async def test_grpc_itself_balances_over_several_addresses():
    async with running() as (first, one), running() as (second, two):
        target = f"ipv4:{one.address},{two.address}"
        async with AsyncClient(target, load_balancing="round_robin") as client:
            for _ in range(20):
                await client.count_tokens(request(png()))
        counts = [answered(server, "CountTokens") for server in (first, second)]
        assert sum(counts) == 20
        assert min(counts) >= 5


def test_what_cannot_help_is_not_tried_again():
    retry = Retry(attempts=3, first=0.1, most=1.0)
    assert retry.delay(OutOfMemory("too large"), 1) is None
    assert retry.delay(Unavailable("away"), 3) is None
    assert ONCE.delay(Unavailable("away"), 1) is None
    assert retry.delay(QueueFull("full", retry_after=2.0), 1) >= 2.0


@pytest.mark.parametrize("addresses", [[], ["a:1", "a:1"]])
def test_a_fleet_has_each_address_once(addresses):
    with pytest.raises(ValueError, match="at least one address"):
        Fleet(addresses)
