"""Groups: their list, one as a tree of its parts, why it waits, and its cancellation by count."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.dashboard.conftest import Browser
from tests.dashboard.test_actions import toast
from tests.dashboard.test_pages import HOSTILE
from tests.support.factories import FAILURE, claim_all, found, record
from timeball.application.commands import Commands
from timeball.domain.execution import Failed, Succeeded
from timeball.domain.values.ids import format_execution_id, format_id
from timeball.store.store import Store

Entering = Callable[[str], Awaitable[Browser]]
READ: dict[str, Any] = {"handler": "read", "payload": {}}
CHAIN = {"chain": [READ, {"handler": "scan", "payload": {}}, {"handler": "index", "payload": {}}]}
INNER = {"group": [{"handler": "inner", "payload": {}}] * 3}


async def begin(store: Store, *parts: dict[str, Any], **work: Any) -> str:
    created = await Commands(store, store.env).groups.create({"group": list(parts), **work})
    return format_id("grp", created.id)


async def end(store: Store, *outcomes: Any, handler: str = "read") -> list[str]:
    claims = await claim_all(store, handlers=[handler])
    await record(store, [found(claimed, outcome) for claimed, outcome in zip(claims, outcomes, strict=True)])
    return [format_execution_id(claimed.id) for claimed in claims]


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


async def test_a_group_is_shown_as_a_tree_with_its_progress(browser: Browser, store: Store) -> None:
    group = await begin(store, {"handler": "cut", "payload": {}}, CHAIN, INNER)
    (first,) = await end(store, Failed(FAILURE, is_retryable=False), handler="cut")
    (second,) = await end(store, Succeeded())

    page = (await browser.get(f"/groups/{group}")).text

    said = words(page)
    assert "33 % · 0 succeeded, 1 failed waits for 2 of 3" in said
    assert f"{FAILURE.type}: {FAILURE.message}" in said
    assert "then · scan" in said
    assert "· 1 step left" in said
    assert "3 parts" in said
    assert said.count("· inner") == 3
    assert all(f'href="/executions/{id_}"' in page for id_ in (first, second))
    assert re.search(r'href="/groups/grp_\w+">', page.replace(group, ""))
    run = (await browser.get(f"/executions/{second}")).text
    assert f'part 2 of <a class="mono" href="/groups/{group}"' in run


async def test_groups_are_listed_by_state_and_say_which_nothing_it_is(browser: Browser, store: Store) -> None:
    nothing = (await browser.get("/groups")).text
    closed = await begin(store, READ)
    await end(store, Succeeded())
    opened = await begin(store, READ, INNER)

    every = (await browser.get("/groups")).text
    only_open = (await browser.get("/groups?state=open")).text

    assert "No groups yet" in nothing
    assert "timeball groups create book.json" in nothing
    assert f'href="/groups/{closed}"' in every
    assert f'href="/groups/{opened}"' in every
    assert closed not in only_open
    assert "No group is failed" in (await browser.get("/groups?state=failed")).text
    # The sidebar and the palette lead there.
    assert 'href="/groups"' in (await browser.get("/parts/nav?section=/groups")).text
    assert 'href="/groups"' in (await browser.get("/parts/palette?words=group")).text
    assert f'href="/groups/{opened}"' in (await browser.get(f"/parts/palette?words={opened}")).text


async def test_a_group_is_cancelled_after_a_confirmation_by_count(browser: Browser, store: Store) -> None:
    group = await begin(store, READ, READ, READ)
    (claimed, *_) = await claim_all(store, handlers=["read"])
    await record(store, [found(claimed, Succeeded())])

    page = (await browser.get(f"/groups/{group}")).text
    done = await browser.submit(f"/groups/{group}/cancel", seen_on=f"/groups/{group}", reason="not needed")

    assert "Cancel 2 parts?" in page
    assert toast(done) == "2 executions cancelled or asked to stop."


async def test_a_viewer_cannot_cancel_a_group(log_in: Entering, store: Store) -> None:
    group = await begin(store, READ)

    page = (await (await log_in("viewer")).get(f"/groups/{group}")).text

    assert f"/groups/{group}/cancel" not in page
    assert f"/groups/{group}/why" in page


async def test_a_large_group_is_shown_page_by_page(browser: Browser, store: Store) -> None:
    group = await begin(store, *[READ] * 250)

    first = (await browser.get(f"/groups/{group}")).text
    (target,) = re.findall(r'rel="next" href="([^"]+)"', first)
    second = (await browser.get(target.replace("&amp;", "&"))).text

    assert "1 to 200 of 250" in words(first)
    assert "201 to 250 of 250" in words(second)
    assert 'rel="next"' not in second
    assert "of 250" in words((await browser.get(f"/groups/{group}?parts=open")).text)
    assert (await browser.get(f"/groups/{group}?cursor=x")).status_code == 422


async def test_the_page_why_names_the_parts_that_wait(browser: Browser, store: Store) -> None:
    group = await begin(store, READ, INNER)

    page = (await browser.get(f"/groups/{group}/why")).text

    assert "OPEN: waits for 2 of 2: read (exe_" in words(page)
    assert "1 · read" in words(page)
    assert "2 · group" in words(page)
    assert f"timeball why {group}" in page
    assert re.search(r'href="/executions/exe_\w+/why"', page)
    assert re.search(r'href="/groups/grp_\w+/why"', page)


async def test_what_follows_a_group_leads_to_it_and_back(browser: Browser, store: Store) -> None:
    group = await begin(store, READ, then={"handler": "join", "payload": {}})
    await end(store, Succeeded())

    page = (await browser.get(f"/groups/{group}")).text
    (follower,) = re.findall(r'Followed by</dt><dd><a class="mono" href="(/executions/exe_\w+)"', page)

    assert f'the group <a class="mono" href="/groups/{group}"' in (await browser.get(follower)).text


async def test_hostile_names_are_text(browser: Browser, store: Store) -> None:
    group = await begin(store, {"handler": HOSTILE, "payload": {}}, READ)
    await end(store, Failed(FAILURE.__class__(type="ValueError", message=HOSTILE), is_retryable=False))

    for path in ("/groups", f"/groups/{group}", f"/groups/{group}/why"):
        assert "<img src=x" not in (await browser.get(path)).text, path


@pytest.mark.parametrize("path", ["/groups/x", "/groups/grp_01JCV3V1KC8M2T4QZ5R7N9X0AB", "/groups/x/why"])
async def test_a_group_that_does_not_exist_is_not_found(browser: Browser, path: str) -> None:
    assert (await browser.get(path)).status_code == 404


async def test_a_part_that_is_refreshed_is_only_the_part(browser: Browser, store: Store) -> None:
    group = await begin(store, READ)

    for path in ("/groups", f"/groups/{group}", f"/groups/{group}/why"):
        part = await browser.get(path, headers={"HX-Request": "true", "HX-Request-Type": "partial"})
        assert "<html" not in part.text, path
        assert "data-topics=" in part.text, path
