"""A balanced split of items over ranks, for vision data parallelism."""

import heapq
from collections.abc import Sequence

from patchloom_service.result import Shard


def balance(weights: Sequence[int], ranks: int) -> tuple[Shard, ...]:
    """Items to `ranks` shards, heaviest first to the lightest rank; ties go to the lower index and rank.

    `weights` are patch counts. Every item is in exactly one shard; within a shard items stay in order.
    The heaviest shard is at most 4/3 of the best possible (Graham 1969, longest processing time first).
    """
    loads = [(0, rank) for rank in range(ranks)]
    taken: list[list[int]] = [[] for _ in range(ranks)]
    for item in sorted(range(len(weights)), key=lambda i: (-weights[i], i)):
        load, rank = heapq.heappop(loads)
        taken[rank].append(item)
        heapq.heappush(loads, (load + weights[item], rank))
    return tuple(Shard(tuple(sorted(items)), sum(weights[i] for i in items)) for items in taken)
