import pytest
from patchloom_service.config import Config, parse_colour


def test_dtype_aliases_become_the_canonical_name():
    assert [Config(dtype=name).dtype for name in ("fp32", "bf16", "fp16")] == [
        "float32",
        "bfloat16",
        "float16",
    ]


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("device", "tpu", "device must be one of auto, cuda, cpu, interpreter, got 'tpu'"),
        ("parity", "pillow9", "parity must be one of aten_u8, pillow12, pillow13"),
        ("dtype", "int8", "dtype must be one of"),
        ("max_items", 0, "max_items must be at least 1, got 0"),
        ("lease_time", 0.0, "lease_time must be a positive number of seconds, got 0.0"),
        ("batch_wait", float("nan"), "batch_wait must be a positive number of seconds, got nan"),
        ("request_timeout", float("inf"), "request_timeout must be"),
        ("allow_fetch", ("https://example.com/",), "allow_fetch takes a host such as example.com"),
        ("allow_fetch", ("",), "allow_fetch takes a host"),
        ("background", "white", "a colour is written #rrggbb, got 'white'"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(setting, value, message):
    with pytest.raises(ValueError, match=message):
        Config(**{setting: value})


def test_the_caches_may_be_switched_off():
    assert Config(pixel_cache_bytes=0, segment_cache_bytes=0).pixel_cache_bytes == 0


def test_a_colour_is_read_as_red_green_blue():
    assert parse_colour("#ff8000") == (255, 128, 0)
