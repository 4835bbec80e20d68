import json
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from bench import rank_tokenizer
from tests.support.tokenizers import build_tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from tml_renderers import tokenizers as oracles

ORACLES = {
    "qwen2_5": "Qwen3Tokenizer",
    "qwen3": "Qwen3Tokenizer",
    "internvl3": "Qwen3Tokenizer",
    "qwen3_5": "Qwen35Tokenizer",
    "glm5": "GlmTokenizer",
    "kimi_k25": "KimiK25Tokenizer",
    "inkling": "O200kBaseChatTokenizer",
}
TEXTS = (
    "I'm sure they'll say it's fine, we've DON'T and CAN'T; parseHTTPResponse getX2Y",
    "def f(x):\n\tif x > 0:\n\t\treturn x ** 2\n\n\n    # done\n",
    "今天的天气很好，我们去公园散步吧。价格是３２元。",
    "Съешь же ещё этих мягких французских булок: й и и\u0306, е\u0301",
    "吾輩は猫である。名前はまだ無い。 안녕하세요 세계, 만나서 반갑습니다",
    "مرحبا بالعالم नमस्ते दुनिया สวัสดีชาวโลก",
    "👍🏽 👩‍👩‍👧‍👦 zero\u200bwidth no\u00a0break",
    "  leading   runs \t\t tabs   ",
    "\r\nstart\r\n\r\nmiddle\r\nend\r\n",
    "1234567890123 3.14159 2026-11-30 1,000,000 v0.22.1",
    '{"name": "search", "arguments": {"q": "a/b", "n": [1, 2.5, null, true]}}',
)
IDS = {
    "qwen2_5": {"<|im_start|>": 151644, "<|image_pad|>": 151655, "<|file_sep|>": 151664},
    "qwen3": {"<|vision_start|>": 151652, "<tool_response>": 151665, "</think>": 151668},
    "qwen3_5": {"<|image_pad|>": 248056, "<tool_call>": 248058, "<|audio_pad|>": 248076},
    "internvl3": {"<img>": 151665, "</img>": 151666, "<IMG_CONTEXT>": 151667, "<video>": 151674},
    "glm5": {"<|begin_of_image|>": 154830, "/nothink": 154851, "<|image|>": 154854},
    "kimi_k25": {"<|im_end|>": 163586, "<|media_pad|>": 163605, "</think>": 163607},
    "inkling": {"<|content_image|>": 200005, "<|unused_200054|>": 200054, "<|audio_end|>": 200043},
}


def load(family: str) -> Tokenizer:
    return Tokenizer.from_file(str(build_tokenizer(family) / "tokenizer.json"))


def test_every_family_is_tested():
    assert set(rank_tokenizer.families()) == set(ORACLES) == set(IDS)


@pytest.mark.parametrize("family", ORACLES)
def test_text_encodes_as_the_oracle_does(family):
    tokenizer, oracle = load(family), getattr(oracles, ORACLES[family])()
    for text in (*TEXTS, " ".join(TEXTS)):
        assert tokenizer.encode(text, add_special_tokens=False).ids == oracle.encode_ordinary(text)


@pytest.mark.parametrize("family", ["qwen3", "qwen3_5", "glm5", "kimi_k25", "inkling"])
def test_added_tokens_are_those_of_the_oracle(family):
    oracle = getattr(oracles, ORACLES[family])()
    want = {}
    for name in oracle.special_tokens():
        id = oracle.encode_special(name)
        want[oracle.decode([id])] = id
    got = json.loads((build_tokenizer(family) / "tokenizer.json").read_text())["added_tokens"]
    assert {token["content"]: token["id"] for token in got} == want


@pytest.mark.parametrize("family", IDS)
def test_added_tokens_have_their_known_ids_and_split_text(family):
    tokenizer = load(family)
    for spelling, id in IDS[family].items():
        assert tokenizer.token_to_id(spelling) == id
        assert id in tokenizer.encode(f"a{spelling}b", add_special_tokens=False).ids


@pytest.mark.parametrize("family", ["qwen3", "inkling"])
def test_every_ordinary_token_that_is_text_is_a_token_of_its_own(family):
    tokenizer, oracle = load(family), getattr(oracles, ORACLES[family])()
    checked = 0
    for id in range(256, 150_000, 97):
        text = bytes(oracle.decode_bytes([id])).decode("utf-8", "ignore")
        if not text or oracle.encode_ordinary(text) != [id]:
            continue
        assert tokenizer.encode(text, add_special_tokens=False).ids == [id]
        checked += 1
    assert checked > 1000


def test_transformers_loads_the_directory_with_the_names_that_processors_read():
    tokenizer = AutoTokenizer.from_pretrained(build_tokenizer("internvl3"))
    names = ("start_image_token", "end_image_token", "context_image_token", "eos_token")
    assert [getattr(tokenizer, name) for name in names] == [
        *("<img>", "</img>", "<IMG_CONTEXT>"),
        "<|im_end|>",
    ]


def test_the_byte_letters_are_those_of_gpt2():
    assert rank_tokenizer.byte_letters() == bytes_to_unicode()


def test_merges_are_every_split_into_two_tokens_by_rank():
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"bc": 4, b"abc": 5}
    assert rank_tokenizer.merges(ranks) == [
        (b"a", b"b"),
        (b"b", b"c"),
        (b"a", b"bc"),
        (b"ab", b"c"),
    ]


def test_a_rank_file_with_a_gap_is_refused():
    with pytest.raises(ValueError, match="without a gap"):
        rank_tokenizer.read_rank_file(b"YQ== 0\nYg== 2\n")


def test_a_rank_file_without_all_bytes_is_refused():
    with pytest.raises(ValueError, match="256"):
        rank_tokenizer.read_rank_file(b"YQ== 0\nYg== 1\n")


def test_an_unknown_family_is_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(ValueError, match="qwen2_5, qwen3"):
        rank_tokenizer.build_tokenizer("gpt2", tmp_path)


def test_parallel_builders_get_one_whole_directory(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: rank_tokenizer.build_tokenizer("qwen3", tmp_path), range(4)))
    (directory,) = found
    assert sorted(path.name for path in directory.iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [directory]
