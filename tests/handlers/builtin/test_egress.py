from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from timeball.errors import InvalidInput
from timeball.handlers.builtin.egress import (
    EgressPolicy,
    EgressRefused,
    Endpoint,
    is_public,
    parse_egress_rule,
    parse_endpoint,
    unmapped,
)

PUBLIC = "93.184.216.34"
HTTPS = Endpoint("https", "example.com", 443)


def allowing(*entries: str) -> EgressPolicy:
    return EgressPolicy(tuple(map(parse_egress_rule, entries)))


def refuses(egress: EgressPolicy, target: Endpoint, *addresses: str) -> bool:
    try:
        egress.check_addresses(target, addresses)
    except EgressRefused:
        return True
    return False


def test_a_public_address_by_https_on_a_usual_port_is_reached():
    EgressPolicy().check_addresses(HTTPS, [PUBLIC, "2606:2800:220:1:248:1893:25c8:1946"])


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1"),
        *("192.0.0.8", "192.0.2.1", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255", "192.88.99.1"),
        *("::", "::1", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "fec0::1", "2001:db8::1", "100::1", "64:ff9b:1::1"),
    ],
)
def test_webhooks_do_not_reach_private_addresses(address):
    assert refuses(EgressPolicy(), HTTPS, address)


@pytest.mark.parametrize("private", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "192.168.0.1"])
@pytest.mark.parametrize("disguise", ["::ffff:{}", "64:ff9b::{}", "::{}", "2002:{hex}::1", "fe80::1%eth0"])
def test_webhooks_do_not_reach_private_addresses_in_disguise(private, disguise):
    a, b, c, d = map(int, private.split("."))
    address = disguise.format(private, hex=f"{a:02x}{b:02x}:{c:02x}{d:02x}")

    assert refuses(EgressPolicy(), HTTPS, address)


@pytest.mark.parametrize(
    "address",
    [
        *("169.254.169.254", "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "169.254.170.2", "192.0.0.192"),
        *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1"),
        # By a prefix that a network has chosen for its own NAT64.
        *("64:ff9b:1::a9fe:a9fe", "2a00:1450:64::169.254.169.254", "fd00:64::6464:64c8"),
    ],
)
def test_metadata_services_are_never_reached_not_even_by_the_allow_list(address):
    generous = allowing("0.0.0.0/0", "::/0", "example.com")

    assert refuses(generous, HTTPS, address)


@pytest.mark.parametrize("url", ["http://metadata.google.internal/x", "https://METADATA.google.internal./x"])
def test_metadata_services_are_refused_by_name_too(url):
    with pytest.raises(EgressRefused, match="metadata"):
        parse_endpoint(URL(url))


def test_every_address_of_a_name_must_be_public():
    assert refuses(EgressPolicy(), HTTPS, PUBLIC, "10.0.0.1")
    assert refuses(EgressPolicy(), HTTPS)


def test_https_is_the_default_and_http_needs_a_word_of_the_administrator():
    plain = Endpoint("http", "example.com", 80)

    assert refuses(EgressPolicy(), plain, PUBLIC)
    assert not refuses(EgressPolicy(allows_http=True), plain, PUBLIC)
    assert not refuses(allowing("example.com"), plain, PUBLIC)


def test_only_the_usual_ports_are_reached():
    for port in (22, 25, 6379, 5432, 11211):
        assert refuses(EgressPolicy(), Endpoint("https", "example.com", port), PUBLIC)
    assert not refuses(EgressPolicy(ports=(9443,)), Endpoint("https", "example.com", 9443), PUBLIC)


def test_the_allow_list_opens_a_network_on_one_port_only():
    egress = allowing("10.1.0.0/16:8080")

    assert not refuses(egress, Endpoint("http", "a.internal", 8080), "10.1.2.3")
    assert not refuses(egress, Endpoint("http", "a.internal", 8080), "::ffff:10.1.2.3")
    assert refuses(egress, Endpoint("http", "a.internal", 8443), "10.1.2.3")
    assert refuses(egress, Endpoint("http", "a.internal", 8080), "10.2.0.1")
    assert refuses(egress, Endpoint("http", "a.internal", 8080), "10.1.2.3", "127.0.0.1")


def test_the_allow_list_without_a_port_opens_the_usual_ones():
    egress = allowing("10.0.0.0/8", "fd12::/16")

    assert not refuses(egress, Endpoint("https", "a.internal", 443), "10.1.2.3", "fd12::7")
    assert refuses(egress, Endpoint("https", "a.internal", 6379), "10.1.2.3")


def test_the_allow_list_compares_whole_names():
    egress = allowing("billing.internal:9000")

    assert not refuses(egress, Endpoint("http", "billing.internal", 9000), "10.1.2.3")
    for host in ("evil-billing.internal", "billing.internal.evil.com", "x.billing.internal", "internal"):
        assert refuses(egress, Endpoint("http", host, 9000), "10.1.2.3")


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.1/8", "10.0.0.0/40", "a b", "*.internal", "10.0.0.0/8:99999", "[::1", "1.2.3"]
)
def test_an_entry_of_the_allow_list_that_cannot_be_read_is_refused(entry):
    with pytest.raises(InvalidInput, match=r"allow-list|port"):
        parse_egress_rule(entry)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "ftp://example.com",
            "file:///etc/passwd",
            "gopher://example.com:70/x",
            "javascript:alert(1)",
            "//example.com",
        ),
        *("https://user@example.com", "https://user:pw@example.com", "https://example.com@127.0.0.1:pw@x/"),
        *("https://2130706433/", "https://0x7f000001/", "https://0177.0.0.1/", "https://127.1/", "https://0x7f.0.0.1/"),
        *("https://1.2.3.4.5/", "https://127.0.0.1.256/", "https://[fe80::1%25eth0]/", "https://exa mple.com/"),
        *("https:///path", "https://example.com:0/", "https://-bad.com/", f"https://{'a' * 300}.com/"),
    ],
)
def test_urls_with_user_names_other_schemes_or_odd_addresses_are_refused(url):
    with pytest.raises((EgressRefused, ValueError)):
        parse_endpoint(URL(url))


def test_a_full_stop_at_the_end_and_capitals_change_nothing():
    assert parse_endpoint(URL("https://EXAMPLE.com./x")) == HTTPS


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_as_what_it_wraps(address):
    from ipaddress import IPv6Address

    number = int(address)
    wrapped = [
        IPv6Address(0xFFFF_0000_0000 | number),
        IPv6Address(0x64_FF9B << 96 | number),
        IPv6Address(0x2002 << 112 | number << 80 | 1),
    ]

    assert {unmapped(inner) for inner in wrapped} == {address}
    assert {is_public(unmapped(inner)) for inner in wrapped} == {is_public(address)}
