"""The embedded PostgreSQL: shared by the processes of a machine, and available again after any process was killed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from tests.support.pace import patience
from tests.support.servers import ServiceMissing, give_up_on, quickest_place, wait_until
from timeball.errors import EmbeddedServerError
from timeball.store.embedded import cluster, server
from timeball.store.embedded.cluster import Binaries, find_binaries, installed
from timeball.store.embedded.data_directory import Account, DataDirectory
from timeball.store.embedded.server import EmbeddedServer

is_root = os.geteuid() == 0
only_as_root = pytest.mark.skipif(not is_root, reason="only root has to run the server under another account")
only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Stays a member until its standard input ends. Ctrl-C reaches it like any Python program.
MEMBER = """
import subprocess, sys
from pathlib import Path
from timeball.store.embedded.server import EmbeddedServer
with EmbeddedServer(Path(sys.argv[1]), shelter=Path(sys.argv[2])) as server:
    print(server.dsn, flush=True)
    sys.stdin.read()
"""

# Starts a program that outlives it.
PARENT = MEMBER.replace(
    "sys.stdin.read()",
    """
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    print(subprocess.Popen(["sleep", "60"], close_fds=False, **quiet).pid, flush=True)
    sys.stdin.read()
    """.strip(),
)


class Member:
    """Another process that shares the server."""

    def __init__(self, script: str, data_dir: Path, shelter: Path, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, data_dir, shelter],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def dsn(self) -> str:
        """Wait until it is a member."""
        return self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, self.process.communicate()[1]
        return line

    def leave(self) -> None:
        _, said = self.process.communicate(timeout=patience(45))
        assert self.process.returncode == 0, said

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.communicate(timeout=patience(45))


class Place:
    """A temporary folder and the processes of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.shelter = folder / "shelter"
        self.members: list[Member] = []

    def server(self, data_dir: Path | None = None, **options: Any) -> EmbeddedServer:
        return EmbeddedServer(data_dir or self.data_dir, shelter=self.shelter, **options)

    def member(self, data_dir: Path | None = None, *, script: str = MEMBER, **environment: str) -> Member:
        self.members.append(Member(script, data_dir or self.data_dir, self.shelter, **environment))
        return self.members[-1]

    def clusters(self) -> list[Path]:
        return [found.parent for found in self.folder.rglob("PG_VERSION") if found.parent.name.startswith("postgres")]

    def server_processes(self) -> list[int]:
        """All processes in a cluster below this folder: the server and its children."""
        return [pid for cluster in self.clusters() for pid in processes_in(cluster)]

    def kill_server(self) -> None:
        for pid in self.server_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.server_processes(), "the server is dead")

    def stop_server(self) -> None:
        """Stop the server without its members, but properly, so that it leaves no shared memory."""
        for folder in self.clusters():
            if processes_in(folder):
                os.kill(postmaster_pid(folder), signal.SIGINT)
        wait_until(lambda: not self.server_processes(), "the server is gone")


def processes_in(cluster: Path) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == cluster:
                found.append(int(process.name))
    return sorted(found)


def postmaster_pid(cluster: Path) -> int:
    return int((cluster / "postmaster.pid").read_text().splitlines()[0])


@pytest.fixture
def place() -> Iterator[Place]:
    if not installed():
        give_up_on(ServiceMissing('the embedded PostgreSQL is not installed: pip install "timeball[local]"'))
    # Not tmp_path: as root that is closed to other accounts, which is a test of its own below.
    made = Place(Path(tempfile.mkdtemp(prefix="timeball-", dir=quickest_place())))
    made.folder.chmod(0o755)
    try:
        yield made
    finally:
        for member in made.members:
            member.kill()
        made.stop_server()
        shutil.rmtree(made.folder)


