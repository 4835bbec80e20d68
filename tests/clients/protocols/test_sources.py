"""Media sources: the pinned policy for base64, data URIs and addresses."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_client.errors import InvalidAudio, InvalidImage, PatchloomError, UnsupportedContent
from patchloom_client.protocols._sources import declared_type, decode_base64, from_string
from patchloom_proto import preprocess_pb2 as pb
from patchloom_service.errors import PatchloomError as ServiceError
from patchloom_service.media.source import parse_data_uri

PNG = b"\x89PNG\r\n\x1a\n"
PAYLOAD = base64.b64encode(PNG).decode()


@pytest.mark.parametrize(
    ("uri", "media_type"),
    [
        (f"data:image/png;base64,{PAYLOAD}", "image/png"),
        (f"DATA:image/png;base64,{PAYLOAD}", "image/png"),
        (f"data:image/png;BASE64,{PAYLOAD}", "image/png"),
        (f"data:Image/PNG;base64,{PAYLOAD}", "image/png"),
        (f"data:image/png;base64,{PAYLOAD.replace('=', '%3D')}", "image/png"),
        (f"data:image/jpeg;charset=utf-8;base64,{PAYLOAD}", "image/jpeg"),
        (f"data:image/png; base64,{PAYLOAD}", "image/png"),
        (f"data:;base64,{PAYLOAD}", ""),
        (f"data:image/png;base64,{PAYLOAD.rstrip('=')}", "image/png"),
    ],
)
def test_a_data_uri_is_decoded_and_its_parameters_stay_out_of_the_type(uri, media_type):
    assert from_string(uri, "p") == (pb.MediaSource(data=PNG), media_type)


@pytest.mark.parametrize(
    "uri",
    [
        "data:",
        "data:image/png;base64",
        f"data:image/png;base64{PAYLOAD}",
        f"data:image/png,{PAYLOAD}",
        f"data:image/png;base64;charset=x,{PAYLOAD}",
        "data:image/png;base64,",
        "data:image/png;base64,a",
        "data:image/png;base64,a-_a",
        "data:image/png;base64,ab=cd",
        "data:image/png;base64,====",
        "data:image/png;base64,é",
        f"data:image/png;base64, {PAYLOAD}",
        f"data:image/png;base64,{PAYLOAD[:4]}\r\n{PAYLOAD[4:]}\n",
        f"data:image/png;base64,{PAYLOAD[:4]}%20{PAYLOAD[4:]}",
        f"data:image/png;{'x' * 2000};base64,{PAYLOAD}",
        f"data:image/png;base64,data:image/png;base64,{PAYLOAD}",
    ],
)
def test_a_malformed_data_uri_is_an_image_error_at_its_place(uri):
    with pytest.raises(InvalidImage) as caught:
        from_string(uri, "p")
    assert caught.value.field_path == "p"


@pytest.mark.parametrize("address", ["https://h/x.png", "HTTPS://h/x", "http://127.0.0.1/x.png"])
def test_an_address_is_passed_on_for_the_service_to_judge(address):
    assert from_string(address, "p") == (pb.MediaSource(url=address), "")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("file:///etc/passwd", "file: URIs are"),
        ("s3://bucket/x.png", "s3: URIs are"),
        ("/etc/hostname", "this string is"),
        ("x.png", "this string is"),
        ("C:\\x.png", "this string is"),
        ("", "this string is"),
        (" data:image/png;base64,AAAA", "this string is"),
        (" https://h/x.png", "this string is"),
        (PAYLOAD, "this string is"),
        ("A" * 5000, "this string is"),
    ],
)
def test_anything_else_is_refused_with_what_is_taken(address, said):
    with pytest.raises(UnsupportedContent) as caught:
        from_string(address, "p")
    assert caught.value.message == (
        f"{said} not supported as a media source (no path is ever opened); send base64 bytes, a base64"
        " data URI, an https URL or a content key"
    )


@pytest.mark.parametrize("payload", [PAYLOAD, PAYLOAD.rstrip("=")])
def test_base64_without_padding_gives_the_same_bytes(payload):
    assert decode_base64(payload, "p") == PNG


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "=",
        "====",
        " ",
        "a",
        "ab*d",
        "ab-_",
        "ab==ab==",
        f" {PAYLOAD}",
        f"{PAYLOAD}\n",
        "YQ%3D%3D",
        f"data:x;base64,{PAYLOAD}",
    ],
)
def test_other_base64_is_refused_as_the_medium_it_was_to_be(payload):
    with pytest.raises(InvalidAudio) as caught:
        decode_base64(payload, "p", InvalidAudio)
    assert caught.value.field_path == "p"


@pytest.mark.parametrize("missing", [0, 1, 2])
@given(data=st.binary(min_size=1, max_size=64))
def test_every_payload_survives_the_loss_of_its_padding(missing, data):
    encoded = base64.b64encode(data).decode()
    padding = len(encoded) - len(encoded.rstrip("="))
    assert decode_base64(encoded[: len(encoded) - min(missing, padding)], "p") == data


@given(st.text())
def test_any_string_is_a_source_or_a_typed_error(address):
    try:
        source, _ = from_string("data:image/png;base64," + address, "p")
    except PatchloomError:
        source = pb.MediaSource(data=b"refused")
    assert source.data


@pytest.mark.parametrize(
    "uri",
    [
        f"data:image/png;base64,{PAYLOAD}",
        f"DATA:image/png;x=y;BASE64,{PAYLOAD.rstrip('=')}",
        f"data:image/png;base64,{PAYLOAD.replace('=', '%3d')}",
        f"data:image/png;base64, {PAYLOAD}",
        f"data:image/png,{PAYLOAD}",
        "data:image/png;base64,a",
        "data:image/png;base64,ab==ab==",
    ],
)
def test_the_client_reads_a_data_uri_as_the_service_does(uri):
    assert outcome(lambda: from_string(uri, "p")[0].data) == outcome(lambda: parse_data_uri(uri, 1000))


def test_a_declared_type_never_beats_the_bytes():
    jpeg = base64.b64encode(b"\xff\xd8\xff\xe0").decode()
    source, declared = from_string(f"data:image/png;base64,{jpeg}", "p")
    assert (source.data, declared) == (b"\xff\xd8\xff\xe0", "image/png")


def outcome(read):
    """The bytes, or the name of the error."""
    try:
        return read()
    except (PatchloomError, ServiceError) as error:
        return error.reason


def test_a_declared_type_is_a_hint_in_lower_case():
    assert [declared_type(value, "p") for value in (None, "", " Image/TIFF ")] == ["", "", "image/tiff"]


def test_a_declared_type_that_is_a_payload_is_refused_without_it():
    with pytest.raises(InvalidImage) as caught:
        declared_type("A" * 5000, "p")
    assert len(str(caught.value)) < 200
