"""The peer: transformers' own image processor on encoded images, in whatever environment runs this file.

`python bench/peer.py BACKEND FOLDER REPEATS SECONDS` reads FOLDER/*.bin and FOLDER/settings.json and prints
one JSON object: per file the CPU seconds of every repeat, at least REPEATS and SECONDS in all, and the
SHA-256 of pixel_values. With `batch` in place of the seconds the files FOLDER/<batch>-<index>.bin are
processed batch by batch, and the seconds are per batch.
"""

import hashlib
import io
import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Runs the peer on one thread."""
    backend, folder, repeats = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    import torch
    import transformers
    from PIL import Image

    torch.set_num_threads(1)
    settings = json.loads((folder / "settings.json").read_text())
    name = "Qwen2VLImageProcessor" + ("Pil" if backend == "pil" else "")
    processor = getattr(transformers, name)(**settings)

    def run(data: bytes) -> object:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        return processor([image], return_tensors="pt")["pixel_values"]

    if sys.argv[4:] == ["batch"]:
        print(json.dumps({"batches": _batches(processor, folder, repeats)}))
        return
    report, seconds = {}, float(sys.argv[4])
    for path in sorted(folder.glob("*.bin")):
        data = path.read_bytes()
        digest = hashlib.sha256(run(data).numpy().tobytes()).hexdigest()
        times: list[float] = []
        while len(times) < repeats or sum(times) < seconds:
            start = time.process_time()
            run(data)
            times.append(time.process_time() - start)
        report[path.stem] = {"cpu_s": times, "sha256": digest}
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__, "files": report}))


def _batches(processor: object, folder: Path, repeats: int) -> dict[str, list[float]]:
    """CPU seconds of each batch: files of one batch share the part of their name before the dash."""
    from PIL import Image

    batches: dict[str, list[bytes]] = {}
    for path in sorted(folder.glob("*.bin")):
        batches.setdefault(path.stem.partition("-")[0], []).append(path.read_bytes())
    report: dict[str, list[float]] = {}
    for name, files in batches.items():
        times = []
        for _ in range(repeats):
            start = time.process_time()
            images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
            processor(images, return_tensors="pt")["pixel_values"]
            times.append(time.process_time() - start)
        report[name] = times
    return report


if __name__ == "__main__":
    main()