def ask(dsn: str, statement: str) -> Any:
    """Run one statement; its first value, if it has one."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def postmaster(dsn: str) -> str:
    return str(ask(dsn, "SELECT pg_postmaster_start_time()"))


async def test_the_address_suits_asyncpg_and_psycopg_and_the_settings_are_safe(place: Place) -> None:
    with place.server() as embedded:
        connection = await asyncpg.connect(embedded.dsn)
        version = await connection.fetchval("SHOW server_version")
        await connection.close()
        shown = {
            name: ask(embedded.dsn, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "listen_addresses")
        }
        found = ask(embedded.dsn, "SELECT current_database() || current_user || lower('Ä')")

        assert version == embedded.version
        assert shown == {"fsync": "on", "synchronous_commit": "on", "listen_addresses": ""}
        assert found == "timeballtimeballä"


def test_starting_and_leaving_twice_changes_nothing(place: Place) -> None:
    embedded = place.server()

    first, second = embedded.start(), embedded.start()
    embedded.leave()
    embedded.leave()

    assert first == second
    assert place.server_processes() == []


def test_the_server_is_shared_and_goes_with_the_last_member(place: Place) -> None:
    first, second = place.member(), place.server()
    began = postmaster(first.dsn())
    second.start()

    first.leave()
    after_first_left = postmaster(second.dsn)
    second.leave()

    assert after_first_left == began
    assert place.server_processes() == []


def test_ten_processes_starting_at_once_share_one_server(place: Place) -> None:
    members = [place.member() for _ in range(10)]

    addresses = {member.dsn() for member in members}

    assert len(addresses) == 1
    assert (place.data_dir / "server.log").read_text().count("ready to accept connections") == 1


@only_on_linux
def test_all_is_there_again_after_everything_was_killed(place: Place) -> None:
    members = [place.member(), place.member()]
    for member in members:
        dsn = member.dsn()
    ask(dsn, "CREATE TABLE kept AS SELECT 42 AS number")

    for member in members:
        member.kill()
    place.kill_server()

    assert (place.data_dir / "postgres" / "postmaster.pid").exists()
    with place.server() as embedded:
        assert ask(embedded.dsn, "SELECT number FROM kept") == 42
    assert place.server_processes() == []


@only_on_linux
def test_a_leftover_pid_that_now_belongs_to_another_process_does_not_matter(place: Place) -> None:
    place.server().start()
    place.kill_server()
    account = Account.of_uid((place.data_dir / "postgres").stat().st_uid)
    bystander = subprocess.Popen(["sleep", "60"], **account.identity())
    for leftover in (place.data_dir / "postgres" / "postmaster.pid", place.data_dir / "run" / ".s.PGSQL.5432.lock"):
        lines = leftover.read_text().splitlines()
        leftover.write_text("\n".join([str(bystander.pid), *lines[1:], ""]))

    try:
        with place.server() as embedded:
            assert ask(embedded.dsn, "SELECT 1") == 1
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_that_outlived_its_members_is_attached_to(place: Place) -> None:
    killed = place.member()
    began = postmaster(killed.dsn())
    killed.kill()

    with place.server() as embedded:
        assert postmaster(embedded.dsn) == began
    assert place.server_processes() == []


@only_on_linux
def test_a_member_starts_a_server_that_died_under_it(place: Place) -> None:
    with place.server() as embedded:
        other = place.member()
        other.dsn()
        ask(embedded.dsn, "CREATE TABLE kept AS SELECT 42 AS number")
        place.kill_server()

        dsn = embedded.ensure_running()

        assert ask(dsn, "SELECT number FROM kept") == 42
        other.leave()
        assert ask(dsn, "SELECT 1") == 1


@only_on_linux
def test_a_killed_postmaster_needs_a_new_server(place: Place) -> None:
    with place.server() as embedded:
        began = postmaster(embedded.dsn)
        os.kill(postmaster_pid(place.data_dir / "postgres"), signal.SIGKILL)

        assert postmaster(embedded.ensure_running()) != began


@only_on_linux
def test_a_first_start_that_was_killed_is_repeated(place: Place) -> None:
    half_way = place.member()
    wait_until((place.data_dir / "postgres.new" / "PG_VERSION").exists, "the first start is under way")
    half_way.kill()

    with place.server() as embedded:
        assert ask(embedded.dsn, "SELECT 1") == 1
    assert not (place.data_dir / "postgres.new").exists()


def test_ctrl_c_on_one_member_leaves_the_server_to_the_others(place: Place) -> None:
    starter, other = place.member(), place.server()
    began = postmaster(starter.dsn())
    other.start()

    starter.interrupt()

    assert postmaster(other.dsn) == began
    other.leave()
    assert place.server_processes() == []


def test_ctrl_c_while_starting_leaves_no_server_behind(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(home: DataDirectory) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "accepts_connections", interrupted)

    with pytest.raises(KeyboardInterrupt):
        place.server().start()

    assert place.clusters()
    assert place.server_processes() == []


@only_on_linux
def test_the_server_opens_no_tcp_port(place: Place) -> None:
    with place.server():
        handles = Path(f"/proc/{postmaster_pid(place.data_dir / 'postgres')}/fd").iterdir()
        targets = []
        for handle in handles:
            with contextlib.suppress(FileNotFoundError):  # of a file that was open for a moment only
                targets.append(os.readlink(handle))
        sockets = {target[len("socket:[") : -1] for target in targets if target.startswith("socket:")}
        network = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()

        assert sockets
        assert not sockets & {line.split()[9] for line in network.splitlines() if "local_address" not in line}


@pytest.mark.parametrize(
    "name",
    ["with a space", "x" * 120, "comma, quote' and ümlaut"],
    ids=["space", "long", "odd"],
)
def test_any_folder_can_be_a_data_directory(place: Place, name: str) -> None:
    data_dir = place.folder / name / ".timeball"

    with place.server(data_dir) as embedded:
        first = embedded.dsn
        assert ask(first, "SELECT 1") == 1
        sockets = Path(str(ask(first, "SHOW unix_socket_directories")))
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700

    assert not sockets.exists()
    with place.server(data_dir) as embedded:
        assert ask(embedded.dsn, "SELECT 1") == 1


def test_a_deleted_socket_is_created_again(place: Place) -> None:
    data_dir = place.folder / "with a space"
    with place.server(data_dir) as embedded:
        shutil.rmtree(str(ask(embedded.dsn, "SHOW unix_socket_directories")))

        assert ask(embedded.ensure_running(), "SELECT 1") == 1


def test_a_moved_data_directory_takes_its_data_along(place: Place) -> None:
    with place.server() as embedded:
        ask(embedded.dsn, "CREATE TABLE kept AS SELECT 42 AS number")
    moved = place.data_dir.rename(place.folder / "moved")

    with place.server(moved) as embedded:
        assert ask(embedded.dsn, "SELECT number FROM kept") == 42


def test_leaving_a_deleted_data_directory_is_no_error(place: Place) -> None:
    embedded = place.server()
    embedded.start()
    place.stop_server()
    shutil.rmtree(place.data_dir)

    with place.server() as fresh:
        embedded.leave()

        assert ask(fresh.dsn, "SELECT 1") == 1


def test_child_programs_of_a_member_are_no_members(place: Place) -> None:
    parent = place.member(script=PARENT)
    parent.dsn()
    child = int(parent.line())
    parent.kill()

    try:
        with place.server():
            pass
        assert place.server_processes() == []
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_does_not_leave_for_its_parent(place: Place) -> None:
    with place.server() as embedded:
        began = postmaster(embedded.dsn)
        child = os.fork()
        if child == 0:
            embedded.leave()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

        other = place.member()
        other.dsn()
        other.leave()

        assert postmaster(embedded.dsn) == began


def test_a_missing_wheel_is_explained(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)

    with pytest.raises(EmbeddedServerError, match="not installed") as caught:
        place.server().start()

    assert not installed()
    assert caught.value.hint is not None
    assert 'pip install "timeball[local]"' in caught.value.hint
    assert "TIMEBALL_DATABASE_URL" in caught.value.hint


def test_data_of_another_version_needs_programs_of_that_version(place: Place) -> None:
    (place.data_dir / "postgres").mkdir(parents=True)
    (place.data_dir / "postgres" / "PG_VERSION").write_text("14\n")

    with pytest.raises(EmbeddedServerError, match=r"made by PostgreSQL 14; the installed wheel has .*18"):
        place.server().start()


def test_a_server_that_cannot_start_says_why(place: Place) -> None:
    place.server().start()
    place.stop_server()
    with (place.data_dir / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write("shared_buffers = 'a lot'\n")

    with pytest.raises(EmbeddedServerError, match=r"could not be started(.|\n)*a lot"):
        place.server().start()


def test_a_server_that_takes_too_long_is_reported_with_its_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.server().start()
    place.stop_server()
    slow = slow_programs(place.folder / "slow")
    monkeypatch.setattr(server, "find_binaries", lambda cluster: slow)

    with pytest.raises(EmbeddedServerError, match=r"not ready within 0.3 s(.|\n)*still thinking"):
        place.server(patience=timedelta(seconds=0.3)).start()

    os.kill(int((place.data_dir / "run" / "pid").read_text()), signal.SIGKILL)


def slow_programs(folder: Path) -> Binaries:
    (folder / "bin").mkdir(parents=True)
    script = '#!/bin/sh\n[ "$1" = --version ] && exit\necho still thinking\necho $$ > "$4/pid"\nexec sleep 60\n'
    for name in ("postgres", "initdb"):
        (folder / "bin" / name).write_text(script)
        (folder / "bin" / name).chmod(0o755)
    return Binaries(major=18, folder=folder)


def test_a_data_directory_without_write_access_is_explained(place: Place) -> None:
    place.data_dir.write_text("a file, not a directory")

    with pytest.raises(EmbeddedServerError, match="cannot use the data directory") as caught:
        place.server().start()

    assert "TIMEBALL_DATA_DIR" in str(caught.value.hint)


@only_as_root
def test_root_puts_data_and_programs_where_the_account_can_reach_them(place: Place) -> None:
    closed = place.folder / "home of root"
    closed.mkdir(mode=0o700)
    wheel = find_binaries(Path("/nonexistent")).folder.parent
    (closed / wheel.name).symlink_to(wheel)
    (closed / f"{wheel.name}.libs").symlink_to(wheel.with_name(f"{wheel.name}.libs"))
    project = closed / "project"
    project.mkdir()
    before = permissions(project)

    member = place.member(project / ".timeball", PYTHONPATH=os.pathsep.join([str(closed), *sys.path]))
    dsn = member.dsn()
    cluster = Path(str(ask(dsn, "SHOW data_directory")))
    program = Path(f"/proc/{postmaster_pid(cluster)}/exe").readlink()

    assert cluster.is_relative_to(place.shelter)
    assert program.is_relative_to(place.shelter)
    assert permissions(project) == before
    assert cluster.stat().st_uid != 0
    assert stat.S_IMODE(cluster.stat().st_mode) == 0o700
    assert cluster.parent.stat().st_uid == 0
    assert stat.S_IMODE(cluster.parent.stat().st_mode) == 0o711

    ask(dsn, "CREATE TABLE kept AS SELECT 42 AS number")
    member.leave()
    shutil.copytree(project, closed / "copy")
    with pytest.raises(EmbeddedServerError, match="is a copy of"):
        place.server(closed / "copy" / ".timeball").start()
    project.rename(closed / "moved")
    with place.server(closed / "moved" / ".timeball") as embedded:
        assert ask(embedded.dsn, "SELECT number FROM kept") == 42


def permissions(folder: Path) -> list[tuple[Path, int, int]]:
    return [(path, path.stat().st_mode, path.stat().st_uid) for path in (folder, *folder.parents)]


@only_as_root
def test_root_does_nothing_where_a_forged_record_points(place: Place) -> None:
    place.data_dir.mkdir()
    victim = place.folder / "victim"
    victim.mkdir()
    (place.data_dir / "server.json").write_text(f'{{"origin": "{place.data_dir}", "elsewhere": "{victim}"}}')

    with pytest.raises(EmbeddedServerError, match="no such folder of Timeball's"):
        place.server().start()

    assert list(victim.iterdir()) == []


def without_accounts(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """A machine without such accounts, like minimal images."""
    known = pwd.getpwnam

    def look_up(name: str) -> pwd.struct_passwd:
        if name in names:
            raise KeyError(name)
        return known(name)

    monkeypatch.setattr(pwd, "getpwnam", look_up)


@only_as_root
def test_root_never_runs_the_server_as_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands and other daemons run as the account nobody, and the server accepts its own account as a superuser."""
    without_accounts(monkeypatch, "timeball", "postgres")

    with pytest.raises(EmbeddedServerError, match="there is no account timeball or postgres to run it") as caught:
        place.server().start()

    assert "useradd --system timeball" in str(caught.value.hint)
    assert not (place.data_dir / "postgres").exists()


