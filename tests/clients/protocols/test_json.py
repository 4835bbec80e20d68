"""JSON as bytes: order, numbers, duplicates, depth."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patchloom_client.errors import InvalidMessage
from patchloom_client.protocols._json import MAX_DEPTH, canonical, json_object

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def equal(a, b):
    """Same value and same types: 3 is not 3.0, and 0.0 is not -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b and math.copysign(1, a) == math.copysign(1, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


@given(st.dictionaries(st.text(), NESTED))
def test_an_object_and_its_text_give_the_same_bytes_and_come_back_whole(value):
    encoded = canonical(value, "p")
    assert equal(json.loads(encoded), value)
    assert json_object(value, "p") == encoded
    assert json_object(json.dumps(value), "p") == encoded
    assert json_object(json.dumps(value, indent=2, ensure_ascii=False), "p") == encoded


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"b": 1, "a": 2}', b'{"b":1,"a":2}'),
        ('{"n": 123456789012345678901234567890}', b'{"n":123456789012345678901234567890}'),
        ('{"n": 3}', b'{"n":3}'),
        ('{"n": 3.0}', b'{"n":3.0}'),
        ('{"n": 1.00}', b'{"n":1.0}'),
        ('{"n": 1e2}', b'{"n":100.0}'),
        ('{"t": "\\u00fc\\u6587"}', '{"t":"ü文"}'.encode()),
        ("", b"{}"),
        (None, b"{}"),
    ],
)
def test_numbers_order_and_text_are_kept(value, expected):
    assert json_object(value, "p") == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('{"a": 1, "a": 1}', "the key 'a' stands twice in one object; send plain JSON"),
        ('{"x": {"b": 1, "b": 2}}', "the key 'b' stands twice in one object; send plain JSON"),
        ('{"a": NaN}', "NaN is not JSON; send plain JSON"),
        ('{"a": -Infinity}', "-Infinity is not JSON; send plain JSON"),
        ({"a": math.nan}, "NaN and infinities are not JSON; send finite numbers"),
        ('{"a": 1e999}', "NaN and infinities are not JSON; send finite numbers"),
        ('{"a": 1', "not JSON: Expecting ',' delimiter at character 7"),
        ("[]", "expected a JSON object, got a list"),
        ("3", "expected a JSON object, got a number"),
        ("null", "expected a JSON object, got null"),
        (3, "expected a JSON object, got a number"),
        ({1: 2}, "an object key must be a string, got a number"),
        ({"a": b"x"}, "a value of type bytes is not JSON"),
        ({"a": object}, "a value of type type is not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "an integer has more than 3,900 digits"),
        ({"a": 10**4000}, "an integer has more than 3,900 digits"),
        ('{"a": "\\ud800"}', "text holds a lone surrogate; send valid Unicode"),
        ("[" * 100_000, f"JSON is nested deeper than {MAX_DEPTH} levels"),
        ('{"a":' * 200 + "1" + "}" * 200, f"JSON is nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_is_no_plain_json_object_is_refused(value, said):
    with pytest.raises(InvalidMessage) as caught:
        json_object(value, "p")
    assert (caught.value.message, caught.value.field_path) == (said, "p")


def test_a_value_that_holds_itself_is_refused():
    value = {}
    value["again"] = value
    with pytest.raises(InvalidMessage):
        canonical(value, "p")
