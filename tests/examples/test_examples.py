"""The small applications in `examples/`: each has tests of its own, which run here as their authors would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pace import patience
from tests.support.servers import Servers

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["flask_reports", "search_index"])
def test_an_example_passes_its_own_tests(servers: Servers, folder: str, tmp_path: Path) -> None:
    environment = os.environ | {"TIMEBALL_TEST_DATABASE_URL": servers.postgres("pg18").dsn()}

    run_tests(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"], folder, environment
    )


@pytest.mark.slow
def test_the_django_example_passes_its_own_tests(servers: Servers) -> None:
    server = servers.postgres("pg15")
    connection = {"PGHOST": server.host, "PGPORT": "5432", "PGUSER": "timeball"}
    # Our own tests of Django name other settings.
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}

    run_tests([sys.executable, "manage.py", "test"], "django_documents", environment | connection)


def run_tests(command: list[str], folder: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        command,
        cwd=EXAMPLES / folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(120),
    )
    assert done.returncode == 0, done.stdout + done.stderr
