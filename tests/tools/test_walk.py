"""The walks that ARCHITECTURE.md tells are those that the program goes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.walk import SOURCES, walk_of_cron_job, walk_of_enqueue, walk_of_page

from tests.support.servers import Servers, ServiceMissing, give_up_on
from timeball.config.settings import Settings, load_settings

PAGE = Path(__file__).parents[2] / "ARCHITECTURE.md"
TITLES = {
    "### A cron job": walk_of_cron_job,
    "### One `handler.enqueue()`": walk_of_enqueue,
    "### One page view": walk_of_page,
}


def told_files(title: str) -> set[str]:
    """The files that a walk of the page names."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.split(r"^##", text[text.index(title) + 3 :], maxsplit=1, flags=re.MULTILINE)[0]
    return set(re.findall(r"`([\w/]+\.py)`", section))


@pytest.fixture
def settings(servers: Servers, template_of: Callable[..., str]) -> Iterator[Settings]:
    try:
        server = servers.postgres("pg18")
    except ServiceMissing as error:
        give_up_on(error)
        raise
    name = server.create_database(template_of(server))
    yield load_settings(database_url=server.dsn(name), migrate=False)
    server.drop_database(name)


@pytest.mark.parametrize("title", TITLES)
def test_the_page_names_only_files_that_exist(title: str) -> None:
    assert [path for path in told_files(title) if not (SOURCES / path).is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize("title", TITLES)
def test_the_page_names_every_file_of_a_walk(title: str, settings: Settings) -> None:
    files = [path for path in TITLES[title](settings) if path.endswith(".py")]

    assert len(files) > 10
    assert set(files) - told_files(title) == set()
