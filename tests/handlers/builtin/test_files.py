from __future__ import annotations

import asyncio
import json
import os
import stat
from base64 import b64encode
from pathlib import Path

import pytest

from tests.handlers.builtin.support import check_payload, die, fail, succeed
from tests.support.pace import patience
from timeball.config.settings import HandlerSettings
from timeball.domain.handler import Handler, PayloadMismatch
from timeball.env import SystemClock
from timeball.handlers.binding import typed_handler
from timeball.handlers.builtin import files
from timeball.handlers.builtin.files import FilePayload, FileWrite, FolderCreate, FolderPayload
from timeball.handlers.builtin.path_sandbox import PathSandbox
from timeball.handlers.catalogue import BuiltinHandlers
from timeball.handlers.registry import Registry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "files"


@pytest.fixture
def write(root: Path) -> Handler:
    return typed_handler("file.write", FileWrite(PathSandbox(root)), FilePayload)


@pytest.fixture
def folder(root: Path) -> Handler:
    return typed_handler("folder.create", FolderCreate(PathSandbox(root)), FolderPayload)


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


# what they do


async def test_a_folder_is_made_with_those_above_it_and_may_be_there_already(folder, root):
    assert await succeed(folder, {"path": "a/b/c"}) == {"path": "a/b/c"}
    assert await succeed(folder, {"path": "./a//b/c/"}) == {"path": "a/b/c"}

    assert (root / "a/b/c").is_dir()
    assert stat.S_IMODE((root / "a").stat().st_mode) & 0o007 == 0


async def test_a_file_is_created_with_its_folders(write, root):
    result = await succeed(write, {"path": "reports/may.txt", "content": "grün\n"})

    assert (root / "reports/may.txt").read_text() == "grün\n"
    assert (result["path"], result["bytes"], result["size"]) == ("reports/may.txt", 6, 6)
    assert names(root / "reports") == ["may.txt"]


async def test_any_bytes_can_be_written(write, root):
    await succeed(write, {"path": "x.bin", "content": b64encode(bytes(range(256))).decode(), "encoding": "base64"})

    assert (root / "x.bin").read_bytes() == bytes(range(256))


async def test_create_does_not_overwrite_but_may_be_repeated(write, root):
    await succeed(write, {"path": "a", "content": "one"})
    await succeed(write, {"path": "a", "content": "one"})

    assert "is not to be overwritten" in await die(write, {"path": "a", "content": "two"})
    assert (root / "a").read_text() == "one"
    assert names(root) == ["a"]


async def test_overwrite_replaces_the_file_in_one_step(write, root):
    await succeed(write, {"path": "a", "content": "one"})
    before = (root / "a").open()

    await succeed(write, {"path": "a", "content": "two", "mode": "overwrite"})

    assert before.read() == "one"
    assert (root / "a").read_text() == "two"
    before.close()


async def test_append_adds_at_the_end(write, root):
    await succeed(write, {"path": "log", "content": "one\n", "mode": "append"})
    result = await succeed(write, {"path": "log", "content": "two\n", "mode": "append"})

    assert (root / "log").read_text() == "one\ntwo\n"
    assert result["size"] == 8


async def test_a_reader_never_sees_half_a_file(write, root):
    texts = {letter * 200_000 for letter in "abcdef"}
    await succeed(write, {"path": "a", "content": "a" * 200_000})
    seen: set[str] = set()

    async def look() -> None:
        while True:
            seen.add((root / "a").read_text())
            await asyncio.sleep(0)

    looking = asyncio.ensure_future(look())
    for text in texts:
        await succeed(write, {"path": "a", "content": text, "mode": "overwrite"})
    looking.cancel()

    assert seen <= texts


async def test_half_a_record_is_taken_back_and_a_neighbours_stays(write, root, monkeypatch):
    """The disk fills up in the middle of a record, while another writer appends to the same file."""
    await succeed(write, {"path": "log", "content": "one\n", "mode": "append"})
    neighbour: list[asyncio.Task] = []
    real, loop = os.write, asyncio.get_running_loop()

    def half(file: int, data: bytes) -> int:
        monkeypatch.setattr(os, "write", real)
        written = real(file, bytes(data)[:2])
        begin = asyncio.run_coroutine_threadsafe(begin_neighbour(), loop)
        begin.result(timeout=patience(30))
        return written

    async def begin_neighbour() -> None:
        neighbour.append(asyncio.create_task(succeed(write, {"path": "log", "content": "three\n", "mode": "append"})))
        # Long enough for it to write, were it not made to wait.
        await asyncio.sleep(0.1)

    monkeypatch.setattr(os, "write", half)
    outcome = await fail(write, {"path": "log", "content": "two\n", "mode": "append"})

    assert outcome.is_retryable
    assert (await neighbour[0])["size"] == 10
    assert (root / "log").read_text() == "one\nthree\n"


