"""Runs transformers' PIL image processor on files, under whatever Pillow is first on the path.

`python hf_pil.py CASES.json OUT.npz`; CASES.json is a list of {"file", "settings"}; OUT.npz has pixel_values
and image_grid_thw of case i as p<i> and g<i>.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    """Runs all cases."""
    from PIL import Image
    from transformers import Qwen2VLImageProcessorPil

    results = {}
    for index, case in enumerate(json.loads(Path(sys.argv[1]).read_text())):
        processor = Qwen2VLImageProcessorPil(**case["settings"])
        output = processor([Image.open(case["file"]).convert("RGB")])
        results[f"p{index}"] = np.asarray(output["pixel_values"])
        results[f"g{index}"] = np.asarray(output["image_grid_thw"])
    np.savez(sys.argv[2], **results)


if __name__ == "__main__":
    main()
