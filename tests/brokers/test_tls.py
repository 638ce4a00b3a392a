"""TLS to brokers whose certificate is by a private authority: named in the URL, as the guide says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.support.broker_servers import free_port, running_rabbitmq, running_redis
from tests.support.certificates import Authority
from tests.support.servers import ServiceMissing, give_up_on
from timeball.brokers.base import Broker, Ticket, make_broker
from timeball.domain.values.ids import ExecutionId
from timeball.env import SystemClock
from timeball.errors import BrokerUnavailable

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def place(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[str, str]]:
    """The URL of a server that speaks TLS alone, and the parameter that names its authority."""
    certificate, key = authority.certificate(request.param)
    port = free_port()
    try:
        if request.param == "redis":
            files = {"--tls-cert-file": certificate, "--tls-key-file": key, "--tls-ca-cert-file": authority.file}
            told = [str(word) for pair in files.items() for word in pair]
            with running_redis("--tls-port", str(port), *told, "--tls-auth-clients", "no"):
                yield f"rediss://localhost:{port}/0", "ssl_ca_certs"
        else:
            with running_rabbitmq(_rabbitmq_conf(port, certificate, key, authority.file)):
                yield f"amqps://guest:guest@localhost:{port}/", "cafile"
    except ServiceMissing as error:
        give_up_on(error)


def _rabbitmq_conf(port: int, certificate: Path, key: Path, authority: Path) -> str:
    return f"""
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {authority}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
"""


@pytest.fixture
async def brokers() -> AsyncIterator[Any]:
    made: list[Broker] = []

    def make(url: str) -> Broker:
        made.append(make_broker(url, uuid4().hex[:8], SystemClock()))
        return made[-1]

    yield make
    for broker in made:
        await broker.close()


async def test_the_authority_is_named_in_the_url(place: tuple[str, str], authority: Authority, brokers: Any) -> None:
    url, parameter = place
    broker = brokers(f"{url}?{parameter}={authority.file}")
    sent = Ticket(ExecutionId(uuid4()), "default", datetime.now(UTC).replace(microsecond=0))

    await broker.publish("inbox", [sent])

    assert await broker.receive("inbox", 1, timedelta(seconds=10)) == [sent]


async def test_a_certificate_of_a_stranger_is_refused(place: tuple[str, str], brokers: Any) -> None:
    with pytest.raises(BrokerUnavailable, match=r"(?i)certificate.verify.failed"):
        await brokers(place[0]).check()


async def test_the_authority_may_be_one_that_the_machine_trusts(
    place: tuple[str, str], authority: Authority, brokers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))

    await brokers(place[0]).check()
