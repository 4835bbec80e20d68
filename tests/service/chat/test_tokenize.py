import threading
from functools import cache

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from patchloom_service.chat.normalize import harvest
from patchloom_service.chat.render import JinjaRenderer
from patchloom_service.chat.template_messages import Edit, draft, write
from patchloom_service.chat.tokenize import ControlMatch, Tokenizer, _rewritten, _sharing, pieces
from patchloom_service.types import ControlToken, Modality, Slot, TextSegment

from tests.support.chat import (
    MEDIA,
    PLAIN,
    TURNS,
    assistant,
    byte_tokenizer,
    call,
    conversation,
    image,
    save_tokenizer,
    system,
    tool,
    user,
)
from tests.support.tokenizers import build_tokenizer

MERGES = [("e", "n"), ("en", "d"), ("<", "|"), ("|", ">"), ("Ġ", "a")]
TEMPLATE = "<think>{{ messages }}"


@cache
def tokenizer():
    return Tokenizer(byte_tokenizer(merges=MERGES), {}).guarded(TEMPLATE, MEDIA)


def added(spelling, **flags):
    return tokenizers.AddedToken(spelling, **{"special": True, "normalized": False} | flags)


def composed(tok, prompt):
    """The ids of a prompt text, piece by piece."""
    return [
        token
        for piece in pieces(tok, prompt)
        for token in ([piece.id] if isinstance(piece, ControlMatch) else tok.encode(piece))
    ]


def whole(tok, prompt):
    """The ids of a prompt text by the checkpoint's own tokenizer."""
    return tok._full.encode(prompt, add_special_tokens=False).ids


def test_the_control_set_is_media_special_and_what_the_template_writes():
    assert set(tokenizer().control) == {*TURNS, *MEDIA, "<think>"}


def test_white_space_is_never_control():
    tok = Tokenizer(byte_tokenizer([added("\n\n")]), {}).guarded("\n\n", ())
    assert "\n\n" in tok.added
    assert "\n\n" not in tok.control


def test_a_media_token_must_be_an_added_token():
    with pytest.raises(ValueError, match="'<image>' is no added token"):
        Tokenizer(byte_tokenizer(), {}).guarded(None, ["<image>"])


@pytest.mark.parametrize("spelling", [*TURNS, *MEDIA, "<think>"])
def test_a_control_token_in_text_becomes_ordinary_ids(spelling):
    ids = tokenizer().encode(f"a{spelling}b")
    assert tokenizer().control[spelling] not in ids
    assert tokenizer().decode(ids) == f"a{spelling}b"


def test_other_added_tokens_stay_single_ids():
    assert tokenizer().encode("a<tool_call>") == [
        tokenizer().encode("a")[0],
        tokenizer().token_id("<tool_call>"),
    ]


def test_ordinary_ids_do_not_move_when_control_tokens_go():
    for spelling in PLAIN:
        if spelling not in tokenizer().control:
            assert tokenizer().encode(spelling) == [tokenizer().added[spelling].id]


@given(text=st.text("aendé \n<|>\t界", max_size=30), spelling=st.sampled_from([*TURNS, *MEDIA, *PLAIN]))
def test_the_copy_that_shares_the_model_encodes_as_the_rewritten_one(text, spelling):
    shared, rewritten = _copies()
    for written in (text, text + spelling + text):
        assert shared.encode(written).ids == rewritten.encode(written).ids


@cache
def _copies():
    raw = byte_tokenizer(merges=MERGES)
    names = {spelling: f"\U0010ffff{n}" for n, spelling in enumerate(tokenizer().control)}
    return _sharing(raw, names)[0], _rewritten(raw, names)[0]


def test_the_model_is_not_shared_where_it_knows_a_control_token():
    raw = byte_tokenizer(merges=[*MERGES, ("<|", "end"), ("<|end", "|>")])
    assert _sharing(raw, {"<|end|>": "\U0010ffff"}) is None


def test_a_control_token_that_is_in_the_vocabulary_is_guarded_too():
    raw = byte_tokenizer(merges=[*MERGES, ("<|", "end"), ("<|end", "|>")])
    assert raw.token_to_id("<|end|>") == raw.encode("<|end|>").ids[0]
    tok = Tokenizer(raw, {}).guarded(None, ())
    assert tok.control["<|end|>"] not in tok.encode("<|end|>")
    assert tok.decode(tok.encode("<|end|>")) == "<|end|>"


