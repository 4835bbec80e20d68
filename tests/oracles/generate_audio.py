"""Runs InklingProcessor on audio in the oracle environment and writes what it gives.

Run it as `PYTHONPATH=. .venv-oracles/bin/python -m tests.oracles.generate_audio [--out FOLDER]`.
"""

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.oracles.audio import CASES, PROMPT, clip_levels
from tests.oracles.families import FAMILIES, digest, run_lengths
from tests.oracles.generate import as_text, build_processor

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden_audio"


def outcome(processor: Any, lengths: tuple[int, ...]) -> dict[str, Any]:
    """Ids and tensors that the processor gives for clips of these lengths at 16 kHz."""
    clips = [clip_levels(length).astype(np.float32) / 32768 for length in lengths]
    text = PROMPT * len(clips)
    made = processor(text=[text], audio=clips, sampling_rate=16000, return_tensors="pt")
    ids = made.pop("input_ids")
    made.pop("attention_mask")
    return {
        "lengths": list(lengths),
        "ids": run_lengths(ids[0].tolist()),
        "tensors": {
            name: {
                "dtype": str(value.dtype).removeprefix("torch."),
                "shape": list(value.shape),
                "sha256": digest(value.contiguous().numpy()),
            }
            for name, value in sorted(made.items())
        },
    }


def main() -> None:
    """Writes inkling.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=GOLDEN)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    processor = build_processor(FAMILIES["inkling"])
    value = {
        "oracle": f"{type(processor).__name__} with {type(processor.feature_extractor).__name__}",
        "versions": {"transformers": transformers.__version__, "torch": torch.__version__},
        "cases": [outcome(processor, lengths) for lengths in CASES],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "inkling.json").write_text(as_text(value), encoding="utf-8")


if __name__ == "__main__":
    main()
