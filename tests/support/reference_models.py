"""Models that no family file takes, for the row that runs their own processors."""

from tests.oracles.families import Family

CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 56},
    "crop_size": {"height": 56, "width": 56},
}
LLAVA = Family(
    processor_class="LlavaProcessor",
    image_class="CLIPImageProcessor",
    placeholder="<image>",
    slot="<image>",
    architecture="LlavaForConditionalGeneration",
    image=CLIP,
    processor={"processor_class": "LlavaProcessor", "patch_size": 14, "num_additional_image_tokens": 1},
    attributes={"image_token": "<image>"},
)
AYA = Family(
    processor_class="AyaVisionProcessor",
    image_class="GotOcr2ImageProcessor",
    placeholder="<image>",
    slot="<image>",
    architecture="AyaVisionForConditionalGeneration",
    image={
        "image_processor_type": "GotOcr2ImageProcessor",
        "size": {"height": 112, "width": 112},
        "crop_to_patches": True,
    },
    processor={"processor_class": "AyaVisionProcessor", "patch_size": 14, "img_size": 112},
    tokens=(
        *("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>"),
        *("TILE", "TILE_GLOBAL"),
    ),
)
QWEN = Family(
    processor_class="Qwen2VLProcessor",
    image_class="Qwen2VLImageProcessor",
    placeholder="<|image_pad|>",
    slot="<|image_pad|>",
    architecture="UnheardOfForConditionalGeneration",
    image={"image_processor_type": "Qwen2VLImageProcessorFast"},
    processor={"processor_class": "Qwen2VLProcessor"},
    attributes={"image_token": "<|image_pad|>", "video_token": "<|video_pad|>"},
)
