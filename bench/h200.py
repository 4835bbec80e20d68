"""One command for a borrowed GPU: every kernel against the CPU on real sizes, then times, in eight minutes.

    PYTHONPATH=proto:kernels:service:clients python3 bench/h200.py [--tiny] [--out DIR]

Needs torch, triton, numpy and Pillow; numba, torchvision and transformers where they are there. `--tiny` runs
the same code on tiny pictures in Triton's interpreter, where times mean nothing. Writes h200.csv and h200.md.
"""

import argparse
import csv
import datetime
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

TOTAL_SECONDS = 450


@dataclass(frozen=True, slots=True)
class Row:
    """One measured number, or the reason why there is none (unit "-")."""

    stage: str
    case: str
    value: float | str
    unit: str


@dataclass(frozen=True, slots=True)
class Stage:
    """A function that yields (case, value, unit), its limit in seconds, and the stages it builds on."""

    name: str
    run: Callable[[], Iterator[tuple[str, float | str, str]]]
    seconds: int
    needs: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """Rows as they come; stages that failed."""

    rows: list[Row] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)

    def add(self, stage: str, case: str, value: float | str, unit: str) -> None:
        """Keeps a row and prints it."""
        self.rows.append(Row(stage, case, value, unit))
        print(_line(self.rows[-1]), flush=True)


def run_stages(stages: list[Stage], report: Report, total: float) -> None:
    """Runs stages in order within their limits and the total; one that fails leaves the others be."""
    end = time.monotonic() + total
    for stage in stages:
        left = int(min(stage.seconds, end - time.monotonic()))
        broken = sorted(report.failed & set(stage.needs))
        if broken or left < 1:
            report.failed.add(stage.name)
            report.add(stage.name, f"not run: {broken[0] + ' failed' if broken else 'no time left'}", "", "-")
            continue
        try:
            with _limit(left):
                for case, value, unit in stage.run():
                    report.add(stage.name, case, value, unit)
        except Exception as error:  # noqa: BLE001
            report.failed.add(stage.name)
            report.add(stage.name, f"failed: {type(error).__name__}: {str(error)[:300]}", "", "-")


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _line(row: Row) -> str:
    value = f"{row.value:.4g}" if isinstance(row.value, float) else str(row.value)
    return f"{row.stage:18} {row.case:58} {value:>10} {row.unit}"


def write(report: Report, machine: str, directory: Path) -> None:
    """h200.csv with one line per row, h200.md with the same as a table."""
    directory.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    with (directory / "h200.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["date", "machine", "stage", "case", "value", "unit"])
        writer.writerows([date, machine, row.stage, row.case, row.value, row.unit] for row in report.rows)
    lines = [f"# {machine}, {date}", "", "| stage | case | value | unit |", "|---|---|---|---|"]
    for row in report.rows:
        value = f"{row.value:.4g}" if isinstance(row.value, float) else row.value
        lines.append(f"| {row.stage} | {row.case} | {value} | {row.unit} |")
    (directory / "h200.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main() -> int:
    """0 where every stage ran and every byte was right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="tiny pictures in Triton's interpreter")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.tiny:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    sys.path.insert(0, str(Path(__file__).parent))
    import h200_stages

    report = Report()
    bench = h200_stages.Bench(options.tiny)
    stages = [Stage(*stage) for stage in bench.stages()]
    if options.tiny:  # an interpreter's times say nothing, so they need no limit of their own
        stages = [replace(stage, seconds=TOTAL_SECONDS) for stage in stages]
    run_stages(stages, report, TOTAL_SECONDS)
    write(report, bench.machine, options.out)
    print(f"\n{bench.machine}")
    for row in report.rows:
        if row.stage in h200_stages.SUMMARY or row.unit == "-":
            print(_line(row))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
