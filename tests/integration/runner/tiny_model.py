"""A Qwen2.5-VL of two layers with random weights, in float64, whose heads divide by eight."""

from pathlib import Path

import torch
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers.distributed import DistributedConfig

HEADS = 8


def config() -> Qwen2_5_VLConfig:
    """Real token ids and patch geometry, everything else tiny."""
    text = {
        "vocab_size": 151936,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [1, 1, 2],
        },
        "tie_word_embeddings": False,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [1],
    }
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=151655,
        video_token_id=151656,
        vision_start_token_id=151652,
        vision_end_token_id=151653,
        tie_word_embeddings=False,
    )


def write(directory: Path) -> Path:
    """The model's directory with its weights."""
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config()).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.uniform_(-0.5, 0.5)
    model.save_pretrained(directory)
    return directory


def load(directory: Path, *, sharded: bool) -> Qwen2_5_VLForConditionalGeneration:
    """The model in float64; `sharded` over the ranks of the process group that the environment names."""
    plan = {"distributed_config": DistributedConfig(tp_plan="auto")} if sharded else {}
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        directory, dtype=torch.float64, attn_implementation="eager", **plan
    )
    return model.eval()
