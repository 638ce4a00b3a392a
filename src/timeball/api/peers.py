"""Which account is at the other end of a connection.

Without keys, the API serves the account it runs under and root, and no other account of the machine. Linux knows the owner of a
socket: `SOCK_DIAG` over netlink finds the other end of a loopback connection by its addresses and ports, and `/proc/net/tcp`
lists the same where netlink is not allowed.

After a process has closed its socket the kernel reports user 0 for it. So an answer counts only if it names the inode of an
open socket: otherwise a program that sends its request and closes at once would pass for root.

Where the kernel does not answer (macOS, some sandboxes), the server creates a random key when it starts, in a file that only its
account can read (`local_key`). Programs of that account send the key, and browsers get it with the printed address.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

from starlette.types import Scope

Address = tuple[str, int]
UserOf = Callable[[Address, Address], int | None]

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ANY_STATE = 0xFFFFFFFF
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
# family, protocol, extensions, padding, states; then the socket's id: ports, addresses, interface, cookie.
_QUESTION = struct.Struct("=BBBxI")
_ID = struct.Struct("!HH16s16s4x")
_COOKIE = struct.Struct("=II")
# family, state, timer, retransmissions, the id (48 bytes), expires, receive queue, send queue, user, inode.
_ANSWER = struct.Struct("=4B48s5I")
_ANSWER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LocalAccess:
    """How a server recognises its own account: by the kernel, or by the local key if the kernel does not answer."""

    local_key: str | None = None

    def connection(self) -> SocketPeer:
        """The other end of a new connection."""
        return SocketPeer(self)


class SocketPeer:
    """The other end of one connection to a server; the kernel is asked once."""

    __slots__ = ("_access", "_is_own")

    def __init__(self, access: LocalAccess) -> None:
        self._access = access
        self._is_own: bool | None = None

    def is_own_account(self, scope: Scope) -> bool:
        """Whether the kernel says so; asked once."""
        if self._is_own is None:
            self._is_own = self._ask(scope)
        return self._is_own

    def _ask(self, scope: Scope) -> bool:
        near, far = _address(scope.get("server")), _address(scope.get("client"))
        if self._access.local_key is not None or near is None or far is None:
            return False
        return is_own(near, far, user_of_peer)

    def has_local_key(self, token: str) -> bool:
        """Compared in constant time."""
        local_key = self._access.local_key
        return local_key is not None and hmac.compare_digest(local_key.encode(), token.encode())

    def has_local_session(self, cookie: str) -> bool:
        """Compared in constant time."""
        return self._access.local_key is not None and hmac.compare_digest(
            self.local_session().encode(), cookie.encode()
        )

    def local_session(self) -> str:
        """Derived from the local key, and valid as long as that key."""
        assert self._access.local_key is not None
        return "local-" + hmac.new(self._access.local_key.encode(), b"dashboard session", sha256).hexdigest()


def _address(value: Any) -> Address | None:
    return (str(value[0]), int(value[1])) if value is not None and value[1] is not None else None


def is_own(near: Address, far: Address, user_of: UserOf) -> bool:
    """Whether both ends are on loopback, and the far one belongs to the account of this process or to root."""
    if not (ip_address(near[0]).is_loopback and ip_address(far[0]).is_loopback):
        return False
    user = user_of(near, far)
    return user is not None and user in (0, os.geteuid()) and not _is_unmapped(user)


def _is_unmapped(user: int) -> bool:
    """Whether the number stands for every account that does not exist in this user namespace (a container)."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return False
        return user == int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return False


def can_ask_kernel(listening: Address) -> bool:
    """Whether the kernel knows the owner of a connection: tried with a connection to our own listening socket."""
    with suppress(OSError), socket.create_connection(listening, _ANSWER_SECONDS) as far:
        return user_of_peer(listening, far.getsockname()[:2]) == os.geteuid()
    return False


def user_of_peer(near: Address, far: Address) -> int | None:
    """The user id of the socket at the far end; None if there is no such socket here, or if it is closed."""
    try:
        return _ask_netlink(near, far)
    except (OSError, AttributeError):
        # AttributeError: a system without netlink.
        return _ask_proc(near, far)


def _ask_netlink(near: Address, far: Address) -> int | None:
    near_ip, far_ip = _plain(near[0]), _plain(far[0])
    family = socket.AF_INET if far_ip.version == 4 else socket.AF_INET6
    # Seen from the far end: its own address is the source.
    socket_id = _ID.pack(far[1], near[1], far_ip.packed.ljust(16, b"\0"), near_ip.packed.ljust(16, b"\0"))
    question = (
        _QUESTION.pack(family, socket.IPPROTO_TCP, 0, _ANY_STATE) + socket_id + _COOKIE.pack(_NO_COOKIE, _NO_COOKIE)
    )
    header = _HEADER.pack(_HEADER.size + len(question), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.settimeout(_ANSWER_SECONDS)
        netlink.sendto(header + question, (0, 0))
        answer = netlink.recv(8192)
    kind = _HEADER.unpack_from(answer)[1]
    if kind != _SOCK_DIAG_BY_FAMILY:
        errno = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if errno == 2:  # ENOENT: there is no such socket.
            return None
        raise OSError(errno, os.strerror(errno))
    *_, answered_id, _expires, _received, _sent, user, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    # Without the interface, which the question left open.
    length = len(socket_id) - 4
    return int(user) if inode and answered_id[:length] == socket_id[:length] else None


def _ask_proc(near: Address, far: Address) -> int | None:
    """Read twice: a line is not read in one step, and a socket that is open at the second reading was open at the first."""
    first, second = _proc_entry(near, far), _proc_entry(near, far)
    return first[0] if first is not None and first == second and first[1] else None


def _proc_entry(near: Address, far: Address) -> tuple[int, int] | None:
    """The user id and the inode of a socket, from the kernel's table of all sockets."""
    far_ip = _plain(far[0])
    addresses = [f"{_hexadecimal(far_ip)}:{far[1]:04X}", f"{_hexadecimal(_plain(near[0]))}:{near[1]:04X}"]
    try:
        with open("/proc/net/tcp" if far_ip.version == 4 else "/proc/net/tcp6") as table:
            for line in table:
                words = line.split()
                if words[1:3] == addresses:
                    return int(words[7]), int(words[9])
    except OSError:
        pass
    return None


def _hexadecimal(ip: IPv4Address | IPv6Address) -> str:
    """Groups of four bytes, each in the byte order of this machine."""
    packed = ip.packed
    return "".join(
        f"{int.from_bytes(packed[start : start + 4], 'little' if _IS_LITTLE else 'big'):08X}"
        for start in range(0, len(packed), 4)
    )


_IS_LITTLE = struct.pack("=H", 1) == b"\1\0"


def _plain(host: str) -> IPv4Address | IPv6Address:
    """An address; an IPv4 address mapped into IPv6 becomes the IPv4 address."""
    ip = ip_address(host)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return mapped or ip
