"""Counts and times of a service, as text in Prometheus' exposition format."""

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping

_Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters and sums by name and labels; thread-safe."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, _Labels], float] = defaultdict(float)
        self._lock = threading.Lock()
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def collect(self, source: Callable[[], Mapping[str, float]]) -> None:
        """Adds a source of present values, which is asked whenever `text` is."""
        self._sources.append(source)

    def add(self, name: str, value: float = 1.0, **labels: str) -> None:
        """Adds to a counter."""
        with self._lock:
            self._values[name, tuple(sorted(labels.items()))] += value

    def request(self, method: str, code: str, stages_ms: Mapping[str, float]) -> None:
        """Counts one request and the time of its stages."""
        self.add("patchloom_requests_total", method=method, code=code)
        for stage, ms in stages_ms.items():
            self.add("patchloom_stage_seconds_total", ms / 1000, stage=stage)

    def value(self, name: str, **labels: str) -> float:
        """The present value of a counter; 0.0 before its first addition."""
        with self._lock:
            return self._values.get((name, tuple(sorted(labels.items()))), 0.0)

    def text(self) -> str:
        """All values, one line each, in order of their names."""
        with self._lock:
            values = dict(self._values)
        for source in self._sources:
            values |= {(name, ()): value for name, value in source().items()}
        lines = [f"{name}{_braces(labels)} {value:.15g}" for (name, labels), value in values.items()]
        return "".join(f"{line}\n" for line in sorted(lines))


def _braces(labels: _Labels) -> str:
    return "{" + ",".join(f'{key}="{value}"' for key, value in labels) + "}" if labels else ""
