"""The table of the supported models, as docs/models.md shows it.

Run it as `python -m patchloom_service.models.table > docs/models.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from patchloom_service.models import (
    deepseek_ocr2,
    gemma3,
    gemma4,
    glm4v,
    glm5_next,
    inkling,
    internvl,
    kimi_k25,
    llama4,
    llava_onevision,
    minicpmv,
    pixtral,
    qwen2_vl,
    step3p7,
)

BOTH = "`aten_u8`: torchvision backend; `pillow12`, `pillow13`: PIL backend"
TORCHVISION = "`aten_u8`: torchvision backend; there is no PIL backend to equal"
_QWEN = {"pixel_values": "[patches, 3 t p p]", "image_grid_thw": "[images, 3]"}


@dataclass(frozen=True, slots=True)
class Row:
    """A supported family: `tensors` maps names to shapes, `goldens` are its recorded processors."""

    family: str
    architectures: tuple[str, ...]
    oracle: str
    parity: str
    tensors: Mapping[str, str]
    status: str = "exact"
    goldens: tuple[str, ...] = ()


def models_table() -> tuple[Row, ...]:
    """One row for each family, in the order in which users look for them."""
    qwen = {
        "Qwen2-VL": ("Qwen2VL", "Qwen2VLProcessor", ("qwen2_vl",)),
        "Qwen2.5-VL": ("Qwen2_5_VL", "Qwen2_5_VLProcessor", ("qwen2_5_vl",)),
        "Qwen3-VL": ("Qwen3VL", "Qwen3VLProcessor", ("qwen3_vl",)),
        "Qwen3.5, 3.6": ("Qwen3_5", "Qwen3VLProcessor", ()),
        "Qwen3-Omni (images)": ("Qwen3Omni", "Qwen3OmniMoeProcessor", ("qwen3_omni_moe",)),
    }
    return (
        *(
            Row(family, _starting(qwen2_vl.ARCHITECTURES, prefix), oracle, BOTH, _QWEN, goldens=goldens)
            for family, (prefix, oracle, goldens) in qwen.items()
        ),
        Row(
            "Intern-S1-Pro",
            _starting(qwen2_vl.ARCHITECTURES, "InternS1Pro"),
            "none: transformers has no such model; its image processor is Qwen2VLImageProcessor",
            BOTH,
            _QWEN,
            "image rule of Qwen3-VL, as other servers have it; not compared with the model's own code",
        ),
        Row(
            "GLM-4.1V, 4.5V, 4.6V, GLM-OCR",
            tuple(glm4v.ARCHITECTURES),
            "Glm4vProcessor, Glm46VProcessor",
            BOTH,
            _QWEN,
            goldens=("glm4v", "glm46v"),
        ),
        Row(
            "GLM-5.3-Flash",
            tuple(glm5_next.ARCHITECTURES),
            "Glm5NextProcessor",
            BOTH,
            _QWEN,
            goldens=("glm5_next",),
        ),
        Row(
            "InternVL3, 3.5",
            (internvl.ARCHITECTURE,),
            "InternVLProcessor",
            BOTH,
            {"pixel_values": "[tiles, 3, 448, 448]"},
            goldens=("internvl",),
        ),
        Row(
            "InternVL (chat form)",
            (internvl.CHAT_ARCHITECTURE,),
            "none: remote code; the image rule is GotOcr2ImageProcessor's",
            BOTH,
            {"pixel_values": "[tiles, 3, 448, 448]"},
            "image rule as published; not compared with the model's own code",
        ),
        Row(
            "Intern-S1",
            (),
            "none: transformers has no such model",
            "-",
            {"-": ""},
            "not served: remote code; other servers give it the image rule of InternVL3",
        ),
        Row(
            "Inkling (images and audio)",
            (inkling.ARCHITECTURE,),
            "InklingProcessor",
            TORCHVISION,
            {
                "pixel_values": "[patches, 2, 40, 40, 3]",
                "audio_input_ids": "[clips, frames, 80] int32",
                "audio_input_ids_mask": "[clips, frames] bool",
            },
            "exact; audio at 16 kHz, other rates are resampled as torchaudio does",
            goldens=("inkling", "inkling_doubling"),
        ),
        Row(
            "Kimi K2.5, K2.6",
            tuple(kimi_k25.ARCHITECTURES),
            "Kimi_K25Processor",
            TORCHVISION,
            {"pixel_values": "[patches, 3, p, p]", "image_grid_thw": "[images, 3]"},
            goldens=("kimi_k25",),
        ),
        Row(
            "MiniCPM-V 4.6, 4.7",
            tuple(minicpmv.ARCHITECTURES),
            "MiniCPMV4_6Processor, MiniCPMV4_7Processor",
            BOTH,
            {"pixel_values": "[1, 3, p, patches p]", "target_sizes": "[slices, 2]"},
            "exact; no M-RoPE positions for 4.7",
            ("minicpmv4_6", "minicpmv4_6_4x", "minicpmv4_7"),
        ),
        Row(
            "Pixtral, Mistral 3",
            tuple(pixtral.ARCHITECTURES),
            "PixtralProcessor",
            BOTH,
            {"pixel_values": "[images, 3, H, W]", "image_sizes": "[images, 2]"},
            goldens=("pixtral", "mistral3"),
        ),
        Row(
            "Gemma 3",
            tuple(gemma3.ARCHITECTURES),
            "Gemma3Processor",
            BOTH,
            {"pixel_values": "[images, 3, 896, 896]"},
            "exact; without pan and scan, as its processor has it",
            ("gemma3",),
        ),
        Row(
            "Gemma 4 (images)",
            tuple(gemma4.ARCHITECTURES),
            "Gemma4Processor",
            BOTH,
            {
                "pixel_values": "[images, patches, 3 p p]",
                "image_position_ids": "[images, patches, 2]",
            },
            goldens=("gemma4",),
        ),
        Row(
            "Llama 4",
            tuple(llama4.ARCHITECTURES),
            "Llama4Processor",
            TORCHVISION,
            {"pixel_values": "[tiles, 3, 336, 336] bfloat16"},
            goldens=("llama4",),
        ),
        Row(
            "LLaVA-OneVision",
            tuple(llava_onevision.ARCHITECTURES),
            "LlavaOnevisionProcessor",
            BOTH,
            {
                "pixel_values": "[images, tiles, 3, 384, 384]",
                "image_sizes": "[images, 2]",
                "batch_num_images": "[1]",
            },
            goldens=("llava_onevision",),
        ),
        Row(
            "DeepSeek-OCR 2",
            tuple(deepseek_ocr2.ARCHITECTURES),
            "DeepseekOcr2Processor",
            BOTH,
            {
                "pixel_values": "[images, 3, 1024, 1024]",
                "pixel_values_local": "[tiles, 3, 768, 768]",
                "num_local_patches": "[images]",
            },
            goldens=("deepseek_ocr2",),
        ),
        Row(
            "Step 3.7",
            tuple(step3p7.ARCHITECTURES),
            "Step3p7Processor",
            TORCHVISION,
            {
                "pixel_values": "[images, 3, 728, 728]",
                "pixel_values_local": "[windows, 3, 504, 504]",
                "num_local_patches": "[images]",
            },
            goldens=("step3p7",),
        ),
        Row(
            "any other",
            (),
            "the checkpoint's own processor class in transformers",
            "whatever backend is installed; the parity of a request changes nothing",
            {"as the processor has them": ""},
            "reference: slow, on the CPU, in the processor's own code",
        ),
    )


def _starting(architectures: Mapping[str, str], prefix: str) -> tuple[str, ...]:
    """The architectures of one model of a line."""
    ends = ("For", "Moe")
    return tuple(name for name in architectures if name.removeprefix(prefix).startswith(ends))


def as_markdown(rows: tuple[Row, ...]) -> str:
    """The page docs/models.md."""
    return "\n".join((*_HEAD, *(_line(row) for row in rows), *_FOOT)) + "\n"


_HEAD = (
    "# Models",
    "",
    "Written by `python -m patchloom_service.models.table > docs/models.md`; a test compares the two.",
    "",
    "| family | architectures | oracle (transformers 5.24) | pixels equal | tensors | status |",
    "|---|---|---|---|---|---|",
)
_FOOT = (
    "",
    "*exact*: token ids, token types, tensor names, shapes and element types equal the processor's, pixels",
    "bit for bit. Tests compare with records of the processors (`tests/data/golden`), which `make parity`",
    "makes anew in the oracle environment, and with the PIL classes directly. A row without one says so.",
    "A setting of a checkpoint that would change a pixel is honoured or refused at load, by name.",
)


def _line(row: Row) -> str:
    architectures = ", ".join(f"`{name}`" for name in row.architectures) or "-"
    tensors = ", ".join(f"`{name}` {shape}".strip() if shape else name for name, shape in row.tensors.items())
    cells = (row.family, architectures, row.oracle, row.parity, tensors, row.status)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print(as_markdown(models_table()), end="")
