"""When a call is tried again: never for what the request itself is wrong in."""

import random
from dataclasses import dataclass

from patchloom_client.errors import PatchloomError, ResourceExhausted, Unavailable


@dataclass(frozen=True, slots=True)
class Retry:
    """At most `attempts` tries, the first included; waits grow from `first` to `most` seconds.

    A server that asks for more than `patience` seconds is not asked again.
    """

    attempts: int = 5
    first: float = 0.05
    most: float = 5.0
    patience: float = 60.0

    def delay(self, error: PatchloomError, tries: int) -> float | None:
        """Seconds to wait after `tries` failed tries, None where another would not help.

        A full server says how long; one that is away is asked again after a random, growing time. Memory
        or a message that can never be had comes without a time and is not tried again.
        """
        if tries >= self.attempts:
            return None
        growing: float = min(self.most, self.first * 2 ** (tries - 1))
        if isinstance(error, ResourceExhausted) and error.retry_after is not None:
            if error.retry_after > self.patience:
                return None
            growing = max(error.retry_after, growing)
        elif not isinstance(error, Unavailable):
            return None
        return float(growing * random.uniform(1.0, 1.5))


ONCE = Retry(attempts=1)
"""No second try."""
