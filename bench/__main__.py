"""`make bench`: the tables of ratios, in one run on this machine."""

import argparse
import importlib.metadata

from bench import history, single_image, table, workloads


def main() -> None:
    """Runs the benchmarks and prints their tables."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--append", action="store_true", help="append rows to bench/results")
    arguments = parser.parse_args()
    images = [image for image in workloads.single_images() if arguments.only in image.name]
    rows = single_image.run(images, arguments.repeats)
    print("Encoded image to Qwen2.5-VL patches (float32, max_pixels 12845056), CPU time on one core")
    print(table.show(rows))
    print("Tokenizing a history that is known but for its last message")
    print(table.show([history.run(arguments.repeats)]))
    if arguments.append:
        table.append("single_image", rows, importlib.metadata.version("patchloom"))


if __name__ == "__main__":
    main()
