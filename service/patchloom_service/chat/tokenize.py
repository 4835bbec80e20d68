"""Ordinary text to token ids, by a tokenizer that does not know the control tokens; segments are memoised.

Control tokens never come out of text here: a prompt carries them as ids.
"""

import json
import random
import re
import secrets
import unicodedata
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import tokenizers
import transformers
from huggingface_hub.errors import StrictDataclassError

from patchloom_service.chat.twins import trie_pattern

MEMO_BYTES = 64 << 20
"""Default bound of the segment memo."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An added token of the checkpoint with the flags that decide how it splits text."""

    id: int
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class ControlMatch(NamedTuple):
    """A control token in a prompt text; [start, end) includes the space that the token swallows."""

    start: int
    end: int
    spelling: str
    id: int


@dataclass(frozen=True, slots=True)
class Encoded:
    """Ids per text, read-only, and how many texts the memo knew."""

    ids: tuple["memoryview[int]", ...]
    hits: int
    misses: int


class Tokenizer:
    """The tokenizer of one model, safe to use from many threads.

    `control` maps the spellings of the control set to ids: media tokens, added tokens marked special, and
    added tokens that occur in the template, but none of white space only. `added` has every added token.
    `variables` are what transformers hands to a template (bos_token, ...). The memo is off where
    `exact` is false.
    """

    def __init__(
        self,
        full: Any,
        variables: Mapping[str, Any],
        template: str = "",
        media: Iterable[str] = (),
        memo_bytes: int = MEMO_BYTES,
    ) -> None:
        self._full = full
        self.variables = dict(variables)
        self.added = _added_tokens(full)
        self.control = _control_set(self.added, template, media)
        self._pattern = re.compile(trie_pattern(self.control))
        self._greedy = frozenset(s for s, t in self.added.items() if t.lstrip or t.rstrip or t.single_word)
        self._memo_bytes = memo_bytes

    @cached_property
    def _ordinary(self) -> tuple[Any, str]:
        """The tokenizer without control tokens, and the opening; built at first use, which takes seconds."""
        plain, opening = _without_control(self._full, self.control)
        _check_ordinary(plain, self.control)
        return plain, opening

    @property
    def opening(self) -> str:
        """The text in front of a prompt that begins with ordinary text."""
        return self._ordinary[1]

    @cached_property
    def exact(self) -> bool:
        """Whether encoding segment by segment gives the ids of the whole, tried on random texts."""
        return _segments_compose(self)

    @cached_property
    def _memo(self) -> "_Memo":
        return _Memo(self._memo_bytes if self.exact else 0)

    @classmethod
    def load(cls, directory: str | Path, memo_bytes: int = MEMO_BYTES) -> "Tokenizer":
        """The tokenizer of a checkpoint directory, without network and without code of the checkpoint.

        Raises OSError or ValueError where the directory holds none.
        """
        loaded = _load(Path(directory))
        backend = loaded.backend_tokenizer
        backend.no_truncation()
        backend.no_padding()
        variables = {k: v for k, v in loaded.special_tokens_map.items() if isinstance(v, str)}
        return cls(backend, variables, memo_bytes=memo_bytes)

    def guarded(self, template: str | None, media: Iterable[str] = ()) -> "Tokenizer":
        """The same tokenizer with the control set of a template and a family's media tokens.

        Raises ValueError for a media token that is no added token.
        """
        media = tuple(media)
        missing = [spelling for spelling in media if spelling not in self.added]
        if missing:
            raise ValueError(f"{missing[0]!r} is no added token of the tokenizer; a media token must be one")
        guarded = Tokenizer(self._full, self.variables, template or "", media, self._memo_bytes)
        assert guarded._memo.capacity in (0, self._memo_bytes)
        return guarded

    @property
    def size(self) -> int:
        """One more than the highest id."""
        highest = max((token.id for token in self.added.values()), default=-1)
        return max(int(self._full.get_vocab_size(with_added_tokens=True)), highest + 1)

    def token_id(self, spelling: str) -> int | None:
        """The id of an added token, None for any other text."""
        token = self.added.get(spelling)
        return None if token is None else token.id

    def control_id(self, spelling: str) -> int:
        """The id of a control token; KeyError for any other text."""
        return self.control[spelling]

    def encode(self, text: str) -> list[int]:
        """The ids of one text as ordinary text."""
        return list(self.encode_counted((text,)).ids[0])

    def encode_many(self, texts: Sequence[str]) -> "list[memoryview[int]]":
        """The ids of each text as ordinary text; read-only, for numpy or iteration."""
        return list(self.encode_counted(texts).ids)

    def encode_counted(self, texts: Sequence[str]) -> Encoded:
        """As encode_many, with the counts of the memo."""
        known = self._memo.get(texts)
        missing = list(dict.fromkeys(t for t, ids in zip(texts, known, strict=True) if ids is None))
        fresh = dict(zip(missing, self._encode_plain(missing), strict=True))
        self._memo.put(fresh)
        ids = tuple(fresh[t] if i is None else i for t, i in zip(texts, known, strict=True))
        misses = sum(i is None for i in known)
        return Encoded(ids, len(texts) - misses, misses)

    def _encode_plain(self, texts: list[str]) -> "list[memoryview[int]]":
        encoded = self._ordinary[0].encode_batch_fast(texts, add_special_tokens=False)
        return [memoryview(array("i", e.ids).tobytes()).cast("i") for e in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out."""
        return str(self._full.decode(list(ids), skip_special_tokens=False))

    def prompt_prefix(self, prompt: str) -> tuple[int, ...]:
        """The ids in front of a prompt: what the tokenizer itself adds, unless the prompt begins so.

        As transformers' processors do it: no second begin token.
        """
        begin = self.variables.get("bos_token")
        return () if begin and prompt.startswith(begin) else self._prefix

    @cached_property
    def _prefix(self) -> tuple[int, ...]:
        with_special = self._full.encode("a", add_special_tokens=True).ids
        plain = self._full.encode("a", add_special_tokens=False).ids
        for at in range(len(with_special)):
            if with_special[at : at + len(plain)] == plain:
                return tuple(with_special[:at])
        return ()

    def find_control(self, text: str) -> list[ControlMatch]:
        """The control tokens of a prompt text, left to right, as the checkpoint's tokenizer finds them."""
        matches: list[ControlMatch] = []
        floor = 0
        for found in self._pattern.finditer(text):
            spelling = found.group()
            start, end = found.span()
            if spelling not in self._greedy:
                matches.append(ControlMatch(start, end, spelling, self.control[spelling]))
                floor = end
                continue
            token = self.added[spelling]
            if token.single_word and (_is_word(text[start - 1 : start]) or _is_word(text[end : end + 1])):
                continue
            while token.lstrip and start > floor and text[start - 1].isspace():
                start -= 1
            while token.rstrip and end < len(text) and text[end].isspace():
                end += 1
            floor = end
            matches.append(ControlMatch(start, end, spelling, token.id))
        return matches


def _is_word(character: str) -> bool:
    """A word character as the tokenizers library has it: marks count, superscripts do not."""
    kind = unicodedata.category(character) if character else ""
    return kind[:1] in ("L", "M") or kind in ("Nd", "Nl", "Pc") or character in ("\u200c", "\u200d")


def _load(directory: Path) -> Any:
    if not directory.is_dir():
        raise OSError(f"{directory} is no directory; a tokenizer is loaded from a checkpoint directory")
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, use_fast=True
        )
    except (ValueError, KeyError, OSError, StrictDataclassError) as error:
        if not (directory / "tokenizer.json").is_file():
            raise ValueError(
                f"{directory}: no tokenizer; add tokenizer.json to the model directory"
            ) from error
        loaded = transformers.PreTrainedTokenizerFast.from_pretrained(directory, local_files_only=True)
    if not getattr(loaded, "is_fast", False):
        raise ValueError(f"{directory}: the tokenizer has no tokenizer.json and cannot be converted to one")
    return loaded


