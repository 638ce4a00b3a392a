"""What processes leave for `timeball alive`, and what it makes of that."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from timeball.config import life_signs
from timeball.config.life_signs import LifeSign, is_alive

HOUR = 3600.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the life signs of this test are."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"timeball-{os.getuid()}"


def dead_process() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@contextmanager
def server(answer: bytes) -> Iterator[int]:
    """A server on loopback that gives one client this answer; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_nothing_is_alive_where_nothing_was_started() -> None:
    assert not is_alive(None)


def test_a_node_is_alive_while_it_holds_its_lease() -> None:
    LifeSign("worker").extend(time.monotonic() + HOUR)

    assert is_alive("worker")
    assert is_alive(None)
    assert not is_alive("scheduler")


def test_a_node_whose_lease_has_run_out_is_not_alive() -> None:
    LifeSign("worker").extend(time.monotonic() - 0.01)

    assert not is_alive("worker")


def test_a_node_that_left_is_not_alive() -> None:
    sign = LifeSign("scheduler")
    sign.extend(time.monotonic() + HOUR)

    sign.remove()

    assert not is_alive("scheduler")


def test_a_process_that_died_leaves_no_life_sign(folder: Path) -> None:
    LifeSign("worker").extend(time.monotonic() + HOUR)
    left = folder / f"worker-{dead_process()}"
    (folder / f"worker-{os.getpid()}").rename(left)

    assert not is_alive("worker")
    assert not left.exists()


def test_the_api_is_alive_if_it_says_that_it_is_ready() -> None:
    with server(b"HTTP/1.1 200 OK\r\n\r\n") as port:
        LifeSign("api").listen("127.0.0.1", port)
        assert is_alive("api")

    with server(b"HTTP/1.1 503 Service Unavailable\r\n\r\n") as port:
        LifeSign("api").listen("127.0.0.1", port)
        assert not is_alive("api")

    assert not is_alive("api"), "nothing listens any more"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_account_is_not_believed(folder: Path) -> None:
    LifeSign("worker").extend(time.monotonic() + HOUR)
    os.chown(folder, 65534, 65534)

    assert not is_alive("worker")
    LifeSign("scheduler").extend(time.monotonic() + HOUR)
    assert not (folder / f"scheduler-{os.getpid()}").exists()


def test_a_folder_that_others_can_write_to_is_not_believed(folder: Path) -> None:
    LifeSign("worker").extend(time.monotonic() + HOUR)
    folder.chmod(0o777)

    assert not is_alive("worker")


def test_a_life_sign_that_cannot_be_written_harms_nothing(folder: Path) -> None:
    folder.write_text("a file where the folder should be")

    LifeSign("worker").extend(time.monotonic() + HOUR)

    assert not is_alive("worker")


def test_a_health_check_imports_no_command_line_no_settings_and_no_driver() -> None:
    script = (
        "import sys; sys.argv = ['timeball', 'alive']\n"
        "from timeball.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as exit: assert exit.code == 1, exit.code\n"
        "print(*sorted(name for name in sys.modules if name.split('.')[0] in "
        "('asyncio', 'asyncpg', 'pydantic', 'typer', 'fastapi')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)

    assert done.stdout.split() == []


def test_every_kind_of_process_has_a_life_sign() -> None:
    from timeball.domain.node import NodeKind

    assert set(life_signs.KINDS) == {"api", "watch", *(kind.value for kind in NodeKind)}
