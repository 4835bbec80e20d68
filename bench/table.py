"""Rows of ratios with their spreads, printed and appended to a CSV file."""

import csv
import datetime
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison: seconds of ours and of the peer in the same run."""

    name: str
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ratio(self) -> float:
        """How many times less ours takes, by medians."""
        return statistics.median(self.theirs) / statistics.median(self.ours)


def spread(times: Sequence[float]) -> tuple[float, float, float]:
    """20th, 50th and 80th percentile."""
    if len(times) < 2:
        return times[0], times[0], times[0]
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return deciles[1], statistics.median(times), deciles[7]


def show(rows: Sequence[Row]) -> str:
    """The table as text; milliseconds as p20/p50/p80."""
    lines = [f"{'what':<44} {'ours ms':>22} {'peer ms':>24} {'ratio':>7}"]
    for row in rows:
        ours, theirs = (
            "/".join(f"{1000 * value:.1f}" for value in spread(times)) for times in (row.ours, row.theirs)
        )
        lines.append(f"{row.name:<44} {ours:>22} {theirs:>24} {row.ratio:>6.1f}x")
    return "\n".join(lines)


def append(name: str, rows: Sequence[Row], version: str) -> None:
    """Appends the rows to results/<name>.csv."""
    path = RESULTS / f"{name}.csv"
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(
                ["version", "device", "date", "what"]
                + ["ours_p20", "ours_p50", "ours_p80", "peer_p20", "peer_p50", "peer_p80", "ratio"]
            )
        today = datetime.date.today().isoformat()
        for row in rows:
            figures = [f"{value:.6f}" for times in (row.ours, row.theirs) for value in spread(times)]
            writer.writerow([version, platform.machine(), today, row.name, *figures, f"{row.ratio:.2f}"])
