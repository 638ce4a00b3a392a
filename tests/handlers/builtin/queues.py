"""A Redis and a RabbitMQ of the tests' own, on free ports of loopback, ended with the tests."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.servers import ServiceMissing, wait_until

_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: answers(port), "Redis answers")
            yield port
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def running_rabbitmq() -> Iterator[int]:
    """A RabbitMQ with a name server of its own; yields its port."""
    if not _RABBITMQ.exists():
        raise ServiceMissing("RabbitMQ is not installed: apt-get install rabbitmq-server")
    port, names, nodes = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="timeball-rabbitmq-") as folder:
        environment = {
            "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
            "HOME": folder,
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"timeball-{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(nodes),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
        }
        with (Path(folder) / "output").open("wb") as output:
            process = subprocess.Popen(
                [_RABBITMQ], env=environment, cwd=folder, stdout=output, stderr=output, start_new_session=True
            )
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, "RabbitMQ answers", 120)
            if process.poll() is not None:
                raise RuntimeError(f"RabbitMQ did not start:\n{(Path(folder) / 'output').read_text()}")
            yield port
        finally:
            # Its whole session; its name server is a daemon and is told by its own means.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
            kill = ["epmd", "-port", str(names), "-kill"]
            subprocess.run(kill, env=environment, capture_output=True, check=False)
