import pytest
from patchloom_service.errors import InvalidMessage
from patchloom_service.strict_json import parse_json, parse_object


def test_key_order_is_kept_and_integers_are_exact():
    value = parse_object(b'{"b": 3, "a": 12345678901234567890, "c": 3.0}', "x")
    assert list(value.items()) == [("b", 3), ("a", 12345678901234567890), ("c", 3.0)]
    assert isinstance(value["b"], int)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1, "a": 2}', "a key twice"),
        (b"[NaN]", "NaN is not allowed"),
        (b"[-Infinity]", "-Infinity is not allowed"),
        (b"{", "at character 1"),
        (b"\xff", "no UTF-8 at byte 0"),
        (b"[" * 100000, "nested too deeply"),
        (b'[{"a":' * 128 + b"[]" + b"}]" * 128, "nested too deeply; at most 256 levels are allowed"),
        (b"[1e999]", "a number is out of range"),
        (b"[-1e400]", "a number is out of range"),
        (b"[" + b"9" * 5000 + b"]", "a number is out of range"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b'{"\\uDFFF": 1}', "half of a surrogate pair"),
    ],
)
def test_what_is_not_strict_is_refused_at_its_path(data, message):
    with pytest.raises(InvalidMessage, match=message) as caught:
        parse_json(data, "tools[0]")
    assert caught.value.field_path == "tools[0]"


def test_the_deepest_nesting_and_whole_surrogate_pairs_are_taken():
    deepest = b"[" * 256 + b'"\\ud83d\\ude42"' + b"]" * 256
    value = parse_json(deepest, "x")
    while isinstance(value, list):
        [value] = value
    assert value == "🙂"


def test_no_bytes_are_an_empty_object():
    assert parse_object(b"", "x") == {}


def test_a_list_is_no_object():
    with pytest.raises(InvalidMessage, match="must be a JSON object, got list"):
        parse_object(b"[]", "x")
