import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.chat.twins import (
    PRIVATE_START,
    Literals,
    Restorer,
    open_heads,
    private_block,
    starts_pattern,
    trie_pattern,
)

TOKENS = ("<|end|>", "<|image|>", "<a>", "[M]", "/no")
TWINS = {"<": "\U000f0000", "[": "\U000f0001", "/": "\U000f0002"}
WORDS = st.lists(st.text("ab<>|", min_size=1, max_size=4), min_size=1, max_size=8)


def marks(literals, text):
    """The text with a caret in front of each site."""
    sites = set(literals.sites(text))
    return "".join(("^" if i in sites else "") + character for i, character in enumerate(text))


@given(words=WORDS, text=st.text("ab<>|x", max_size=30))
def test_the_trie_finds_what_an_alternation_of_longest_first_finds(words, text):
    plain = "|".join(map(re.escape, sorted(set(words), key=len, reverse=True)))
    assert [m.span() for m in re.finditer(trie_pattern(words), text)] == [
        m.span() for m in re.finditer(plain, text)
    ]


@given(words=WORDS, text=st.text("ab<>|x", max_size=30))
def test_every_start_of_a_word_is_found_overlapping_ones_too(words, text):
    starts = [i for i in range(len(text)) if any(text.startswith(word, i) for word in words)]
    assert [m.start() for m in re.finditer(starts_pattern(words), text)] == starts


def test_no_words_match_nothing():
    assert re.findall(trie_pattern([]), "abc") == []
    assert Literals([]).sites("<|end|>") == []


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("", ""),
        ("plain text", "plain text"),
        ("a<|end|>b", "a^<|end|>b"),
        ("<a><a>", "^<a>^<a>"),
        ("a < b", "a < b"),
        ("ends with <|im", "ends with ^<|im"),
        ("ends with < \n", "ends with ^< \n"),
        ("<|im<|end|>", "^<|im^<|end|>"),
        ("no[M]/no", "no^[M]^/no"),
        ("url/", "url^/"),
    ],
)
def test_sites_are_whole_tokens_and_beginnings_that_text_behind_could_complete(text, marked):
    assert marks(Literals(TOKENS), text) == marked


def test_tokens_in_another_case_are_sites_but_no_literals():
    literals = Literals(("<|end|>", "kit"))
    assert marks(literals, "<|END|> Kit kIt \u212ait <|En") == "^<|END|> ^Kit ^kIt \u212ait ^<|En"
    assert literals.first("<|END|> Kit") == ""


def test_overlapping_tokens_are_all_disarmed():
    assert marks(Literals(["<a<", "<b>"]), "<a<b>") == "^<a^<b>"


def test_a_kept_token_is_a_place_where_a_template_may_cut():
    literals = Literals(["<|end|>"], boundaries=["<think>"])
    assert marks(literals, "<|e <think>x") == "^<|e <think>x"
    assert marks(literals, "<think>") == "<think>"


def test_text_that_completes_a_token_begun_by_the_template_is_a_site():
    literals = Literals(["<|end|>"], open_heads=open_heads(["x<|", "y"], ["<|end|>"]))
    assert [marks(literals, text) for text in ("end", " end|>x", "en", "ending", "fend")] == [
        "^end",
        " ^end|>x",
        "^en",
        "ending",
        "fend",
    ]


def test_the_first_whole_token_is_named():
    literals = Literals(TOKENS)
    assert [literals.first(text) for text in ("a[M]<a>", "<|im", "")] == ["[M]", "", ""]


@given(text=st.text("<|end>[M]/no \n", max_size=40))
def test_a_disarmed_text_holds_no_token_and_restores_to_itself(text):
    disarmed = Literals(TOKENS).disarm(text, TWINS)
    assert not any(token in disarmed for token in TOKENS)
    assert Restorer(TWINS)(disarmed) == text


@given(texts=st.lists(st.text("<|end>/no", max_size=6), max_size=6))
def test_disarmed_texts_join_to_no_token(texts):
    disarmed = [Literals(TOKENS).disarm(text, TWINS) for text in texts]
    assert not any(token in "".join(disarmed) for token in TOKENS)


def test_an_escaped_twin_is_restored_too():
    assert Restorer(TWINS)("a\\udb80\\udc00b") == "a<b"


def test_a_private_block_avoids_what_texts_hold():
    texts = ["\U000f0000", "x\U000f0003y", "\\uDB80\\udc05"]
    assert private_block(texts, 2).start == PRIVATE_START + 1
    assert private_block(texts, 3).start == PRIVATE_START + 6


def test_there_is_no_block_where_all_private_code_points_are_used():
    assert private_block(["".join(map(chr, range(PRIVATE_START, 0x10FFFE, 2)))], 2) is None
