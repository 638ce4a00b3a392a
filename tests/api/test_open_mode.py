"""Open mode: which requests a real server serves without keys, by asking the kernel for the caller's account."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.conftest import ApiThread
from tests.api.test_conventions import check_problem
from tests.conftest import FreshDatabase
from timeball.api import peers
from timeball.api.app import make_api
from timeball.client import Client
from timeball.config.servers import find_local_key, write_local_key
from timeball.config.settings import Settings
from timeball.runtime import ServerRuntime

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel is asked on Linux only")
FORWARDING = ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via"]
UserOf = Callable[[peers.Address, peers.Address], int | None]


def curl(address: str, *options: str, user: int | None = None) -> int:
    """The status that curl gets when another account runs it."""
    command = ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--max-time", "30"]
    ran = subprocess.run(
        [*command, *options, address], user=user, cwd="/", env={"PATH": os.environ["PATH"]}, capture_output=True
    )
    return int(ran.stdout)


# the real server


@needs_linux
def test_security_1_a_program_of_the_own_account_needs_no_key(running_api: str) -> None:
    assert curl(f"{running_api}/api/v1/jobs") == 200
    assert curl(f"{running_api}/") == 200


@needs_linux
@needs_root
def test_security_1_another_account_of_the_machine_is_not_served_without_a_key(running_api: str) -> None:
    as_json = ["-H", "Content-Type: application/json", "-d", '{"handler": "test.echo"}']

    assert curl(f"{running_api}/api/v1/jobs", user=NOBODY) == 401
    assert curl(f"{running_api}/api/v1/jobs", *as_json, user=NOBODY) == 401
    assert curl(f"{running_api}/metrics", user=NOBODY) == 401
    assert curl(f"{running_api}/", user=NOBODY) == 401
    assert curl(f"{running_api}/jobs", user=NOBODY) == 401
    assert curl(f"{running_api}/parts/stream", user=NOBODY) == 401
    assert curl(f"{running_api}/api/v1/health/live", user=NOBODY) == 200
    assert httpx.get(f"{running_api}/api/v1/jobs").json()["data"] == []


@needs_linux
@pytest.mark.parametrize("header", FORWARDING)
def test_security_1_a_request_through_a_proxy_needs_a_key(running_api: str, header: str) -> None:
    for path in ("/api/v1/jobs", "/jobs"):
        refused = httpx.get(f"{running_api}{path}", headers={header: "for=203.0.113.7"})

        assert refused.status_code == 401
    check_problem(httpx.get(f"{running_api}/api/v1/jobs", headers={header: "x"}), 401, "unauthenticated")
    assert "timeball keys create" in refused.text


@needs_linux
def test_a_401_names_the_command_that_creates_a_key(running_api: str) -> None:
    refused = httpx.get(f"{running_api}/api/v1/jobs", headers={"Via": "1.1 somewhere"}).json()

    assert "timeball keys create --role admin" in refused["hint"]


@needs_linux
def test_the_kernel_is_asked_once_a_connection(running_api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def counted(near: peers.Address, far: peers.Address) -> int:
        asked.append(far)
        return os.geteuid()

    monkeypatch.setattr(peers, "user_of_peer", counted)
    with httpx.Client(base_url=running_api) as client:
        for _ in range(3):
            assert client.get("/api/v1/jobs").status_code == 200
    assert len(asked) == 1

    httpx.get(f"{running_api}/api/v1/jobs")
    assert len(asked) == 2


@pytest.mark.parametrize("answer", [None, 12345])
def test_an_unknown_or_foreign_owner_is_not_served(
    running_api: str, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    monkeypatch.setattr(peers, "user_of_peer", lambda _near, _far: answer)

    check_problem(httpx.get(f"{running_api}/api/v1/jobs"), 401, "unauthenticated")


async def test_a_request_without_a_peer_is_not_served(parts: ServerRuntime) -> None:
    transport = httpx.ASGITransport(app=make_api(parts))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080/api/v1") as client:
        check_problem(await client.get("/jobs"), 401, "unauthenticated")


# the kernel


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a loopback connection of this process."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as far,
        listening.accept()[0] as near,
    ):
        yield near, far


KERNEL = [pytest.param(peers._ask_netlink, id="netlink"), pytest.param(peers._ask_proc, id="proc")]


@needs_linux
@pytest.mark.parametrize("ask", KERNEL)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_the_kernel_names_the_owner_of_an_open_socket(ask: UserOf, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with listening, socket.create_connection(listening.getsockname()[:2]) as far, listening.accept()[0] as near:
        assert ask(near.getsockname()[:2], far.getsockname()[:2]) == os.geteuid()


@needs_linux
@pytest.mark.parametrize("ask", KERNEL)
def test_a_socket_that_its_process_has_closed_has_no_owner(
    ask: UserOf, connection: tuple[socket.socket, socket.socket]
) -> None:
    """Many kernels report user 0 then: a program that sends its request and closes at once must not pass for root."""
    near, far = connection
    ends = near.getsockname(), far.getsockname()

    far.sendall(b"GET / HTTP/1.1\r\n\r\n")
    far.close()

    assert ask(*ends) is None


@needs_linux
@needs_root
@pytest.mark.parametrize("ask", KERNEL)
def test_the_kernel_distinguishes_another_account(ask: UserOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        calling = subprocess.Popen(["curl", "-s", f"http://127.0.0.1:{port}/"], user=NOBODY, cwd="/")
        near, far = listening.accept()
        with near:
            assert ask(near.getsockname(), far) == NOBODY
            assert not peers.is_own(near.getsockname(), far, ask)
        calling.kill()
        calling.wait()


@needs_linux
@needs_root
def test_a_connection_of_another_network_namespace_is_not_found() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is missing")
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as far,
        listening.accept()[0] as near,
    ):
        program = (
            "from timeball.api.peers import can_ask_kernel, user_of_peer\n"
            f"print(user_of_peer({near.getsockname()!r}, {far.getsockname()!r}), can_ask_kernel({near.getsockname()!r}))"
        )
        elsewhere = subprocess.run(
            ["unshare", "--net", sys.executable, "-c", program], capture_output=True, text=True, timeout=60
        )
    if "Operation not permitted" in elsewhere.stderr:
        pytest.skip("this machine does not allow network namespaces")

    assert elsewhere.stdout.split() == ["None", "False"]


@pytest.mark.parametrize(
    ("near", "far"), [("127.0.0.1", "192.0.2.1"), ("192.0.2.1", "127.0.0.1"), ("::1", "2001:db8::1")]
)
def test_only_loopback_connections_are_looked_up(near: str, far: str) -> None:
    assert not peers.is_own((near, 8080), (far, 40000), lambda _near, _far: os.geteuid())


def test_a_user_that_the_namespace_does_not_know_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = ("127.0.0.1", 8080), ("127.0.0.1", 40000)
    assert peers.is_own(*ends, lambda _near, _far: os.geteuid())

    monkeypatch.setattr(peers, "_is_unmapped", lambda _user: True)

    assert not peers.is_own(*ends, lambda _near, _far: os.geteuid())


# where the kernel does not answer: the local key


@pytest.fixture
def keyed_api(
    fresh_database: FreshDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, ApiThread]]:
    """A server on a system that does not know the owner of a connection."""
    monkeypatch.setattr("timeball.api.server.can_ask_kernel", lambda _listening: False)
    monkeypatch.setenv("TIMEBALL_DATA_DIR", str(tmp_path))
    api = ApiThread(fresh_database.dsn, Settings(port=0, data_dir=tmp_path))
    yield api.start(), api
    api.stop()
    assert list(tmp_path.glob("*.key")) == []


def test_a_server_that_cannot_ask_the_kernel_requires_its_local_key(keyed_api: tuple[str, ApiThread]) -> None:
    address, _ = keyed_api
    key = find_local_key(address)

    check_problem(httpx.get(f"{address}/api/v1/jobs"), 401, "unauthenticated")
    check_problem(
        httpx.get(f"{address}/api/v1/jobs", headers={"Authorization": f"Bearer {key}x"}), 401, "unauthenticated"
    )
    assert httpx.get(f"{address}/api/v1/jobs", headers={"Authorization": f"Bearer {key}"}).status_code == 200


def test_clients_of_the_same_account_find_the_local_key(keyed_api: tuple[str, ApiThread], tmp_path: Path) -> None:
    address, _ = keyed_api
    file = tmp_path / f"api-{urlsplit(address).port}.key"

    with Client(address) as client:
        assert client.request("GET", "/jobs")["data"] == []
    assert file.stat().st_mode & 0o777 == 0o600
    command = [sys.executable, "-m", "timeball", "jobs", "--url", address]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_the_printed_address_logs_a_browser_in_and_the_key_leaves_the_url(keyed_api: tuple[str, ApiThread]) -> None:
    address, api = keyed_api
    found = re.search(r"Dashboard: (\S+)", api.greeting)
    assert found is not None
    with httpx.Client(follow_redirects=True) as browser:
        assert browser.get(f"{address}/jobs").status_code == 401

        page = browser.get(found[1])

        assert page.status_code == 200
        assert "token=" not in str(page.url)
        assert browser.get(f"{address}/jobs").status_code == 200
        assert browser.get(f"{address}/jobs", headers={"Host": "evil.example"}).status_code == 403


def test_the_first_api_key_ends_the_local_key(keyed_api: tuple[str, ApiThread]) -> None:
    address, _ = keyed_api
    key = find_local_key(address)
    assert key is not None
    with httpx.Client(base_url=address, follow_redirects=True) as browser:
        page = browser.get(f"/keys?token={key}").text
        form = re.search(r'name="form-token" content="([0-9a-f]+)"', page)
        assert form is not None
        made = browser.post("/keys", data={"token": form[1], "name": "first", "role": "admin"})
        assert made.status_code == 200

        assert "/login" in str(browser.get("/jobs").url)
    check_problem(
        httpx.get(f"{address}/api/v1/jobs", headers={"Authorization": f"Bearer {key}"}), 401, "unauthenticated"
    )


def test_a_local_key_that_others_can_read_or_that_belongs_elsewhere_is_not_sent(tmp_path: Path) -> None:
    key = write_local_key(tmp_path, 8080)
    file = tmp_path / "api-8080.key"

    assert find_local_key("http://127.0.0.1:8080", tmp_path) == key
    assert find_local_key("http://localhost:8080/api/v1", tmp_path) == key
    assert find_local_key("http://127.0.0.1:8081", tmp_path) is None
    assert find_local_key("http://192.0.2.1:8080", tmp_path) is None
    assert write_local_key(tmp_path, 8080) != key
    file.chmod(0o644)
    assert find_local_key("http://127.0.0.1:8080", tmp_path) is None
    file.unlink()
    file.symlink_to("/etc/hostname")
    assert find_local_key("http://127.0.0.1:8080", tmp_path) is None
