"""The prepared command for a GPU runs from end to end in the interpreter, on tiny pictures."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))
import h200  # noqa: E402

STAGES = {
    *("exact resize", "exact jpeg", "exact png", "exact pipeline"),
    *("copy", "resize", "jpeg", "png", "end to end", "cpu", "peers"),
}


def test_the_command_checks_and_times_everything_and_writes_its_results(tmp_path):
    done = subprocess.run(
        [sys.executable, "bench/h200.py", "--tiny", "--out", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "proto:kernels:service:clients"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    with (tmp_path / "h200.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["stage"] for row in rows} == STAGES
    assert [row["case"] for row in rows if row["unit"] == "-"] == ["not run: no torchvision on a device"]
    assert len((tmp_path / "h200.md").read_text().splitlines()) == len(rows) + 4


def test_a_stage_that_fails_or_takes_too_long_stops_only_what_builds_on_it():
    def good():
        yield "a", 1.0, "s"

    def bad():
        yield "b", 2.0, "s"
        raise AssertionError("3 of 9 values differ")

    def endless():
        while True:
            yield from ()

    report = h200.Report()
    stages = [
        h200.Stage("exact", bad, 5),
        h200.Stage("timed", good, 5, ("exact",)),
        h200.Stage("endless", endless, 1),
        h200.Stage("other", good, 5),
    ]
    h200.run_stages(stages, report, 30)
    assert [(row.stage, row.case) for row in report.rows] == [
        ("exact", "b"),
        ("exact", "failed: AssertionError: 3 of 9 values differ"),
        ("timed", "not run: exact failed"),
        ("endless", "failed: TimeoutError: longer than 1 s"),
        ("other", "a"),
    ]


@pytest.mark.parametrize("left", [0, 0.5])
def test_no_stage_begins_without_time(left):
    report = h200.Report()
    h200.run_stages([h200.Stage("late", lambda: iter(()), 5)], report, left)
    assert [(row.stage, row.case) for row in report.rows] == [("late", "not run: no time left")]
