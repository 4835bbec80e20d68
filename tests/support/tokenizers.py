"""Real tokenizers for tests, built once per machine into the ignored cache folder."""

from pathlib import Path

from bench import rank_tokenizer

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tokenizers"


def build_tokenizer(family: str) -> Path:
    """The directory with the family's tokenizer.json and tokenizer_config.json."""
    return rank_tokenizer.build_tokenizer(family, CACHE)
