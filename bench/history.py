"""A long history with one more message: tokenizing against the same prompt encoded from scratch."""

import random
import time
from pathlib import Path

import tokenizers
from patchloom_service.chat.tokenize import Tokenizer, pieces

from bench.rank_tokenizer import build_tokenizer
from bench.table import Row

TOKENS = 100_000
_CACHE = Path(__file__).resolve().parents[1] / ".cache" / "tokenizers"
_START, _END = "<|im_start|>", "<|im_end|>\n"
_WORDS = (
    *("the", "service", "returns", "an", "error", "when", "file", "def", "parse(value):", "return", "total"),
    *("{", "}", "=", "42", "1,204", "rows", "界面", "截图", "https://example.com/a?b=1", "\n", "  "),
)


def load() -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """Qwen2.5's tokenizer as the service has it, and as it comes: the peer, which encodes it all."""
    directory = build_tokenizer("qwen2_5", _CACHE)
    whole = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    return Tokenizer.load(directory).guarded(_START + _END), whole


def history(tokens: int, seed: int = 0) -> list[str]:
    """Messages of an agent session, about `tokens` tokens together, each with its control tokens."""
    drawn = random.Random(seed)
    messages, left = [], tokens
    while left > 0:
        words = drawn.choices(_WORDS, k=drawn.randrange(20, 800))
        messages.append(f"{_START}{drawn.choice(('user', 'assistant', 'tool'))}\n{' '.join(words)}{_END}")
        left -= int(1.6 * len(words))
    return messages


def encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """The ids of a prompt by segments, as the service encodes it."""
    found = pieces(tokenizer, prompt)
    texts = iter(tokenizer.encode_many([piece for piece in found if isinstance(piece, str)]))
    ids: list[int] = []
    for piece in found:
        if isinstance(piece, str):
            ids.extend(next(texts))
        else:
            ids.append(piece.id)
    return ids


def run(repeats: int) -> Row:
    """Seconds for the prompt with one new message, known segments against none known."""
    served, peer = load()
    messages = history(TOKENS)
    encode(served, "".join(messages))
    ours, theirs = [], []
    for number in range(repeats):
        prompt = "".join([*messages, *history(200, seed=1000 + number)[:1]])
        start = time.perf_counter()
        ids = encode(served, prompt)
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        whole = peer.encode(prompt, add_special_tokens=False).ids
        theirs.append(time.perf_counter() - start)
        assert ids == whole
    return Row(f"{len(ids)} tokens of history and one message", ours, theirs, least=20.0)