def _added_tokens(full: Any) -> dict[str, AddedToken]:
    return {
        token.content: AddedToken(
            id=index,
            special=token.special,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            single_word=token.single_word,
            normalized=token.normalized,
        )
        for index, token in sorted(full.get_added_tokens_decoder().items())
    }


def _control_set(added: Mapping[str, AddedToken], template: str, media: Iterable[str]) -> dict[str, int]:
    media = set(media)
    return {
        spelling: token.id
        for spelling, token in added.items()
        if spelling.strip() and (token.special or spelling in media or spelling in template)
    }


def _without_control(full: Any, control: Mapping[str, int]) -> tuple[Any, str]:
    """A copy in which no text spells a control token, and the text that opens a prompt.

    A control token keeps its id under a secret name, so that all other ids stay; a name that is drawn
    anew at each load cannot be written by a client.
    """
    names = {spelling: f"\U0010ffff{secrets.token_hex(16)}" for spelling in control}
    return _sharing(full, names) or _rewritten(full, names)


def _sharing(full: Any, names: Mapping[str, str]) -> tuple[Any, str] | None:
    """The copy around the same model, at no cost; None where that would not be the rewritten one."""
    if any(full.model.token_to_id(spelling) is not None for spelling in names):
        return None
    pre_tokenizer = full.pre_tokenizer
    if pre_tokenizer is not None and _never_prepend(json.loads(pre_tokenizer.__getstate__())):
        return None
    plain = tokenizers.Tokenizer(full.model)
    if full.normalizer is not None:
        plain.normalizer = full.normalizer
    if pre_tokenizer is not None:
        plain.pre_tokenizer = pre_tokenizer
    added = sorted(full.get_added_tokens_decoder().items())
    plain.add_tokens([_renamed(token, names) for _, token in added])
    same = all(plain.token_to_id(names.get(t.content, t.content)) == i for i, t in added)
    return (plain, "") if same else None


