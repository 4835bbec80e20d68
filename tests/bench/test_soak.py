"""A short soak: clients are killed while they hold tensors, and nothing is left."""

from bench.soak import failures, soak


async def test_killed_clients_leave_no_lease_no_file_and_no_growth():
    outcome = await soak(requests=120, workers=2, kill_every=20)
    assert failures(outcome) == []
    assert outcome.kills >= 2
    assert outcome.owners_lost >= 1
