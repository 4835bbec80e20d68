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
    """One comparison: seconds, or another unit, of ours and of the peer in the same run.

    `least` is the ratio that is promised; `scale` and `unit` are for printing.
    """

    name: str
    ours: Sequence[float]
    theirs: Sequence[float]
    least: float | None = None
    scale: float = 1000.0
    unit: str = "ms"

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
    """The table as text: p20/p50/p80 of both sides, the ratio of the medians and the promised one."""
    lines = [f"{'what':<52} {'ours':>24} {'peer or limit':>24} {'ratio':>8} {'target':>8}"]
    for row in rows:
        ours, theirs = (_figures(row, times) for times in (row.ours, row.theirs))
        target = "" if row.least is None else f"{row.least:.4g}x"
        missed = "" if row.least is None or row.ratio >= row.least else "  missed"
        lines.append(f"{row.name:<52} {ours:>24} {theirs:>24} {row.ratio:>7.1f}x {target:>8}{missed}")
    return "\n".join(lines)


def _figures(row: Row, values: Sequence[float]) -> str:
    found = spread(values) if len(values) > 1 else values
    return "/".join(f"{row.scale * value:.1f}" for value in found) + f" {row.unit}"


def append(name: str, rows: Sequence[Row], version: str) -> None:
    """Appends the rows to results/<name>.csv."""
    path = RESULTS / f"{name}.csv"
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            figures = [f"{side}_{point}" for side in ("ours", "peer") for point in ("p20", "p50", "p80")]
            writer.writerow(["version", "device", "date", "what", *figures, "ratio"])
        today = datetime.date.today().isoformat()
        for row in rows:
            figures = [f"{value:.6f}" for times in (row.ours, row.theirs) for value in spread(times)]
            writer.writerow([version, platform.machine(), today, row.name, *figures, f"{row.ratio:.2f}"])
