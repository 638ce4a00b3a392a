"""`shell.command`: run a program of the worker's machine, one of those an administrator has listed."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import re
import shutil
import signal
import socket
import struct
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, StringConstraints, field_validator

from timeball.current import RUNNING, current
from timeball.errors import SettingsError, TimeballError
from timeball.handlers.binding import HandlerRefused, Payload
from timeball.handlers.builtin.path_sandbox import PathSandbox, path_parts
from timeball.handlers.builtin.secrets import SecretReference, SecretScope, SecretStore
from timeball.handlers.occurrence import occurrence_environment, trace_environment

_SUBREAPER = Path(__file__).parents[1] / "subreaper.py"
_PATH = "/usr/local/bin:/usr/bin:/bin"
_GRACE_SECONDS = 2.0
# The subreaper needs the grace and a moment more; one that takes longer is itself killed.
_END_SECONDS = _GRACE_SECONDS + 8
# Little, so that a command that floods us does not hold up the worker's other work for long.
_READ_BYTES = 8 * 1024
# What a line costs beside its bytes: empty ones must not be free.
_LINE_OVERHEAD = 32
_LONGEST_LINE = 16 * 1024
_LAST_LINES = 20
_LONGEST_TAIL = 4_000
_MOST_ARGUMENTS = 1_000
# What a command finds in any case; a payload does not set it.
_RESERVED_VARIABLES = re.compile(r"PATH|HOME|TIMEBALL_.*")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")

Argument = Annotated[str, StringConstraints(max_length=100_000, pattern=r"^[^\x00]*$")]


class ShellPayload(Payload):
    """A program and its arguments."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"command": "backup.sh", "args": ["--full", "/srv/data"]}]}
    )

    command: Annotated[str, StringConstraints(min_length=1, max_length=1_000, pattern=r"^[^\x00-\x1f]+$")] = Field(
        description="The program: a path of the administrator's list, or the last part of one.", examples=["backup.sh"]
    )
    args: tuple[Argument | SecretReference, ...] = Field(
        default=(),
        max_length=_MOST_ARGUMENTS,
        description="Its arguments, each as it is: no shell reads them. A secret here can be seen in the list of processes.",
        examples=[["--full", "/srv/data"]],
    )
    cwd: str | None = Field(
        default=None, description="A folder below the files folder; otherwise an empty one, removed afterwards."
    )
    env: dict[Annotated[str, StringConstraints(pattern=rf"^{_VARIABLE.pattern}$")], Argument | SecretReference] = Field(
        default={},
        max_length=100,
        description="Variables of the worker's list `TIMEBALL_SHELL_ENV`; a value may be a secret reference.",
    )

    @field_validator("cwd")
    @classmethod
    def _check_folder(cls, value: str | None) -> str | None:
        if value is not None:
            path_parts(value)
        return value


class CommandFailed(TimeballError):
    """The program ended with another exit code than 0, or by a signal."""

    code = "command_failed"


class CommandRefused(HandlerRefused):
    """The program is not allowed here, or cannot be started."""

    code = "command_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellRules:
    """What the administrator allows. Limits are those of one process, but for the output."""

    programs: tuple[str, ...] = ()
    # The variables that a payload may set. A name such as RESTIC_PASSWORD_COMMAND makes a program run any code.
    variables: tuple[str, ...] = ()
    user: str | None = None
    # The account that runs the database's server, if it is one of this machine.
    database_uid: int | None = None
    cpu_seconds: int = 600
    memory_bytes: int = 1024**3
    file_bytes: int = 1024**3
    output_bytes: int = 10 * 1024**2
    processes: int = 128

    def program(self, command: str) -> str:
        """The listed program that is meant."""
        matches = [path for path in self.programs if command in (path, os.path.basename(path))]
        if not matches:
            raise CommandRefused(f"{command[:200]} is not among the programs allowed here: TIMEBALL_SHELL_PROGRAMS")
        if len(matches) > 1:
            raise CommandRefused(f"{command[:200]} may be any of {', '.join(matches)}; give the whole path")
        return matches[0]

    def check_variables(self, env: Mapping[str, object]) -> None:
        """Refuse variables that are not on the administrator's list."""
        refused = sorted(env.keys() - set(self.variables))
        if refused:
            raise CommandRefused(
                f"{', '.join(refused)} cannot be set for commands here; "
                "expected names of TIMEBALL_SHELL_ENV, the list of variables that this worker allows"
            )

    def limits(self) -> dict[str, int]:
        """The limits by the names of the `resource` module."""
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": 256,
        }
        # It counts all processes of a user: for the worker's own user it would count the worker's threads.
        return limits | ({"RLIMIT_NPROC": self.processes} if os.geteuid() == 0 else {})


