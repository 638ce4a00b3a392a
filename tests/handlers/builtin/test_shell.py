from __future__ import annotations

import asyncio
import gc
import json
import os
import pwd
import re
import signal
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.engine.runners.support import is_alive, open_files, until
from tests.handlers.builtin.support import attempt_at, check_payload, die, fail, run, succeed
from timeball.config.settings import HandlerSettings
from timeball.current import StopReason
from timeball.domain.execution import CancelOutcome, Released, TimeoutOutcome
from timeball.domain.handler import Handler, PayloadMismatch
from timeball.env import SystemClock
from timeball.errors import SettingsError
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin import shell as shell_module
from timeball.handlers.builtin.path_sandbox import PathSandbox
from timeball.handlers.builtin.secrets import SecretStore
from timeball.handlers.builtin.shell import Shell, ShellPayload, ShellRules
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import Registry
from timeball.runtime import server_uid

IS_ROOT = os.geteuid() == 0


def shell(*programs: str, root: Path = Path("/nonexistent"), secrets: dict[str, str] | None = None, **rules) -> Handler:
    environment = {f"TIMEBALL_SECRET_{name}": value for name, value in (secrets or {}).items()}
    made = Shell(ShellRules(programs=programs, **rules), PathSandbox(root), SecretStore(environment=environment))
    return typed_handler("shell.command", made, ShellPayload)


def script(text: str, **more) -> dict:
    return {"command": "/bin/sh", "args": ["-c", text], **more}


@pytest.fixture
def sh() -> Handler:
    # What asyncio says of the garbage of earlier tests would become log lines of the attempt.
    gc.collect()
    return shell("/bin/sh")