PROMPTS = st.lists(
    st.one_of(st.sampled_from([*TURNS, *MEDIA, *PLAIN]), st.text("aendé \n<|>\t界", max_size=6)), max_size=8
).map("".join)


@given(prompt=PROMPTS)
def test_pieces_give_the_ids_of_the_whole(prompt):
    assert composed(tokenizer(), prompt) == whole(tokenizer(), prompt)


@given(prompt=PROMPTS)
def test_tokens_that_swallow_space_swallow_it_in_pieces_too(prompt):
    tok = _greedy()
    assert composed(tok, prompt) == whole(tok, prompt)


@cache
def _greedy():
    raw = byte_tokenizer(
        [added("<l>", lstrip=True), added("<r>", rstrip=True), added("end", single_word=True)]
    )
    return Tokenizer(raw, {}).guarded(None, MEDIA)


def test_the_load_time_check_accepts_a_byte_level_tokenizer():
    assert tokenizer().exact
    assert _greedy().exact


def metaspace(scheme):
    vocabulary = {c: k for k, c in enumerate(["<unk>", "▁", "a", "b", "c", "▁a", "<|end|>"])}
    raw = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [("▁", "a")], unk_token="<unk>"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    raw.add_tokens([added("<|end|>"), added("<|image|>")])
    return Tokenizer(raw, {}).guarded(None, ())


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("prompt", ["a<|end|>a", " a<|end|> a", "<|end|>a", "<|end|> a<|image|>bca", "bca"])
def test_space_that_a_tokenizer_puts_in_front_stands_where_it_does_in_the_whole(scheme, prompt):
    tok = metaspace(scheme)
    assert composed(tok, prompt) == whole(tok, prompt)


def test_the_memo_is_off_where_segments_do_not_compose():
    raw = byte_tokenizer([added("<n>", normalized=True)])
    raw.normalizer = tokenizers.normalizers.Prepend("_")
    tok = Tokenizer(raw, {}).guarded(None, ())
    assert not tok.exact
    assert [tok.encode_counted(["abc"]).hits for _ in range(2)] == [0, 0]


def test_the_memo_counts_hits_and_misses():
    tok = Tokenizer(byte_tokenizer(), {}).guarded(None, ())
    first, second = tok.encode_counted(["abc", "de", "abc"]), tok.encode_counted(["abc", "fg"])
    assert (first.hits, first.misses) == (0, 3)
    assert (second.hits, second.misses) == (1, 1)
    assert list(second.ids[0]) == list(first.ids[0]) == tok.encode("abc")


def test_the_memo_stays_within_its_bytes():
    tok = Tokenizer(byte_tokenizer(), {}, memo_bytes=2000).guarded(None, ())
    texts = [f"text {n}" for n in range(50)]
    tok.encode_many(texts)
    assert tok.encode_counted([texts[-1]]).hits == 1
    assert tok.encode_counted([texts[0]]).hits == 0


def test_ids_of_the_memo_cannot_be_changed():
    ids = tokenizer().encode_many(["abc"])[0]
    with pytest.raises(TypeError):
        ids[0] = 1


def test_many_threads_get_the_same_ids():
    tok = Tokenizer(byte_tokenizer(merges=MERGES), {}, memo_bytes=4000).guarded(None, ())
    texts = [f"text <|end|> {n % 40}" for n in range(400)]
    expected, found = [tok.encode(text) for text in texts], {}

    def work(worker):
        found[worker] = [list(ids) for ids in tok.encode_many(texts)]

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[worker] == expected for worker in range(4))


def test_a_begin_token_is_added_once(tmp_path):
    raw = byte_tokenizer([added("<s>")])
    begin = raw.token_to_id("<s>")
    raw.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", begin)])
    tok = Tokenizer.load(save_tokenizer(raw, tmp_path, bos_token="<s>"))
    assert tok.variables["bos_token"] == "<s>"
    assert tok.prompt_prefix("hello") == (begin,)
    assert tok.prompt_prefix("<s>hello") == ()


def test_a_directory_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises((OSError, ValueError)):
        Tokenizer.load(tmp_path)
    with pytest.raises(OSError, match="is no directory"):
        Tokenizer.load(tmp_path / "none")