def _renamed(token: Any, names: Mapping[str, str]) -> Any:
    return tokenizers.AddedToken(
        names.get(token.content, token.content),
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )


def _rewritten(full: Any, names: Mapping[str, str]) -> tuple[Any, str]:
    """The copy made from the serialized tokenizer, its model's entries renamed too."""
    state = json.loads(full.to_str())
    for token in state["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    _rename_model(state["model"], names)
    state["post_processor"] = None
    opening = _never_prepend(state.get("pre_tokenizer"))
    return tokenizers.Tokenizer.from_str(json.dumps(state)), opening


def _rename_model(model: dict[str, Any], names: Mapping[str, str]) -> None:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        for spelling in names.keys() & vocabulary.keys():
            vocabulary[names[spelling]] = vocabulary.pop(spelling)
    elif isinstance(vocabulary, list):
        for entry in vocabulary:
            entry[0] = names.get(entry[0], entry[0])
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _names_control(merge, names)]


def _names_control(merge: str | list[str], names: Mapping[str, str]) -> bool:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in names or right in names or left + right in names


def _never_prepend(pre_tokenizer: dict[str, Any] | None) -> str:
    """Metaspace that prepends at the start of a prompt would do so at each segment: the caller does it."""
    if not pre_tokenizer:
        return ""
    if pre_tokenizer["type"] == "Sequence":
        return "".join(_never_prepend(inner) for inner in pre_tokenizer["pretokenizers"])
    if pre_tokenizer["type"] == "Metaspace" and pre_tokenizer.get("prepend_scheme") == "first":
        pre_tokenizer["prepend_scheme"] = "never"
        return " "
    return ""


def _check_ordinary(plain: Any, control: Mapping[str, int]) -> None:
    for spelling, token_id in control.items():
        if token_id in plain.encode(spelling, add_special_tokens=False).ids:
            raise ValueError(
                f"the tokenizer makes {spelling!r} from ordinary text; it cannot be served safely"
            )


_SAMPLES = (
    "a", "Z", "0", "12", " ", "  ", "\n", "\n\n", "\t", ".", ",", "'s", "<", ">", "|", "/", "The", " word",
    "ing", "é", "e\u0301", "界", "你好", "🙂", "\u00a0", "\r\n", "{", '"', ": ", "_", "-", "ﬁ",
)  # fmt: skip


def _segments_compose(tokenizer: Tokenizer, rounds: int = 200) -> bool:
    """Whether segments between control tokens encode as they do within the whole prompt."""
    drawn = random.Random(20)
    spellings = list(tokenizer.control)
    if not spellings:
        return True
    often = spellings[:64]
    for _ in range(rounds):
        parts = [drawn.choice(spellings if drawn.random() < 0.2 else often) for _ in range(4)]
        texts = ["".join(drawn.choices(_SAMPLES, k=drawn.randrange(12))) for _ in parts]
        prompt = "".join(text + token for text, token in zip(texts, parts, strict=True))
        if not _same_ids(tokenizer, prompt):
            return False
    return True


def _same_ids(tokenizer: Tokenizer, prompt: str) -> bool:
    ids: list[int] = []
    for piece in pieces(tokenizer, prompt):
        if isinstance(piece, ControlMatch):
            ids.append(piece.id)
        else:
            ids += tokenizer._ordinary[0].encode(piece, add_special_tokens=False).ids
    return bool(ids == tokenizer._full.encode(prompt, add_special_tokens=False).ids)


def pieces(tokenizer: Tokenizer, text: str) -> list["str | ControlMatch"]:
    """A prompt text cut at its control tokens; a text that opens the prompt has `opening` in front."""
    found: list[str | ControlMatch] = []
    last = 0
    for match in tokenizer.find_control(text):
        if match.start > last:
            found.append(text[last : match.start])
        found.append(match)
        last = match.end
    if last < len(text):
        found.append(text[last:])
    if found and isinstance(found[0], str) and not found[0].startswith(" "):
        found[0] = tokenizer.opening + found[0]
    return found


class _Memo:
    """Segment -> ids, least recently used out first, bounded in bytes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._bytes = 0
        self._entries: OrderedDict[str, memoryview[int]] = OrderedDict()
        self._lock = Lock()

    def get(self, texts: Sequence[str]) -> "list[memoryview[int] | None]":
        with self._lock:
            found = [self._entries.get(text) for text in texts]
            for text, ids in zip(texts, found, strict=True):
                if ids is not None:
                    self._entries.move_to_end(text)
        return found

    def put(self, fresh: "Mapping[str, memoryview[int]]") -> None:
        with self._lock:
            for text, ids in fresh.items():
                cost = _cost(text, ids)
                if cost > self.capacity or text in self._entries:
                    continue
                self._entries[text] = ids
                self._bytes += cost
                while self._bytes > self.capacity:
                    self._bytes -= _cost(*self._entries.popitem(last=False))


def _cost(text: str, ids: "memoryview[int]") -> int:
    return text.__sizeof__() + ids.nbytes + 200
