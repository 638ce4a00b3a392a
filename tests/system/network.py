"""A real network between nodes and their PostgreSQL, whose packets can be made to vanish.

Two namespaces of the kernel, joined by a cable. In one a relay listens on TCP and passes on to the server's socket; nodes are started in
the other. `forget_connections` does what a firewall does that restarts: packets of every connection there is are swallowed from then on, in
both directions and without a word, while new connections work. It is done by routing rules, which every kernel with namespaces has.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from tests.support.servers import POSTGRES_PORT, ROLE

_ESTABLISHED = "01"
_RELAY = """
import asyncio, sys

async def pass_on(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()

async def meet(reader, writer):
    there, back = await asyncio.open_unix_connection(sys.argv[3])
    await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

async def main():
    server = await asyncio.start_server(meet, sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


class NoNetwork(Exception):
    """Here no namespaces can be made; says why."""


class Network:
    """Nodes on one side, the database on the other."""

    def __init__(self, number: int) -> None:
        # The process's own number: several may be at it on one machine.
        self._nodes, self._server = f"tb-nodes-{number}", f"tb-server-{number}"
        self._cable = f"tbc{number % 100_000}"
        # A slice of the range for tests between networks.
        self._prefix = f"198.{18 + number // 256 % 2}.{number % 256}"
        self._forgotten: set[int] = set()

    @property
    def inside(self) -> tuple[str, ...]:
        """What to put before a command that is to run where the nodes are."""
        return ("ip", "netns", "exec", self._nodes)

    def dsn(self, database: str) -> str:
        return f"postgresql://{ROLE}@{self._prefix}.1:{POSTGRES_PORT}/{quote(database)}"

    def make(self) -> None:
        try:
            for name in (self._nodes, self._server):
                _ip("netns", "add", name)
            _ip(
                "link",
                "add",
                self._cable,
                "netns",
                self._server,
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                self._nodes,
            )
            for name, device, number in ((self._server, self._cable, 1), (self._nodes, "cable", 2)):
                _ip("-n", name, "addr", "add", f"{self._prefix}.{number}/30", "dev", device)
                _ip("-n", name, "link", "set", device, "up")
                _ip("-n", name, "link", "set", "lo", "up")
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or error
            raise NoNetwork(f"no namespaces of the network can be made here: {said}") from error

    def unmake(self) -> None:
        for name in (self._nodes, self._server):
            with suppress(OSError, subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    @contextmanager
    def relayed_to(self, socket: str) -> Iterator[None]:
        """Pass connections on to this socket of PostgreSQL."""
        command = ["ip", "netns", "exec", self._server, sys.executable, "-c", _RELAY]
        relay = subprocess.Popen([*command, f"{self._prefix}.1", str(POSTGRES_PORT), socket], stdout=subprocess.PIPE)
        try:
            assert relay.stdout is not None
            assert relay.stdout.readline() == b"ready\n"
            yield
        finally:
            relay.kill()
            relay.wait(10)

    def connections(self, pid: int) -> set[int]:
        """The ports of the connections from where this process is."""
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        there = [line.split() for line in lines]
        return {
            int(local.split(":")[1], 16)
            for _, local, remote, state, *_ in there
            if state == _ESTABLISHED and int(remote.split(":")[1], 16) == POSTGRES_PORT
        }

    def forget_connections(self, pid: int) -> int:
        """Swallow all packets of the connections there are; returns how many were not forgotten before."""
        new = self.connections(pid) - self._forgotten
        self._forgotten |= new
        for port in new:
            _ip("-n", self._nodes, "rule", "add", "ipproto", "tcp", "sport", str(port), "blackhole")
            _ip("-n", self._server, "rule", "add", "ipproto", "tcp", "dport", str(port), "blackhole")
        return len(new)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True, timeout=20)


@contextmanager
def network_to(socket: str) -> Iterator[Network]:
    """A network for as long as the block lasts; NoNetwork says why there is none."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise NoNetwork("namespaces of the network can be made by root alone, with the program ip of iproute2")
    network = Network(os.getpid())
    try:
        network.make()
        with network.relayed_to(socket):
            yield network
    finally:
        network.unmake()
