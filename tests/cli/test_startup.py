"""What a command costs before it does anything: what it imports. Times are measured by `make bench ONLY=startup`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.tree import all_branches
from timeball.cli.branches import Branch

# None of these is needed to show a help, or when a schedule fires; each takes its time.
HEAVY = {
    *("aiohttp", "asyncio", "asyncpg", "fastapi", "httpx", "jinja2", "orjson", "prometheus_client", "pydantic"),
    *("pydantic_core", "rich", "starlette", "uvicorn", "uvloop"),
}


def imported_by(*arguments: str) -> set[str]:
    """The packages that a command has imported when it ends."""
    program = (
        "import sys\nfrom timeball.cli.main import run\n"
        f"code = run({list(arguments)!r})\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["jobs", "--help"],
        ["worker", "--help"],
        ["next", "30 2 * * *", "--tz", "Europe/Berlin"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_for_what_needs_it_not(arguments: list[str]) -> None:
    assert imported_by(*arguments) & HEAVY == set()


def test_a_worker_imports_nothing_that_it_may_never_need() -> None:
    """An idle worker is to be small: what a mail, a call or a page needs is imported by the first that needs it."""
    program = "import sys\nimport timeball.cli.nodes\nprint(*{name.partition('.')[0] for name in sys.modules})"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    spared = {
        "aio_pika",
        "aiohttp",
        "aiosmtplib",
        "fastapi",
        "httpx",
        "jinja2",
        "pygments",
        "redis",
        "rich",
        "starlette",
        "yarl",
    }
    assert spared & set(done.stdout.split()) == set()


def test_help_imports_no_command() -> None:
    program = (
        "import sys\nfrom timeball.cli.main import run\nrun(['--help'])\n"
        "print(*sorted(name for name in sys.modules if name.startswith('timeball.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stderr.split() == [f"timeball.cli.{name}" for name in ("branches", "exits", "main", "words")]


@pytest.mark.parametrize("branch", all_branches(), ids=lambda branch: str(branch.name))
def test_a_branch_says_of_itself_what_its_command_says(branch: Branch) -> None:
    whole = branch.load()

    assert (branch.name, branch.get_short_help_str(1000)) == (whole.name, whole.get_short_help_str(1000))