class Shell:
    """Run a program of the administrator's list, with limits, and log what it says."""

    def __init__(self, rules: ShellRules, root: PathSandbox, secrets: SecretStore) -> None:
        problems = [
            f"TIMEBALL_SHELL_PROGRAMS has {path!r}, expected an absolute path"
            for path in rules.programs
            if not path.startswith("/") or ".." in Path(path).parts
        ]
        problems += [
            f"TIMEBALL_SHELL_ENV has {name!r}, expected names of variables in capital letters, and none of PATH, HOME and TIMEBALL_..."
            for name in rules.variables
            if not _VARIABLE.fullmatch(name) or _RESERVED_VARIABLES.fullmatch(name)
        ]
        if problems:
            raise SettingsError(problems)
        self._rules = rules
        self._root = root
        self._secrets = secrets
        self._account = account_of(rules.user)
        if self._account is not None and self._account[0] == rules.database_uid:
            name = pwd.getpwuid(self._account[0]).pw_name
            problem = (
                f"commands would run as {name}, the account that runs the database's server: they could change "
                "everything in it; set TIMEBALL_SHELL_USER to another account, made with: useradd --system commands"
            )
            raise SettingsError([problem])

    async def __call__(self, payload: ShellPayload) -> dict[str, Any]:
        return await self.run(payload, {})

    async def run(self, payload: ShellPayload, told: Mapping[str, str]) -> dict[str, Any]:
        """Run the program, with what Timeball tells it in variables beside those of the payload."""
        program = self._rules.program(payload.command)
        self._rules.check_variables(payload.env)
        disclosure = await self._secrets.disclose(payload)
        disclosure.for_host(None)
        arguments = [payload.command, *(disclosure.reveal(value) for value in payload.args)]
        variables = {name: disclosure.reveal(value) for name, value in payload.env.items()}
        async with self._folder(payload.cwd) as (folder, path):
            order = {
                "program": program,
                "arguments": arguments,
                "environment": _environment(path) | dict(told) | variables,
                "folder": folder,
                "account": self._account,
                "limits": self._rules.limits(),
                "grace_seconds": _GRACE_SECONDS,
            }
            output = CommandOutput(disclosure, self._rules.output_bytes)
            report = await _run(order, output)
        return _conclude(program, report, output)

    @asynccontextmanager
    async def _folder(self, cwd: str | None) -> AsyncIterator[tuple[int, str]]:
        if cwd is not None:
            with self._root.folder(path_parts(cwd), creates=False) as folder:
                yield folder, str(self._root.path.joinpath(*path_parts(cwd)))
            return
        path = tempfile.mkdtemp(prefix="timeball-shell-")
        try:
            if self._account is not None:
                os.chown(path, *self._account)
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                yield folder, path
            finally:
                os.close(folder)
        finally:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


def account_of(user: str | None) -> tuple[int, int] | None:
    """As whom programs run: (uid, gid) to become, or None to stay who we are. Root becomes `nobody` unless told otherwise."""
    if os.geteuid() != 0:
        if user is not None and user != pwd.getpwuid(os.geteuid()).pw_name:
            raise SettingsError(
                [f"TIMEBALL_SHELL_USER is {user!r}, but only a worker run by root can become another user"]
            )
        return None
    try:
        entry = pwd.getpwnam(user or "nobody")
    except KeyError:
        raise SettingsError(
            [f"TIMEBALL_SHELL_USER is {user or 'nobody'!r}, which is not a user of this machine"]
        ) from None
    return entry.pw_uid, entry.pw_gid