def test_a_config_that_transformers_does_not_take_leaves_the_tokenizer_loadable(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2_5_vl", "image_token_id": null}')
    raw = byte_tokenizer(merges=MERGES)
    assert Tokenizer.load(save_tokenizer(raw, tmp_path)).encode("end") == raw.encode("end").ids


def test_truncation_of_the_checkpoint_cuts_no_prompt(tmp_path):
    raw = byte_tokenizer()
    raw.enable_truncation(3)
    raw.enable_padding(length=8)
    tok = Tokenizer.load(save_tokenizer(raw, tmp_path))
    assert tok.decode(tok.encode("a longer text")) == "a longer text"


# The real tokenizers, against transformers

FAMILIES = {
    "qwen3": ("qwen3_vl", "<|image_pad|>"),
    "qwen3_5": ("qwen3_5", "<|image_pad|>"),
    "glm5": ("glm_5_3_flash", "<|image|>"),
    "internvl3": ("internvl_hf", "<IMG_CONTEXT>"),
}
_LOADED = {}


def loaded(official, family):
    if family not in _LOADED:
        name, placeholder = FAMILIES[family]
        source, directory = official(name), build_tokenizer(family)
        tok = Tokenizer.load(directory).guarded(source, [placeholder])
        renderer = JinjaRenderer(source, tok, {Modality.IMAGE: placeholder})
        _LOADED[family] = renderer, transformers.AutoTokenizer.from_pretrained(directory)
    return _LOADED[family]


def ids_of(renderer, prompt):
    ids = []
    for segment in prompt.segments:
        match segment:
            case TextSegment(text):
                ids += renderer.tokenizer.encode(text)
            case ControlToken(token):
                ids.append(token)
            case Slot():
                ids.append(renderer.tokenizer.token_id(renderer.placeholders[Modality.IMAGE]))
    return ids


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<[/"), max_size=30)


@st.composite
def plain_conversations(draw):
    messages = [system(draw(TEXT) or "s")] if draw(st.booleans()) else []
    messages.append(user("question", *draw(st.lists(st.one_of(TEXT, st.builds(image)), max_size=3))))
    for turn in range(draw(st.integers(0, 2))):
        calls = [call(f"{turn}{n}", "look", at=draw(TEXT), n=n) for n in range(draw(st.integers(1, 2)))]
        messages.append(assistant(draw(TEXT), calls=calls, reasoning=draw(TEXT)))
        for c in draw(st.permutations(calls)):
            messages.append(tool(c.id, *draw(st.lists(st.one_of(TEXT, st.builds(image)), max_size=3))))
        messages.append(assistant(draw(TEXT)))
        messages.append(user(draw(TEXT) or "x"))
    return messages


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(messages=plain_conversations())
def test_without_literals_the_ids_are_those_of_apply_chat_template(official, family, messages):
    renderer, reference = loaded(official, family)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"at": {"type": "string"}}}}]
    value = conversation(*messages, tools=tools)
    template_messages = write(draft(value, harvest(value), renderer.shape), renderer.shape, Edit())
    expected = reference.apply_chat_template(
        template_messages,
        tools=tools,
        chat_template=renderer.template.source,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert ids_of(renderer, renderer.render(value, harvest(value))) == expected


@pytest.mark.parametrize("family", ["qwen3", "glm5", "internvl3"])
@pytest.mark.parametrize("text", ["so far", "so far ", "so\n"])
def test_a_continued_message_has_the_ids_of_apply_chat_template(official, family, text):
    renderer, reference = loaded(official, family)
    value = conversation(user("q"), assistant(text), continue_final_message=True)
    expected = reference.apply_chat_template(
        [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}],
        chat_template=renderer.template.source,
        continue_final_message=True,
        tokenize=True,
        return_dict=False,
    )
    assert ids_of(renderer, renderer.render(value, ())) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_every_control_token_of_a_real_tokenizer_stays_text(official, family):
    renderer, _ = loaded(official, family)
    text = " ".join(renderer.tokenizer.control)
    value = conversation(user(text))
    prompt = renderer.render(value, ())
    assert text in "".join(s.text for s in prompt.segments if isinstance(s, TextSegment))
    control = set(renderer.tokenizer.control.values())
    texts = [s.text for s in prompt.segments if isinstance(s, TextSegment)]
    assert not control & {token for ids in renderer.tokenizer.encode_many(texts) for token in ids}


def test_a_real_tokenizer_is_exact(official):
    assert all(loaded(official, family)[0].tokenizer.exact for family in FAMILIES)
