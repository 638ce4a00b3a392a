"""Runs tests at instants that make programs go wrong: midnight, the end of a year, 29 February, the hours in which clocks change.

    python -m tools.fake_time tests/api tests/cli            at every instant below
    python -m tools.fake_time --at 2026-11-19T01:45Z tests/dashboard/test_pages.py

A test may read the real clock as long as it passes at any hour. The wall clock of pytest and of all that it starts, PostgreSQL among it, is
moved by a small library that is compiled here and preloaded (`wall_clock.c`). Debian's `faketime` does not do: it moves the monotonic
clock too, and then locks of Python never time out; or it leaves that one alone, and then `time.sleep` fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")

# Each with the zone of the machine. Ten seconds before: the tests run across the moment itself.
INSTANTS = (
    ("2026-11-19T01:45:00Z", "Europe/Berlin", "02:45 at night, between schedules of the night"),
    ("2026-12-31T23:59:50Z", "UTC", "the end of a year"),
    ("2028-02-28T23:59:50Z", "UTC", "29 February begins"),
    ("2028-02-29T23:59:50Z", "UTC", "29 February ends"),
    ("2027-03-28T00:59:50Z", "Europe/Berlin", "clocks go forward in Berlin"),
    ("2027-10-31T00:30:00Z", "Europe/Berlin", "the first 02:30 of the night in which clocks go back in Berlin"),
    ("2027-10-31T01:30:00Z", "Europe/Berlin", "the second 02:30 of that night"),
    ("2027-03-14T06:59:50Z", "America/New_York", "clocks go forward in New York"),
    ("2027-11-07T05:59:50Z", "America/New_York", "clocks go back in New York"),
)


def moved_to(instant: datetime, zone: str, folder: Path) -> dict[str, str]:
    """The environment in which it is *instant* now, on a machine of that zone."""
    library = folder / f"{instant:%Y%m%dT%H%M%S}.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise SystemExit("wall_clock: found no C compiler (cc); on Debian: apt-get install gcc libc6-dev")
    # Compiled in: not every program hands its environment on, and the loader's part of it is handed on by most.
    offset = f"-DOFFSET={round((instant - datetime.now(UTC)).total_seconds())}"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", offset, "-o", library, SOURCE, "-ldl"], check=True)
    # Accounts that the tests start servers under have to be able to read it.
    library.chmod(0o755)
    return {**os.environ, "LD_PRELOAD": str(library), "TZ": zone}


def main(arguments: list[str]) -> int:
    """Run pytest at one instant or at all of them; the exit code is that of the first run that failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.fake_time")
    parser.add_argument("--at", type=datetime.fromisoformat, help="an instant such as 2026-11-19T01:45Z")
    parser.add_argument("--zone", default="UTC", help="the zone of the machine at that instant")
    chosen, rest = parser.parse_known_args(arguments)
    instants = (
        [(chosen.at, chosen.zone, "as asked")]
        if chosen.at
        else [(datetime.fromisoformat(text), zone, why) for text, zone, why in INSTANTS]
    )
    failed: list[tuple[str, int]] = []
    with tempfile.TemporaryDirectory(prefix="tb-clock-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        for instant, zone, why in instants:
            label = f"{instant:%Y-%m-%d %H:%M:%S} UTC, {zone}: {why}"
            print(f"\n== {label}", flush=True)
            run = subprocess.run([sys.executable, "-m", "pytest", *rest], env=moved_to(instant, zone, Path(folder)))
            if run.returncode:
                failed.append((label, run.returncode))
    for label, _ in failed:
        print(f"failed at {label}")
    return failed[0][1] if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
