from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.result import Shard
from patchloom_service.shards import balance


def test_the_heaviest_items_go_to_different_ranks():
    assert balance([10, 1, 9, 2], 2) == (Shard((0, 1), 11), Shard((2, 3), 11))


def test_more_ranks_than_items_leave_ranks_empty():
    assert balance([5], 3) == (Shard((0,), 5), Shard((), 0), Shard((), 0))


@given(st.lists(st.integers(1, 1000), max_size=40), st.integers(1, 9))
def test_every_item_is_in_one_shard_and_no_shard_is_far_over_the_mean(weights, ranks):
    shards = balance(weights, ranks)
    assert sorted(i for shard in shards for i in shard.items) == list(range(len(weights)))
    assert all(shard.patches == sum(weights[i] for i in shard.items) for shard in shards)
    least = max([-(-sum(weights) // ranks), *weights])
    assert max(shard.patches for shard in shards) <= least * 4 / 3 + max(weights, default=0) / 3
