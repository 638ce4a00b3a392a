"""The address of a broker: understood, or refused with what was expected; never repeated, because it may hold a password."""

from __future__ import annotations

import sys

import pytest

from timeball.brokers.base import make_broker
from timeball.config.settings import load_settings
from timeball.env import SystemClock
from timeball.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("redis://localhost", "redis"),
        ("rediss://user:password@redis.internal:6380/3", "redis"),
        ("amqp://localhost/", "rabbitmq"),
        ("amqps://user:password@rabbitmq.internal:5671/vhost", "rabbitmq"),
    ],
)
async def test_the_address_decides_which_broker_it_is(url: str, kind: str) -> None:
    settings = load_settings(broker_url=url)
    assert settings.broker_url is not None

    broker = make_broker(settings.broker_url.get_secret_value(), "x", SystemClock())

    assert (broker.kind, broker.carries_tickets) == (kind, True)
    assert "password" not in repr(settings)
    await broker.close()


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (
            "kafka://user:canary@host:9092",
            "begins with kafka://, expected redis:// or rediss:// or amqp:// or amqps://",
        ),
        ("localhost:6379", "does not begin with a scheme"),
        ("redis://", "has no host"),
        ("redis://[canary", "cannot be read as a URL"),
        ("amqp://user:canary@host:many/", "has a port that is not a number"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(broker_url=url)

    assert complaint in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (
            "rediss://:canary@h/0?ssl_ca_cert=x",
            'has the parameter "ssl_ca_cert", which is unknown: did you mean ssl_ca_certs?',
        ),
        ("redis://:canary@h/0?socket_timeout=1", 'has the parameter "socket_timeout", which is unknown'),
        (
            "redis://:canary@h/0?ssl_ca_certs=x",
            "has ssl_ca_certs, which needs TLS, and begins with redis://, expected rediss://",
        ),
        ("amqps://u:canary@h/?ca_file=x", 'has the parameter "ca_file", which is unknown: did you mean cafile?'),
        ("amqp://u:canary@h/?cafile=x", "has cafile, which needs TLS, and begins with amqp://, expected amqps://"),
        ("amqp://u:canary@h/?colour=red", "expected one of name, heartbeat, auth"),
        ("redis://u:12?canary=x@h/0", "? %3F"),
    ],
)
def test_a_misspelt_parameter_is_named_with_the_nearest(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(broker_url=url)

    assert complaint in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("redis://:canary@h/0?protocol=fast", "TIMEBALL_BROKER_URL cannot be used: Invalid value for 'protocol'"),
        ("rediss://:canary@h/0?ssl_cert_reqs=maybe", "TIMEBALL_BROKER_URL cannot be used: Invalid SSL"),
        (
            "rediss://:canary@h/0?ssl_ca_certs=/nowhere/ca.crt",
            'ssl_ca_certs names the file "/nowhere/ca.crt", which cannot be read',
        ),
        ("amqps://u:canary@h/?cafile=/nowhere/ca.crt", 'cafile names the file "/nowhere/ca.crt", which cannot be read'),
    ],
)
def test_a_value_that_cannot_be_used_is_told_before_anything_is_connected(url: str, complaint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        make_broker(url, "x", SystemClock())

    assert complaint in str(refused.value)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "package", "extra"), [("redis://h", "redis", "redis"), ("amqp://h", "aio_pika", "rabbitmq")]
)
def test_a_missing_package_is_said_with_how_to_install_it(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("timeball.brokers.r")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(SettingsError, match=rf'pip install "timeball\[{extra}\]"'):
        make_broker(url, "x", SystemClock())


def test_without_an_address_there_is_none() -> None:
    assert load_settings().broker_url is None
