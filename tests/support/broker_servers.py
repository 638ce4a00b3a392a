"""A Redis and a RabbitMQ of the tests' own, on free ports of loopback, ended with the tests."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

from redis.asyncio import Redis

from tests.support.pace import patience
from tests.support.servers import ServiceMissing, wait_until

_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def free_port() -> int:
    """A port of loopback that nobody has, and that the system gives to nobody who connects."""
    # From the system's own range (32768 and up), somebody might have it before the server does; and whoever asks again and
    # again for a server that is not there yet may be given that very port, and be answered by himself.
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def running_redis(*options: str, port: int | None = None) -> Iterator[int]:
    """A Redis with these options; yields its port."""
    program = shutil.which("redis-server")
    if program is None:
        raise ServiceMissing("Redis is not installed: apt-get install redis-server")
    port = port or free_port()
    with tempfile.TemporaryDirectory(prefix="timeball-redis-") as folder:
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder, *options]
        # In a session of its own: an interrupt from the terminal is for us, who end it when those who use it have ended.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            wait_until(lambda: answers(port), "Redis answers")
            yield port
        finally:
            process.terminate()
            process.wait(timeout=patience(30))


class RestartableRedis:
    """A Redis that a test may stop and start again, empty, on the same port."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self._running = ExitStack()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._running.enter_context(running_redis(*self._options, port=self.port))

    def stop(self) -> None:
        self._running.close()

    async def fill(self) -> None:
        """Write more than there is memory for, so that something has to go."""
        async with Redis.from_url(self.url()) as redis:
            for number in range(40):
                await redis.set(f"somebody-elses-{number}", b"x" * 50_000)


class Rabbitmq:
    """A RabbitMQ with a name server of its own."""

    def __init__(self, folder: Path, configuration: str = "", beside: Rabbitmq | None = None) -> None:
        """*configuration* goes into its file; *beside* another one, it can join that one's cluster."""
        if not _RABBITMQ.exists():
            raise ServiceMissing("RabbitMQ is not installed: apt-get install rabbitmq-server")
        self.port = free_port()
        self._folder = folder
        self._names: str = str(free_port()) if beside is None else beside._names
        self._has_own_names = beside is None
        self.node = f"timeball-{os.getpid()}-{self.port}@localhost"
        if beside is not None:
            cookie = folder / ".erlang.cookie"
            cookie.write_bytes((beside._folder / ".erlang.cookie").read_bytes())
            cookie.chmod(0o400)
        (folder / "rabbitmq.conf").write_text(configuration)
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # Else the name server refuses to end while it believes that a server that was killed lives.
            "ERL_EPMD_RELAXED_COMMAND_CHECK": "true",
            # Two cores are shared by all tests; a server of one scheduler thread takes no more than its share.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none",
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
        }

    def url(self, vhost: str = "") -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/{vhost}"

    def start(self) -> None:
        output = self._folder / "output"
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                [_RABBITMQ], env=self._environment, cwd=self._folder, stdout=file, stderr=file, start_new_session=True
            )
        process = self._process
        wait_until(lambda: answers(self.port) or process.poll() is not None, "RabbitMQ answers", 120)
        if process.poll() is not None:
            raise RuntimeError(f"RabbitMQ did not start:\n{output.read_text()}")

    def control(self, *command: str) -> str:
        """`rabbitmqctl` with these arguments; returns what it says."""
        program = _RABBITMQ.with_name("rabbitmqctl")
        done = subprocess.run(
            [program, *command], env=self._environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"rabbitmqctl {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def says_yes(self, program: str, *arguments: str, **environment: str) -> bool:
        """Whether one of its own programs ends well, with something else in its environment perhaps."""
        command = [str(_RABBITMQ.with_name(program)), *arguments]
        told = self._environment | environment
        return subprocess.run(command, env=told, capture_output=True, timeout=120, check=False).returncode == 0

    def kill(self) -> None:
        """Kill it outright; `start` then recovers what is durable."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=patience(30))

    def stop(self) -> None:
        # Its whole session; its name server is a daemon and is told by its own means.
        self.kill()
        if not self._has_own_names:
            return
        kill = ["epmd", "-port", self._names, "-kill"]
        subprocess.run(kill, env=self._environment, capture_output=True, check=False)


@contextmanager
def running_rabbitmq(configuration: str = "", beside: Rabbitmq | None = None) -> Iterator[Rabbitmq]:
    """A running RabbitMQ, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="timeball-rabbitmq-") as folder:
        server = Rabbitmq(Path(folder), configuration, beside)
        try:
            server.start()
            yield server
        finally:
            server.stop()
