"""`make bench`: the tables of ratios, in one run on this machine."""

import argparse
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import (
    agent_replay,
    batches,
    counting,
    event_loop,
    history,
    memory,
    peers,
    rates,
    single_image,
    stages,
    table,
    workloads,
)
from bench.checkpoints import ROOT, build_checkpoint


@dataclass(frozen=True, slots=True)
class Section:
    """One table, and the file of results that its rows go to."""

    name: str
    title: str
    run: Callable[[], Sequence[table.Row]]


def main() -> None:
    """Runs the benchmarks and prints their tables; ratios say how many times less ours takes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", metavar="SECTION", help="a part of the names of the sections")
    parser.add_argument("--images", default="", help="a part of the names of the single images")
    parser.add_argument("--append", action="store_true", help="append rows to bench/results")
    arguments = parser.parse_args()
    for section in _sections(arguments.repeats, arguments.images):
        if arguments.only not in section.name:
            continue
        start = time.monotonic()
        rows = section.run()
        print(f"\n{section.title} [{section.name}, {time.monotonic() - start:.0f} s]")
        print(table.show(rows), flush=True)
        if arguments.append:
            table.append(section.name, rows, importlib.metadata.version("patchloom"))


def _sections(repeats: int, wanted: str) -> list[Section]:
    model = _model_dir()
    images = [image for image in workloads.single_images() if wanted in image.name]
    return [
        Section(
            "single_image",
            "Encoded image to Qwen2.5-VL patches (float32, max_pixels 12845056), CPU time on one core",
            lambda: single_image.run(images, repeats),
        ),
        Section(
            "stages",
            "The stages of one 1080p image by themselves, CPU time on one core",
            lambda: stages.run(model, repeats),
        ),
        Section(
            "batches",
            "One request with eight images, CPU time",
            lambda: batches.run(model, peers.present(), min(repeats, 3)),
        ),
        Section(
            "agent_replay",
            "The last turn of an agent, all other images known, CPU time",
            lambda: agent_replay.run(model, peers.present()),
        ),
        Section("history", "Tokenizing a history that is known but for its last message", _history(repeats)),
        Section(
            "counting",
            "CountTokens against a cold Preprocess, CPU time",
            lambda: counting.run(model, repeats),
        ),
        Section(
            "rates",
            "Concurrent 1080p requests to a server, wall time a round",
            lambda: rates.run(model, min(repeats, 3)),
        ),
        Section(
            "event_loop",
            "Answer times of health checks under 32 requests with 4 images of 1536x2170",
            lambda: event_loop.run(model),
        ),
        Section("memory", "Resident memory of a server", lambda: memory.run(model)),
    ]


def _history(repeats: int) -> Callable[[], Sequence[table.Row]]:
    return lambda: [history.run(repeats)]


def _model_dir() -> Path:
    return build_checkpoint("qwen2_5_vl", ROOT / ".cache" / "bench" / "qwen2_5_vl")


if __name__ == "__main__":
    main()
