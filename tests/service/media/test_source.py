import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_service.errors import InvalidArgument, InvalidImage, LimitExceeded, PatchloomError
from patchloom_service.media.source import resolve
from patchloom_service.types import MediaSource, SourceKind

PAYLOAD = b"\x89PNG\xff\xfe"  # base64: iVBOR//+
TEXT = base64.b64encode(PAYLOAD).decode()


def data_uri(uri: str, max_bytes: int = 100) -> bytes:
    return resolve(MediaSource(SourceKind.DATA_URI, text=uri), max_bytes)


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:image/png;base64,{TEXT}",
        f"data:image/png;BASE64,{TEXT}",
        f"data:image/jpeg;charset=utf-8;base64,{TEXT}",
        f"data:;base64,{TEXT}",
        f"data:image/png; base64 ,{TEXT}",
        "data:image/png;base64,iVBOR%2F%2F%2B",
    ],
)
def test_every_spelling_of_a_data_uri_gives_the_same_bytes(uri):
    assert data_uri(uri) == PAYLOAD


@pytest.mark.parametrize(
    ("raw", "text"), [(b"ab", "YWI"), (b"a", "YQ"), (b"ab", "YWI="), (b"a", "YQ="), (b"a", "YQ==")]
)
def test_missing_padding_is_supplied(raw, text):
    assert data_uri(f"data:image/png;base64,{text}") == raw


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        (TEXT, "does not begin with data:"),
        ("/etc/hostname", "does not begin with data:"),
        ("file:///tmp/secret.png", "does not begin with data:"),
        ("", "does not begin with data:"),
        (f"data:image/png;base64;{TEXT}", "no comma"),
        ("data:" + "x" * 2000 + ";base64,QUJD", "no comma"),
        (f"data:image/png,{TEXT}", "not base64"),
        (f"data:base64,{TEXT}", "not base64"),
        (f"data:image/png;base64, {TEXT}", "whitespace"),
        ("data:image/png;base64,iVBO\nR//+", "whitespace"),
        ("data:image/png;base64,iVBOR%0A//+", "whitespace"),
        ("data:image/png;base64,iVBORw0KG", "impossible length"),
        ("data:image/png;base64,YQ===", "impossible length"),
        ("data:image/png;base64,iVBOR__-", "no base64"),
        ("data:image/png;base64,iV=OR//+", "no base64"),
        ("data:image/png;base64,iVBORé", "not ASCII"),
        ("data:image/png;base64,", "empty"),
    ],
)
def test_a_malformed_data_uri_is_refused(uri, message):
    with pytest.raises(InvalidImage, match=message):
        data_uri(uri)


def test_base64_behind_a_plain_parameter_is_the_last_word_only():
    assert data_uri(f"data:base64;base64,{TEXT}") == PAYLOAD


@pytest.mark.parametrize("kind", [SourceKind.DATA, SourceKind.DATA_URI])
def test_encoded_bytes_are_limited(kind):
    source = MediaSource(kind, data=b"12345", text="data:;base64,MTIzNDU=")
    assert resolve(source, 5) == b"12345"
    with pytest.raises(LimitExceeded, match="5 bytes; at most 4 are allowed"):
        resolve(source, 4)


def test_empty_bytes_are_refused_and_a_url_carries_none():
    with pytest.raises(InvalidImage, match="empty"):
        resolve(MediaSource(SourceKind.DATA), 5)
    with pytest.raises(InvalidArgument, match="url carries no bytes"):
        resolve(MediaSource(SourceKind.URL, text="https://images.test/"), 5)


def test_an_error_is_short_and_shows_no_payload():
    with pytest.raises(InvalidImage) as refused:
        data_uri("data:image/png;base64," + "QUJD" * 500_000 + "!", 1 << 30)
    assert len(str(refused.value)) < 200
    assert "QUJD" not in str(refused.value)


@given(st.binary(min_size=1), st.integers(0, 2))
def test_what_was_encoded_comes_back(raw, stripped):
    text = base64.b64encode(raw).decode()
    while stripped and text.endswith("="):
        text, stripped = text[:-1], stripped - 1
    assert data_uri(f"data:x/y;base64,{text}", 1 << 20) == raw


@given(st.text(max_size=60))
def test_any_text_ends_in_bytes_or_a_typed_error(text):
    for uri in (text, f"data:{text}", f"data:;base64,{text}"):
        try:
            data_uri(uri)
        except PatchloomError:
            continue