class CommandOutput:
    """What a command writes, as log lines of its attempt, and how much of it there was."""

    def __init__(self, disclosure: SecretScope, cap: int) -> None:
        self.is_too_long = False
        self.last: dict[str, deque[str]] = {"info": deque(maxlen=_LAST_LINES), "warning": deque(maxlen=_LAST_LINES)}
        self._disclosure = disclosure
        self._left = cap

    async def follow(self, stream: asyncio.StreamReader, level: str) -> None:
        """Take lines until the stream ends or there are too many."""
        rest = b""
        is_cut = False
        while chunk := await stream.read(_READ_BYTES):
            self._left -= len(chunk) + chunk.count(b"\n") * _LINE_OVERHEAD
            if self._left < 0:
                self.is_too_long = True
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if not is_cut:
                    self._take(line, level)
                is_cut = False
            if len(rest) > _LONGEST_LINE:
                if not is_cut:
                    self._take(rest, level, is_whole=False)
                rest, is_cut = b"", True
            # Reading what is there already does not yield to other tasks.
            await asyncio.sleep(0)
        if rest and not is_cut:
            self._take(rest, level)

    def _take(self, line: bytes, level: str, *, is_whole: bool = True) -> None:
        text = self._disclosure.redact(line.decode("utf-8", "replace").rstrip("\r"))
        if not is_whole:
            # Where the line is cut, the beginning of a secret may stand, too little of it to be recognised.
            text = text[: len(text) - self._disclosure.longest] + " … (the rest of the line is left out)"
        if text.strip():
            current.log(text, level=level)
            self.last[level].append(text)

    def tail(self, level: str) -> str:
        """The last lines."""
        return "\n".join(self.last[level])[-_LONGEST_TAIL:]


def _environment(folder: str) -> dict[str, str]:
    return {
        "PATH": _PATH,
        "LANG": "C.UTF-8",
        "HOME": folder,
        **occurrence_environment(RUNNING.get().claimed),
        **trace_environment(RUNNING.get().claimed),
    }


async def _run(order: Mapping[str, Any], output: CommandOutput) -> dict[str, Any]:
    """Start a subreaper, read what the command writes, and return the report of the subreaper."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        with theirs:
            subreaper = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SUBREAPER)),
                stdin=theirs.fileno(),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=(order["folder"],),
                env={},
                start_new_session=True,
            )
        try:
            return await _follow(subreaper, ours, json.dumps(order).encode(), output)
        finally:
            await _end(subreaper, ours)


async def _follow(
    subreaper: asyncio.subprocess.Process, line: socket.socket, order: bytes, output: CommandOutput
) -> dict[str, Any]:
    assert subreaper.stdout is not None
    assert subreaper.stderr is not None
    await asyncio.get_running_loop().sock_sendall(line, struct.pack("!I", len(order)) + order)
    async with asyncio.TaskGroup() as followers:
        for stream, level in ((subreaper.stdout, "info"), (subreaper.stderr, "warning")):
            followers.create_task(_follow_one(output, stream, level, line))
    if output.is_too_long:
        return {}
    return await _report(line)


async def _follow_one(output: CommandOutput, stream: asyncio.StreamReader, level: str, line: socket.socket) -> None:
    await output.follow(stream, level)
    if output.is_too_long:
        _hang_up(line)


async def _report(line: socket.socket) -> dict[str, Any]:
    said = b""
    while part := await asyncio.get_running_loop().sock_recv(line, _READ_BYTES):
        said += part
    report: dict[str, Any] = json.loads(said) if said else {}
    return report


async def _end(subreaper: asyncio.subprocess.Process, line: socket.socket) -> None:
    """Hang up, and wait until nothing is left."""
    _hang_up(line)
    try:
        async with asyncio.timeout(_END_SECONDS):
            for stream in (subreaper.stdout, subreaper.stderr):
                # Read to its end, or the pipe would stay open; the rest is not kept.
                while stream is not None and await stream.read(_READ_BYTES):
                    pass
            await subreaper.wait()
    except TimeoutError:
        subreaper.kill()


def _hang_up(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _conclude(program: str, report: Mapping[str, Any], output: CommandOutput) -> dict[str, Any]:
    if output.is_too_long:
        raise CommandRefused(f"{program} was ended: it wrote more than is allowed (TIMEBALL_SHELL_OUTPUT_MB)")
    if "failed" in report:
        raise CommandRefused(f"{program} could not be started: {report['failed']}")
    status = report.get("status")
    if status == 0:
        return {"exit_code": 0, "stdout": output.tail("info"), "stderr": output.tail("warning")}
    how = "ended in an unknown way" if status is None else _ending(int(status))
    said = output.tail("warning") or output.tail("info")
    raise CommandFailed(f"{program} {how}" + (f": {said}" if said else ""))


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit code {status}"
    hints = {signal.SIGXCPU: " (it used up its CPU time)", signal.SIGXFSZ: " (it wrote too large a file)"}
    try:
        number = signal.Signals(-status)
    except ValueError:
        return f"was ended by signal {-status}"
    return f"was ended by {number.name}{hints.get(number, '')}"
