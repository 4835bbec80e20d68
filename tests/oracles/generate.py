"""Runs the processors of transformers in the oracle environment and writes what they give.

Run it as `PYTHONPATH=. .venv-oracles/bin/python -m tests.oracles.generate [--out FOLDER] [FAMILY ...]`.
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch
import torchvision
import transformers
from PIL import Image

from tests.oracles.families import (
    FAMILIES,
    Family,
    build_tokenizer,
    digest,
    image,
    rule_sizes,
    run_lengths,
)

GOLDEN = Path(__file__).resolve().parents[1] / "data" / "golden"


def build_processor(family: Family) -> Any:
    """The processor of transformers with the torchvision backend."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(family),
        extra_special_tokens=dict(family.attributes),
        pad_token="unused299",
    )
    parts = {name: getattr(transformers, kind)() for name, kind in family.companions.items()}
    settings = {k: v for k, v in family.image.items() if k != "image_processor_type"}
    images = getattr(transformers, family.image_class)(**settings)
    return getattr(transformers, family.processor_class)(
        image_processor=images, tokenizer=tokenizer, **parts, **family.processor
    )


def outcome(family: Family, processor: Any, sizes: Any, pixels: bool) -> dict[str, Any]:
    """Ids, token types and tensors that the processor gives for images of these sizes."""
    pictures = [Image.fromarray(image(tuple(size))) for size in sizes]
    arguments: dict[str, Any] = {"images": [pictures] if family.processor_class in NESTED else pictures}
    made = processor(text=[family.prompt(len(sizes))], return_tensors="pt", **arguments)
    ids = made.pop("input_ids")
    made.pop("attention_mask", None)
    types = {key: run_lengths(made.pop(key)[0].tolist()) for key in TYPES if key in made}
    return {
        "sizes": [list(size) for size in sizes],
        "ids": run_lengths(ids[0].tolist()),
        "types": types,
        "tensors": {name: describe(value, pixels) for name, value in sorted(made.items())},
    }


NESTED = {"LlavaOnevisionProcessor"}
TYPES = ("mm_token_type_ids", "token_type_ids")


def describe(value: Any, pixels: bool) -> dict[str, Any]:
    """Shape, type and digest of a tensor; no digest of pixels where they are not compared."""
    tensor = torch.as_tensor(np.array(value)) if isinstance(value, list) else value
    facts = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if pixels or not tensor.is_floating_point():
        bits = tensor.contiguous().view(torch.int16) if tensor.dtype is torch.bfloat16 else tensor
        facts["sha256"] = digest(bits.numpy())
    return facts


def rule(name: str) -> dict[str, list[list[int]]]:
    """What the size rule of a family without a PIL class gives for many sizes: [height, width, *result]."""
    if name == "llama4":
        made = [[*size, *_llama4(*size)] for size in rule_sizes()]
    elif name == "kimi_k25":
        from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

        made = [[*size, *sum(navit_resize(*size, 14, 2, 16384, 512), ())] for size in rule_sizes()]
    else:
        return {}
    return {"rule": made}


def _llama4(height: int, width: int) -> tuple[int, ...]:
    """Canvas and content, as Llama4ImageProcessor._preprocess puts its functions together."""
    from transformers.models.llama4 import image_processing_llama4 as llama4

    tile = llama4.SizeDict(height=336, width=336)
    resolutions = torch.tensor(llama4.find_supported_resolutions(max_num_chunks=16, patch_size=tile))
    canvas = llama4.get_best_fit((height, width), resolutions)
    limits = [min(max(own, 336), most) for own, most in zip((height, width), canvas, strict=True)]
    content = llama4.get_max_res_without_distortion((height, width), limits)
    return (*canvas.tolist(), *(max(int(side), 1) for side in content))


def generate(name: str) -> dict[str, Any]:
    """All cases of a family."""
    family = FAMILIES[name]
    processor = build_processor(family)
    return {
        "oracle": f"{type(processor).__name__} with {type(processor.image_processor).__name__}",
        "versions": {
            module.__name__: module.__version__ for module in (transformers, torch, torchvision, PIL)
        },
        **rule(name),
        "cases": [outcome(family, processor, sizes, pixels) for sizes, pixels in family.cases()],
    }


def as_text(golden: dict[str, Any]) -> str:
    """JSON with one case per line."""
    cases = golden["cases"]
    rest = {key: value for key, value in golden.items() if key != "cases"}
    head = json.dumps({**rest, "cases": []}).rstrip("]}\n ")
    return head + "\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]}\n"


def main() -> None:
    """Write the goldens of the families named, by default of all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=GOLDEN)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.families:
        (options.out / f"{name}.json").write_text(as_text(generate(name)), encoding="utf-8")


if __name__ == "__main__":
    main()