@only_as_root
@pytest.mark.parametrize("owned", ["postgres", "."])
def test_root_does_not_take_over_what_belongs_to_nobody(place: Place, owned: str) -> None:
    folder = place.data_dir / owned
    folder.mkdir(parents=True)
    os.chown(folder, pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)

    with pytest.raises(EmbeddedServerError, match="belongs to nobody") as caught:
        place.server().start()

    assert f"useradd --system timeball && chown -R timeball {folder.resolve()}" in str(caught.value.hint)


@only_as_root
def test_another_account_is_kept_out_twice(place: Place) -> None:
    with place.server() as embedded:
        run = place.data_dir / "run"

        outside_folder = as_stranger(lambda: psycopg.connect(embedded.dsn))
        run.chmod(0o755)
        (run / ".s.PGSQL.5432").chmod(0o777)
        inside_folder = as_stranger(lambda: psycopg.connect(embedded.dsn))

        assert "Permission denied" in outside_folder
        assert "Peer authentication failed" in inside_folder


def as_stranger(attempt: Callable[[], object]) -> str:
    """Try it in a child process of an unrelated account; returns the error."""
    stranger = pwd.getpwnam("daemon")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(stranger.pw_gid)
        os.setuid(stranger.pw_uid)
        try:
            attempt()
        except Exception as error:
            os.write(writer, str(error).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as file:
        return file.read()


def test_an_ordinary_user_needs_nothing_special(place: Place) -> None:
    """As root, a child process that has become an ordinary user does it."""
    wheel = find_binaries(Path("/nonexistent")).folder
    packages = place.folder / "packages"
    cluster._copy_installation(wheel, packages)
    home = place.folder / "home of someone"
    home.mkdir(mode=0o700)
    uid = pwd.getpwnam("daemon").pw_uid if is_root else os.geteuid()
    if is_root:
        os.chown(home, uid, uid)

    # That user may not be able to read the interpreter, so everything is imported before.
    script = """
import os, sys, psycopg
from pathlib import Path
from timeball.store.embedded.server import EmbeddedServer
packages, home, uid = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if os.geteuid() != uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
sys.path[:] = [packages]
with EmbeddedServer(home / ".timeball") as server:
    with psycopg.connect(server.dsn) as connection:
        print(connection.execute("SHOW data_directory").fetchone()[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, packages, home, str(uid)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )

    assert done.stdout.strip() == str(home / ".timeball" / "postgres"), done.stderr
    owners = {path.stat().st_uid for path in (home / ".timeball").iterdir()}
    assert owners == {uid}
    assert place.server_processes() == []
    if is_root:
        # Root runs the server later as the owner of the data.
        with place.server(home / ".timeball") as embedded:
            assert ask(embedded.dsn, "SELECT 1") == 1
        assert {path.stat().st_uid for path in (home / ".timeball").iterdir()} == {uid}
