"""The program, settings and database that a command works with."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from timeball.config.settings import Settings, load_settings
from timeball.errors import EmbeddedServerError
from timeball.sdk.app import Timeball
from timeball.sdk.app_loader import load_app

# The program that a command is told of, and its settings: it may name its own database.


def load_program(reference: str | None) -> Timeball | None:
    """The program behind `app:tb`, if one is named."""
    return None if reference is None else load_app(reference)


def settings_of(program: Timeball | None) -> Settings:
    """The settings of a program, or else those of the environment."""
    return load_settings() if program is None else program.settings


# Which database a command talks to when none was named.
#
# `timeball up` keeps the embedded PostgreSQL in the folder it is started in, and leaves a note for the other commands of the same
# account. A
# command without TIMEBALL_URL or TIMEBALL_DATABASE_URL takes the database of its own folder, or else the one of that note, and says so. It
# never makes a database where none was asked for: what it wrote there, no worker would ever see.


def record_data_dir(settings: Settings) -> None:
    """Tell the other commands of this account where the database is, if it is an embedded one."""
    if settings.database_url is not None:
        return
    import json

    note = _state_file()
    # An account without a home, or with one that cannot be written, has to name its database.
    with suppress(OSError, RuntimeError):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = note.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"data_dir": str(settings.data_dir.resolve())}))
        fresh.replace(note)


def resolve_database(settings: Settings) -> Settings:
    """The settings with the database that is there; EmbeddedServerError if there is none and none was named."""
    if settings.database_url is not None or _has_database(settings.data_dir):
        return settings
    if "data_dir" in settings.model_fields_set:
        _say(f"making a new database in {settings.data_dir.resolve()}")
        return settings
    elsewhere = _recorded_data_dir()
    if elsewhere is None:
        raise EmbeddedServerError(
            f"no database is here: {settings.data_dir.resolve()} does not exist, and no other was named",
            hint="start one with: timeball up; or name one: TIMEBALL_URL, TIMEBALL_DATABASE_URL or TIMEBALL_DATA_DIR",
        )
    _say(f"using the database in {elsewhere}, where timeball up was started last; TIMEBALL_DATA_DIR names another")
    return settings.model_copy(update={"data_dir": elsewhere})


def _state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "timeball" / "current.json"


def _recorded_data_dir() -> Path | None:
    import json

    try:
        found = Path(json.loads(_state_file().read_text())["data_dir"])
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return None
    return found if _has_database(found) else None


def _has_database(data_dir: Path) -> bool:
    try:
        return (data_dir / "server.json").is_file()
    except OSError:
        return False


def _say(words: str) -> None:
    from timeball.cli.formatting import printable

    sys.stderr.write(f"timeball: {printable(words)}\n")
    sys.stderr.flush()
