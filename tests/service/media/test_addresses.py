import pytest
from patchloom_service.media.addresses import is_allowed, is_public


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "::ffff:8.8.8.8"]
)
def test_a_public_address_is_public_however_it_is_written(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "10.1.2.3",
        "100.64.0.1",
        "127.0.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "192.168.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2002:7f00:1::",
        "2001:db8::1",
        "fc00::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "localhost",
        "",
    ],
)
def test_everything_else_is_not(address):
    assert not is_public(address)


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("images.test", 443, True),
        ("IMAGES.test.", 443, True),
        ("images.test", 8443, False),
        ("a.cdn.test", 443, True),
        ("cdn.test", 443, False),
        ("evilcdn.test", 443, False),
        ("odd.test", 8443, True),
        ("odd.test", 443, False),
    ],
)
def test_a_host_is_allowed_by_name_domain_and_port(host, port, expected):
    assert is_allowed(host, port, ["images.test", ".cdn.test", "odd.test:8443"]) is expected