@pytest.fixture
def notes():
    """A folder in which a command of any user may leave notes."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="timeball-notes-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


async def pids_in(notes: Path, *names: str) -> list[int]:
    files = [notes / name for name in names]
    await until(
        lambda: all(file.exists() and file.read_text().endswith("\n") for file in files), "the pids are written"
    )
    return [int(file.read_text()) for file in files]


async def gone(*pids: int) -> None:
    await until(lambda: not any(map(is_alive, pids)), "they have gone")


# what it does


async def test_a_program_runs_with_its_arguments_and_its_exit_code_is_the_result():
    handler = shell("/bin/echo")
    attempt = attempt_at(handler, {"command": "echo", "args": ["a b", "$HOME", "; rm -rf /", "*"]})

    result = await succeed(handler, None, attempt)

    assert result == {"exit_code": 0, "stdout": "a b $HOME ; rm -rf / *", "stderr": ""}
    assert attempt.sink.lines == [("info", "a b $HOME ; rm -rf / *")]


async def test_output_becomes_log_lines_while_the_program_runs(sh, notes):
    go_on = notes / "go-on"
    attempt = attempt_at(
        sh, script(f"echo one; echo two >&2; while [ ! -e {go_on} ]; do sleep 0.02; done; printf three")
    )
    running = asyncio.ensure_future(run(sh, None, attempt))

    await until(lambda: len(attempt.sink.lines) == 2, "two lines are there")
    assert not running.done()
    go_on.touch()
    await running

    assert sorted(attempt.sink.lines) == [("info", "one"), ("info", "three"), ("warning", "two")]


async def test_another_exit_code_is_a_failure_that_is_tried_again(sh):
    outcome = await fail(sh, script("echo working; echo the disk is full >&2; exit 3"))

    assert outcome.is_retryable
    assert outcome.error.message == "/bin/sh ended with exit code 3: the disk is full"


async def test_death_by_a_signal_is_told_by_its_name(sh):
    assert "ended by SIGSEGV" in (await fail(sh, script("kill -SEGV $$"))).error.message


async def test_a_program_that_cannot_be_started_is_not_tried_again():
    said = await die(shell("/no/such/program"), {"command": "program"})

    assert said.startswith("/no/such/program could not be started: FileNotFoundError")


async def test_nothing_is_left_open(sh):
    await succeed(sh, script("true"))
    before = open_files()
    for _ in range(3):
        await succeed(sh, script("true"))

    assert open_files() == before


# security defaults


def test_the_shell_is_off_until_it_is_enabled(tmp_path):
    off = BuiltinHandlers(HandlerSettings(shell_programs=("/bin/sh",)), SystemClock(), tmp_path)
    on = BuiltinHandlers(HandlerSettings(shell_enabled=True, shell_programs=("/bin/sh",)), SystemClock(), tmp_path)

    assert "shell.command" not in Registry(off.handlers)
    assert "shell.command" in Registry(on.handlers)


async def test_a_worker_that_is_not_enabled_runs_nothing_even_if_it_is_asked(tmp_path):
    box = BuiltinHandlers(HandlerSettings(shell_programs=("/bin/sh",)), SystemClock(), tmp_path)

    said = await die(box.known.get("shell.command"), script(f"touch {tmp_path}/evil"))

    assert "not among the programs allowed" in said
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "command", ["/bin/bash", "bash", "sh;id", "sh -c id", "/bin/../bin/sh", "./sh", "bin/sh", "/tmp/sh", "SH", "$(id)"]
)
async def test_only_listed_programs_are_started(sh, command):
    assert "not among the programs allowed" in await die(sh, {"command": command, "args": ["-c", "id"]})


async def test_a_name_that_two_listed_programs_share_is_refused():
    handler = shell("/bin/echo", "/opt/evil/echo")

    assert "give the whole path" in await die(handler, {"command": "echo", "args": ["x"]})
    assert (await succeed(handler, {"command": "/bin/echo", "args": ["x"]}))["stdout"] == "x"


async def test_a_program_of_the_folder_it_runs_in_is_not_mistaken_for_a_listed_one(notes):
    """A file of the same name where the command runs, and first in a path of its own."""
    evil = notes / "echo"
    evil.write_text(f"#!/bin/sh\ntouch {notes}/evil\n")
    evil.chmod(0o755)
    handler = shell("/bin/echo", root=notes.parent)

    result = await succeed(handler, {"command": "echo", "args": ["mine"], "cwd": notes.name})

    assert result["stdout"] == "mine"
    assert not (notes / "evil").exists()


async def test_arguments_never_meet_a_shell(notes):
    handler = shell("/bin/echo")

    await succeed(handler, {"command": "echo", "args": [f"x; touch {notes}/evil", f"$(touch {notes}/evil)", "`id`"]})

    assert not (notes / "evil").exists()


async def test_the_environment_is_clean(monkeypatch):
    monkeypatch.setenv("TIMEBALL_DATABASE_URL", "postgresql://canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    handler = shell("/usr/bin/env", variables=("COLOUR", "SIZE"))

    result = await succeed(handler, {"command": "env", "env": {"COLOUR": "red"}})

    names = {line.partition("=")[0] for line in result["stdout"].splitlines()}
    assert {name for name in names if not name.startswith("TIMEBALL_")} == {"PATH", "LANG", "HOME", "COLOUR"}
    assert "PATH=/usr/local/bin:/usr/bin:/bin" in result["stdout"]


async def test_a_command_has_the_trace_of_its_execution() -> None:
    parent = f"00-{'ab' * 16}-{'cd' * 8}-01"
    handler = shell("/usr/bin/env")
    traced = attempt_at(handler, {"command": "env"}, meta=json.dumps({"$trace": {"traceparent": parent}}))

    first = await succeed(handler, None, traced)
    second = await succeed(handler, None, attempt_at(handler, {"command": "env"}))

    assert f"TRACEPARENT={parent}" in first["stdout"].splitlines()
    assert "TRACE" not in second["stdout"]


async def test_a_command_is_told_its_occurrence():
    handler = shell("/usr/bin/env")
    midnight = datetime(2026, 11, 3, tzinfo=UTC)
    attempt = attempt_at(handler, {"command": "env"}, scheduled_for=midnight, origin="backfill", job_name="Café, $1")

    result = await succeed(handler, None, attempt)

    assert sorted(line for line in result["stdout"].splitlines() if line.startswith("TIMEBALL_")) == [
        "TIMEBALL_ATTEMPT=3",
        "TIMEBALL_EXECUTION_ID=exe_00000000000000000000000001",
        "TIMEBALL_FENCE=7",
        "TIMEBALL_JOB_ID=job_00000000000000000000000002",
        "TIMEBALL_JOB_NAME=Café, $1",
        "TIMEBALL_ORIGIN=backfill",
        "TIMEBALL_SCHEDULED_FOR=2026-11-03T00:00:00Z",
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "HOME", "LD_PRELOAD", "PYTHONSTARTUP", "GIT_SSH_COMMAND", "RESTIC_PASSWORD_COMMAND", "BORG_RSH"),
        *("KUBECONFIG", "MAKEFILES", "PSQLRC", "DOTNET_STARTUP_HOOKS", "TIMEBALL_EXECUTION_ID", "COLOURS"),
    ],
)
async def test_only_variables_of_the_administrators_list_can_be_set(name):
    """A list of those that change which code runs would never be whole: each program has some of its own."""
    handler = shell("/usr/bin/env", variables=("COLOUR",))

    error = await die(handler, {"command": "env", "env": {"COLOUR": "red", name: "x"}})

    assert f"{name} cannot be set for commands here" in error
    assert "TIMEBALL_SHELL_ENV" in error


@pytest.mark.parametrize("name", ["BASH_FUNC_ls%%", "lower", "A=B", "A\nB", ""])
def test_a_variable_has_the_name_of_one(name):
    with pytest.raises(PayloadMismatch):
        check_payload(Registry([shell()]), "shell.command", json.dumps({"command": "env", "env": {name: "x"}}))


@pytest.mark.parametrize("name", ["PATH", "HOME", "TIMEBALL_JOB_ID", "a", "A B", "LC_*"])
def test_a_list_of_variables_that_cannot_be_is_refused_at_the_start(tmp_path, name):
    settings = HandlerSettings(shell_enabled=True, shell_programs=("/bin/sh",), shell_env=("COLOUR", name))

    with pytest.raises(SettingsError, match=f"TIMEBALL_SHELL_ENV has {re.escape(repr(name))}"):
        BuiltinHandlers(settings, SystemClock(), tmp_path)


@pytest.mark.skipif(not IS_ROOT, reason="only root's commands run as another account")
@pytest.mark.parametrize("user", [None, "daemon"])
def test_commands_do_not_run_as_the_account_of_the_database(tmp_path, user):
    settings = HandlerSettings(shell_enabled=True, shell_programs=("/bin/sh",), shell_user=user)
    name = user or "nobody"

    with pytest.raises(
        SettingsError, match=f"commands would run as {name}, the account that runs the database's server"
    ):
        BuiltinHandlers(settings, SystemClock(), tmp_path, database_uid=pwd.getpwnam(name).pw_uid)

    BuiltinHandlers(settings, SystemClock(), tmp_path, database_uid=pwd.getpwnam("bin").pw_uid)


def test_the_account_of_the_database_is_that_of_its_socket(tmp_path, monkeypatch):
    (tmp_path / ".s.PGSQL.5433").touch()
    if IS_ROOT:
        os.chown(tmp_path / ".s.PGSQL.5433", 1234, 1234)
    uid = 1234 if IS_ROOT else os.geteuid()
    quoted = str(tmp_path).replace("/", "%2F")
    monkeypatch.setenv("PGHOST", str(tmp_path))

    assert server_uid(f"postgresql://u@/d?host={quoted}&port=5433") == uid
    assert server_uid(f"postgresql://u:p@{quoted}:5433/d") == uid
    assert server_uid("postgresql:///d?port=5433") == uid
    assert server_uid(f"postgresql://u@/d?host={quoted}") is None
    assert server_uid("postgresql://u@a:5432,b:5433/d") is None


@pytest.mark.parametrize("field", ["uid", "gid", "user", "group", "shell", "executable", "limits"])
def test_a_payload_cannot_choose_a_user_or_limits(field):
    with pytest.raises(PayloadMismatch):
        check_payload(Registry([shell()]), "shell.command", json.dumps({"command": "env", field: 0}))


@pytest.mark.skipif(not IS_ROOT, reason="only root can become another user")
async def test_a_worker_run_by_root_runs_commands_as_nobody_without_a_way_back(sh):
    result = await succeed(sh, script("id -u; id -G; grep -E 'NoNewPrivs|CapEff' /proc/self/status"))

    nobody = pwd.getpwnam("nobody")
    assert result["stdout"].split() == [
        *(str(nobody.pw_uid), str(nobody.pw_gid)),
        *("CapEff:", "0000000000000000", "NoNewPrivs:", "1"),
    ]


@pytest.mark.skipif(IS_ROOT, reason="root can become any user")
def test_a_user_that_cannot_be_become_is_refused():
    from timeball.errors import SettingsError

    with pytest.raises(SettingsError, match="TIMEBALL_SHELL_USER"):
        shell("/bin/sh", user="root")


async def test_a_command_has_an_empty_folder_of_its_own_which_is_removed(sh):
    first = await succeed(sh, script("ls -A; touch left; pwd"))
    second = await succeed(sh, script("ls -A; pwd"))

    assert len(first["stdout"].split()) == len(second["stdout"].split()) == 1
    assert first["stdout"] != second["stdout"]
    assert not Path(first["stdout"]).exists()


async def test_a_link_left_in_the_folder_is_not_followed_when_it_is_removed(sh, notes):
    (notes / "precious").write_text("x")

    await succeed(sh, script(f"ln -s {notes} out; mkdir deep; ln -s {notes}/precious deep/link"))

    assert (notes / "precious").exists()


async def test_the_folder_of_a_command_is_below_the_files_folder(notes):
    (notes / "work").mkdir(mode=0o755)
    (notes / "out").symlink_to("/etc")
    handler = shell("/bin/pwd", root=notes)

    assert (await succeed(handler, {"command": "pwd", "cwd": "work"}))["stdout"] == str(notes / "work")
    assert "links are not followed" in await die(handler, {"command": "pwd", "cwd": "out"})
    for outside in ("..", "/etc", "work/../../etc", "~", "a\\b"):
        with pytest.raises(PayloadMismatch):
            check_payload(Registry([handler]), "shell.command", json.dumps({"command": "pwd", "cwd": outside}))


async def test_a_command_cannot_read_what_the_worker_has_open(sh, tmp_path):
    secret = tmp_path / "open"
    secret.write_text("canary")
    with secret.open() as file:
        os.set_inheritable(file.fileno(), True)

        result = await succeed(sh, script("ls /proc/self/fd | tr '\\n' ' '; cat"))

    # 3 is the folder that ls itself reads; standard input is at its end.
    assert result["stdout"].split() == ["0", "1", "2", "3"]


# limits


async def test_a_command_has_the_limits_that_the_administrator_has_set():
    handler = shell("/bin/cat", cpu_seconds=7, memory_bytes=2**27, file_bytes=2**20, processes=99)

    result = await succeed(handler, {"command": "cat", "args": ["/proc/self/limits"]})

    limits = dict(re.findall(r"(?m)^Max (.+?) {2,}(\S+)", result["stdout"]))
    wanted = {"cpu time": 7, "address space": 2**27, "file size": 2**20, "open files": 256, "core file size": 0}
    if IS_ROOT:
        wanted["processes"] = 99
    assert {name: limits[name] for name in wanted} == {name: str(limit) for name, limit in wanted.items()}


async def test_a_command_that_uses_up_its_cpu_time_is_ended():
    outcome = await fail(shell("/bin/sh", cpu_seconds=1), script("while :; do :; done"))

    assert "SIGXCPU (it used up its CPU time)" in outcome.error.message


async def test_a_command_that_takes_too_much_memory_fails():
    handler = shell("/usr/bin/head", memory_bytes=64 * 1024**2)

    outcome = await fail(handler, {"command": "head", "args": ["-c", "-300M", "/dev/zero"]})

    assert "memory exhausted" in outcome.error.message or "ended by" in outcome.error.message


async def test_a_command_cannot_write_a_file_larger_than_allowed():
    handler = shell("/bin/dd", file_bytes=1024**2)

    outcome = await fail(handler, {"command": "dd", "args": ["if=/dev/zero", "of=big", "bs=1M", "count=10"]})

    assert "SIGXFSZ" in outcome.error.message or "File too large" in outcome.error.message


async def test_a_command_that_says_too_much_is_ended():
    handler = shell("/usr/bin/yes", output_bytes=1024**2)
    attempt = attempt_at(handler, {"command": "yes"})

    assert "wrote more than is allowed" in await die(handler, None, attempt)


async def test_an_endless_line_is_cut_and_takes_no_memory():
    handler = shell("/usr/bin/head")
    attempt = attempt_at(handler, {"command": "head", "args": ["-c", "5M", "/dev/zero"]})

    await succeed(handler, None, attempt)

    ((_, line),) = attempt.sink.lines
    assert len(line) < 200_000
    assert line.endswith("(the rest of the line is left out)")


@pytest.mark.skipif(not IS_ROOT, reason="only then commands have a user of their own")
async def test_a_fork_bomb_ends_with_its_command(notes):
    # A user of its own: the limit counts the processes of a user, those of the other tests too.
    handler = shell("/bin/sh", cpu_seconds=20, user="daemon")
    text = f"echo $$ > {notes}/pid; bomb() {{ bomb & bomb; }}; bomb 2> /dev/null"
    attempt = attempt_at(handler, script(text))
    running = asyncio.ensure_future(run(handler, None, attempt))
    await pids_in(notes, "pid")

    attempt.halt(StopReason.TIMEOUT)

    assert isinstance(await running, TimeoutOutcome)
    daemon = pwd.getpwnam("daemon").pw_uid
    await until(lambda: not processes_of(daemon), "no process of the bomb is left")


def processes_of(uid: int) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            if os.stat(f"/proc/{pid}").st_uid == uid and is_alive(pid) and b"bomb" in _command_of(pid):
                found.append(pid)
        except FileNotFoundError:
            continue
    return found


def _command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


# ending


FAMILY = """
trap '' TERM
echo $$ > {notes}/self
sleep 1000 & echo $! > {notes}/child
setsid sh -c "trap '' TERM; (trap '' TERM; echo \\$\\$ > {notes}/session; exec sleep 1000) & exec sleep 1000" &
sh -c "(setsid sleep 1000 & echo \\$! > {notes}/orphan)"
wait
while :; do sleep 1; done
"""


@pytest.mark.parametrize(
    ("halt", "kind"),
    [(StopReason.TIMEOUT, TimeoutOutcome), (StopReason.CANCEL, CancelOutcome), (StopReason.SHUTDOWN, Released)],
)
async def test_a_command_is_killed_whole_though_it_ignores_term_and_forks_away(sh, notes, halt, kind, monkeypatch):
    # No process here ends on TERM: a short wait is enough.
    """Fault 11."""
    monkeypatch.setattr(shell_module, "_GRACE_SECONDS", 0.3)
    attempt = attempt_at(sh, script(FAMILY.format(notes=notes)))
    running = asyncio.ensure_future(run(sh, None, attempt))
    family = await pids_in(notes, "self", "child", "session", "orphan")
    assert all(map(is_alive, family))

    attempt.halt(halt)

    assert isinstance(await running, kind)
    assert not any(map(is_alive, family))


async def test_a_command_is_asked_by_term_before_it_is_killed(sh, notes):
    text = f"trap 'echo goodbye > {notes}/said; exit 0' TERM; echo $$ > {notes}/pid; while :; do sleep 0.05; done"
    attempt = attempt_at(sh, script(text))
    running = asyncio.ensure_future(run(sh, None, attempt))
    await pids_in(notes, "pid")

    attempt.halt(StopReason.CANCEL)
    await running

    assert (notes / "said").read_text() == "goodbye\n"


async def test_what_a_command_leaves_behind_ends_with_it(sh, notes):
    await succeed(sh, script(f"sh -c '(setsid sleep 1000 & echo $! > {notes}/pid)' > /dev/null 2>&1"))

    (left,) = await pids_in(notes, "pid")
    assert not is_alive(left)


async def test_a_command_ends_when_its_worker_is_killed(notes, tmp_path):
    import subprocess
    import sys

    program = tmp_path / "worker.py"
    program.write_text(
        "import asyncio, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from tests.handlers.builtin.test_shell import FAMILY, script, shell\n"
        "from tests.handlers.builtin.support import run\n"
        "from pathlib import Path\n"
        "asyncio.run(run(shell('/bin/sh'), script(FAMILY.format(notes=sys.argv[2]))))\n"
    )
    root = str(Path(__file__).parents[3])
    worker = subprocess.Popen([sys.executable, str(program), root, str(notes)])
    try:
        family = await pids_in(notes, "self", "child", "session", "orphan")
    finally:
        worker.kill()
        worker.wait()

    await gone(*family)


async def test_a_command_ends_when_its_supervisor_is_killed(sh, notes):
    running = asyncio.ensure_future(fail(sh, script(f"echo $$ > {notes}/pid; exec sleep 1000")))
    (command,) = await pids_in(notes, "pid")
    status = Path(f"/proc/{command}/status").read_text()

    os.kill(int(re.search(r"PPid:\s+(\d+)", status)[1]), signal.SIGKILL)

    assert "ended in an unknown way" in (await running).error.message
    await gone(command)


# secrets


async def test_secrets_reach_the_command_and_not_its_log(notes):
    handler = shell("/bin/sh", variables=("TOKEN",), secrets={"CANARY": "S3cret-canary"})
    payload = script('echo "got $TOKEN"; echo "$1" >&2; exit 1', env={"TOKEN": {"$secret": "CANARY"}})
    payload["args"] += ["sh", {"$secret": "CANARY"}]
    attempt = attempt_at(handler, payload)

    outcome = await run(handler, None, attempt)

    assert sorted(attempt.sink.lines) == [("info", "got [secret]"), ("warning", "[secret]")]
    assert "canary" not in repr(outcome)


async def test_a_secret_across_a_cut_line_is_not_kept_in_part():
    handler = shell("/bin/sh", variables=("TOKEN",), secrets={"CANARY": "S3cret-canary"})
    text = "n=0; while [ $n -lt 30000 ]; do printf '%s' \"$TOKEN\"; n=$((n+1)); done"
    attempt = attempt_at(handler, script(text, env={"TOKEN": {"$secret": "CANARY"}}))

    result = await succeed(handler, None, attempt)

    assert "S" not in "".join(line for _, line in attempt.sink.lines) + result["stdout"]


async def test_files_of_a_command_are_not_world_readable(notes):
    (notes / "work").mkdir()
    (notes / "work").chmod(0o777)
    await succeed(shell("/bin/sh", root=notes), script("umask; touch made", cwd="work"))

    assert stat.S_IMODE((notes / "work" / "made").stat().st_mode) & 0o007 == 0