async def test_a_write_that_fails_leaves_nothing_behind(write, root, monkeypatch):
    real = os.fsync
    root.mkdir()

    def full(_file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    outcome = await fail(write, {"path": "a", "content": "x"})
    monkeypatch.setattr(os, "fsync", real)

    assert outcome.is_retryable
    assert names(root) == []


def test_the_root_is_files_in_the_data_directory_unless_chosen(tmp_path):
    def root_of(settings: HandlerSettings) -> Path:
        return BuiltinHandlers(settings, SystemClock(), tmp_path).known.get("file.write").function._root.path

    assert root_of(HandlerSettings()) == tmp_path / "files"
    assert root_of(HandlerSettings(files_root=Path("/srv/files"))) == Path("/srv/files")


# security defaults


@pytest.mark.parametrize(
    "path",
    [
        *("/etc/passwd", "../x", "a/../../x", "a/..", "..", ".", "", "/", "~/x", "~root/x", "a\\..\\..\\x", "C:\\x"),
        *("a\0b", "a\nb", "\x1b[31m", "a" * 256, "/".join("a" * 40), "file:///etc/passwd\0", "./../x", "a/./../../x"),
    ],
)
@pytest.mark.parametrize("handler", ["file.write", "folder.create"])
def test_a_path_cannot_lead_out_of_the_root(handler, path, write, folder):
    payload = {"path": path} | ({"content": "x"} if handler == "file.write" else {})

    with pytest.raises(PayloadMismatch):
        check_payload(Registry([write, folder]), handler, json.dumps(payload))


@pytest.mark.parametrize("name", ["．．", "‥", "․․", "%2e%2e", "..%00", "\u202e..", ".. "])
async def test_what_merely_looks_like_the_way_up_is_a_name_like_any_other(write, root, tmp_path, name):
    await succeed(write, {"path": f"{name}/evil", "content": "x"})

    assert (root / name / "evil").read_text() == "x"
    assert names(tmp_path) == ["files"]


@pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
async def test_a_file_is_not_written_through_a_link(write, root, tmp_path, mode):
    root.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to(tmp_path / "not-there")

    for name in ("link", "dangling"):
        await die(write, {"path": name, "content": "evil", "mode": mode})

    assert outside.read_text() == "precious"
    assert not (tmp_path / "not-there").exists()


async def test_a_folder_that_is_a_link_is_not_entered(write, folder, root, tmp_path):
    root.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "a").mkdir()
    (root / "a" / "link").symlink_to(outside)

    assert "links are not followed" in await die(write, {"path": "a/link/x", "content": "evil"})
    assert "links are not followed" in await die(folder, {"path": "a/link/x"})
    assert "links are not followed" in await die(folder, {"path": "a/link"})
    assert names(outside) == []


async def test_a_link_put_in_place_between_check_and_use_does_not_lead_out(write, root, tmp_path, monkeypatch):
    """The attacker swaps a folder for a link at the worst moment: after the folder was opened."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / "a").mkdir(parents=True)
    real = PathSandbox.folder

    def swapped(self, steps, *, creates):
        from contextlib import contextmanager

        @contextmanager
        def swapping():
            with real(self, steps, creates=creates) as here:
                (root / "a").rename(root / "moved")
                (root / "a").symlink_to(outside)
                yield here

        return swapping()

    monkeypatch.setattr(PathSandbox, "folder", swapped)

    await succeed(write, {"path": "a/x", "content": "evil"})

    assert names(outside) == []
    assert names(root / "moved") == ["x"]


async def test_a_link_put_in_place_after_the_look_is_not_appended_through(write, root, tmp_path, monkeypatch):
    root.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    (root / "link").symlink_to(outside)
    monkeypatch.setattr(files, "_check_place", lambda folder, name: None)

    await fail(write, {"path": "link", "content": "evil", "mode": "append"})

    assert outside.read_text() == "theirs"


async def test_a_hard_link_out_of_the_root_is_not_appended_to(write, root, tmp_path):
    root.mkdir()
    outside = tmp_path / "outside"
    outside.write_text("precious")
    (root / "link").hardlink_to(outside)

    await die(write, {"path": "link", "content": "evil", "mode": "append"})
    await succeed(write, {"path": "link", "content": "mine", "mode": "overwrite"})

    assert outside.read_text() == "precious"


@pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
async def test_what_is_written_is_never_executable(write, root, mode):
    await succeed(write, {"path": "run.sh", "content": "#!/bin/sh\n", "mode": mode})

    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o640


async def test_an_executable_is_neither_appended_to_nor_stays_one(write, root):
    root.mkdir()
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)

    assert "executable" in await die(write, {"path": "run.sh", "content": "evil\n", "mode": "append"})
    assert (root / "run.sh").read_text() == "#!/bin/sh\n"
    await succeed(write, {"path": "run.sh", "content": "#!/bin/sh\n", "mode": "overwrite"})

    assert stat.S_IMODE((root / "run.sh").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", ["create", "overwrite", "append"])
async def test_a_pipe_or_a_folder_in_place_of_the_file_is_refused_without_blocking(write, root, mode):
    root.mkdir()
    os.mkfifo(root / "pipe")
    (root / "folder").mkdir()

    for name in ("pipe", "folder"):
        await die(write, {"path": name, "content": "x", "mode": mode})


@pytest.mark.parametrize(
    "more", [{"mode": "execute"}, {"permissions": 0o755}, {"owner": "root"}, {"encoding": "rot13"}]
)
def test_a_payload_cannot_choose_rights(write, more):
    with pytest.raises(PayloadMismatch):
        check_payload(Registry([write]), "file.write", json.dumps({"path": "a", "content": "x"} | more))
