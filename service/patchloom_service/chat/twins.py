"""Control tokens in untrusted text: where they stand or could come to stand, and how they are disarmed.

A twin is a private code point that stands in for the first character of a control token while the prompt
is rendered, so that only the template's own control tokens are recognised in the result.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

PRIVATE_START, PRIVATE_END = 0xF0000, 0x10FFFE
"""The private planes that markers and twins are taken from: 131,070 code points, end exclusive."""

_Trie: TypeAlias = "dict[str, _Trie]"


def trie_pattern(words: Iterable[str]) -> str:
    """A regular expression for the longest of `words` at a position, linear in the words' length.

    No words gives a pattern that never matches.
    """
    trie: _Trie = {}
    for word in words:
        node = trie
        for character in word:
            node = node.setdefault(character, {})
        node[""] = {}
    return _branch(trie) if trie else "(?!)"


def _branch(node: _Trie) -> str:
    options = []
    for character, child in node.items():
        if not character:
            continue
        chain = [character]
        while len(child) == 1 and "" not in child:
            character, child = next(iter(child.items()))
            chain.append(character)
        options.append(re.escape("".join(chain)) + (_branch(child) if child.keys() - {""} else ""))
    group = options[0] if len(options) == 1 and "" not in node else f"(?:{'|'.join(options)})"
    return f"{group}?" if "" in node else group


def starts_pattern(words: Iterable[str]) -> str:
    """A pattern for the first character of each of `words`, overlapping occurrences included."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    if not rests:
        return "(?!)"
    return "|".join(
        re.escape(first) + ("" if "" in tails else f"(?={trie_pattern(tails)})")
        for first, tails in rests.items()
    )


class Literals:
    """Finds the control tokens of one set in text, whole or as pieces that a template could join.

    `tokens` are disarmed. `boundaries` are further control tokens that keep their meaning; a template may
    cut text there and join what stands on both sides. `open_heads` are beginnings of control tokens that
    the template itself writes and that text could complete. A template may change the case of text, so
    a token in another case is disarmed too.
    """

    def __init__(
        self, tokens: Iterable[str], boundaries: Iterable[str] = (), open_heads: Iterable[str] = ()
    ) -> None:
        words = sorted(set(tokens))
        self._starts = re.compile(starts_pattern(words))
        self._sites = re.compile(starts_pattern(words), re.IGNORECASE)
        self._boundaries = re.compile(trie_pattern(sorted({*words, *boundaries})))
        self._prefixes = frozenset(word[:n].lower() for word in words for n in range(1, len(word)))
        self._longest = max(map(len, words), default=0)
        self._firsts = _cases(word[0] for word in words)
        rests = {word[len(h) :].lower() for h in open_heads for word in words if _opens(h, word)}
        self._rests = tuple(sorted(rests))
        self._twinned = self._firsts | _cases(rest[0] for rest in rests)
        self.alphabet = "".join(sorted(self._twinned))

    def first(self, text: str) -> str:
        """The characters around the first whole control token, "" where there is none."""
        found = self._starts.search(text)
        if found is None:
            return ""
        token = self._boundaries.match(text, found.start())
        return token.group() if token else text[found.start()]

    def sites(self, text: str) -> list[int]:
        """Ascending positions of the characters to be disarmed."""
        if not text:
            return []
        found = {match.start() for match in self._sites.finditer(text)}
        for end in self._ends(text):
            for start in range(max(0, end - self._longest), end):
                if text[start] in self._firsts and text[start:end].lower() in self._prefixes:
                    found.add(start)
        if self._rests:
            start = len(text) - len(text.lstrip())
            if any(rest.startswith(text[start : start + len(rest)].lower()) for rest in self._rests):
                found.add(start)
        return sorted(position for position in found if text[position : position + 1] in self._twinned)

    def _ends(self, text: str) -> Iterator[int]:
        """Where a template may cut: the end, with and without trailing space, and before other tokens."""
        yield len(text)
        stripped = len(text.rstrip())
        if stripped < len(text):
            yield stripped
        for match in self._boundaries.finditer(text):
            end = match.start()
            yield end
            while end > 0 and text[end - 1].isspace():
                end -= 1
            if end < match.start():
                yield end

    def disarm(self, text: str, twins: Mapping[str, str]) -> str:
        """The text with a twin at each site."""
        positions = self.sites(text)
        if not positions:
            return text
        pieces, last = [], 0
        for position in positions:
            pieces += [text[last:position], twins[text[position]]]
            last = position + 1
        return "".join([*pieces, text[last:]])


def _cases(characters: Iterable[str]) -> frozenset[str]:
    """The characters in every case that a regular expression takes for the same."""
    return frozenset(case for c in characters for case in (c, c.lower(), c.upper()) if len(case) == 1)


def _opens(head: str, word: str) -> bool:
    return 0 < len(head) < len(word) and word.startswith(head)


def open_heads(literals: Iterable[str], tokens: Iterable[str]) -> frozenset[str]:
    """Proper beginnings of control tokens at the ends of a template's own texts."""
    words = tuple(tokens)
    prefixes = {word[:n] for word in words for n in range(1, len(word))}
    longest = max(map(len, words), default=0)
    heads: set[str] = set()
    for text in literals:
        for end in {len(text), len(text.rstrip())}:
            heads |= {text[s:end] for s in range(max(0, end - longest), end)} & prefixes
    return frozenset(heads)


@dataclass(frozen=True, slots=True)
class PrivateBlock:
    """Consecutive private code points that occur in none of the texts they were chosen for."""

    start: int
    size: int

    def __getitem__(self, index: int) -> str:
        assert 0 <= index < self.size, (index, self.size)
        return chr(self.start + index)


def private_block(texts: Iterable[str], size: int) -> PrivateBlock | None:
    """`size` private code points that no text holds, raw or as a JSON escape; None if all are taken."""
    used = sorted(_private_in(texts))
    start = PRIVATE_START
    for code in [*used, PRIVATE_END]:
        if code - start >= size:
            return PrivateBlock(start, size)
        start = max(start, code + 1)
    return None


_PRIVATE = re.compile(f"[{chr(PRIVATE_START)}-{chr(PRIVATE_END - 1)}]")
_ESCAPED = re.compile(r"\\u(d[b][89a-f][0-9a-f])\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def _private_in(texts: Iterable[str]) -> set[int]:
    used: set[int] = set()
    for text in texts:
        if not text.isascii():
            used.update(map(ord, _PRIVATE.findall(text)))
        if "\\u" in text:
            for high, low in _ESCAPED.findall(text):
                code = 0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00
                used.add(code)
    return used


class Restorer:
    """Turns twins back into their characters, also where a template escaped them as JSON."""

    def __init__(self, twins: Mapping[str, str]) -> None:
        plain = {twin: character for character, twin in twins.items()}
        self._plain = plain | {json.dumps(twin)[1:-1]: character for twin, character in plain.items()}
        self._pattern = re.compile("|".join(map(re.escape, self._plain))) if plain else None

    def __call__(self, text: str) -> str:
        """The text with every twin restored."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._plain[match.group()], text)
