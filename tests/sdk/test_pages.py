"""What a program reads for its own pages: runs, their progress, queues and workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sdk.conftest import ON_ONE_SERVER
from timeball import InvalidInput, NotFound, Timeball

pytestmark = ON_ONE_SERVER

Rows = Callable[[str], list[dict[str, Any]]]

_KEPT = "id, job_id, origin, version, queue, priority, handler, scheduled_for, run_at, queued_at, meta"
_CLAIM = f"""
WITH taken AS (DELETE FROM timeball.ready RETURNING *)
INSERT INTO timeball.running ({_KEPT}, attempts, lost, fence, holder, claim_id, claimed_at, progress, progress_note)
SELECT {_KEPT}, 1, 0, 1, gen_random_uuid(), gen_random_uuid(), now(), 0.42, 'page 42'
FROM taken
RETURNING id
"""


@pytest.fixture
def export(tb: Timeball) -> Any:
    @tb.handler(tags=["export"])
    def export(user: int) -> None: ...

    return export


async def test_a_run_tells_its_progress(tb: Timeball, rows: Rows, export: Any) -> None:
    run = export.options(meta={"tenant": "acme"}).enqueue(1)
    assert run.progress() is None
    rows(_CLAIM)

    progress = tb.get_run(run.id).progress()

    assert progress is not None
    assert (progress.fraction, progress.note) == (0.42, "page 42")
    assert await run.aprogress() == progress


async def test_a_run_tells_all_that_is_known_of_it(tb: Timeball, rows: Rows, export: Any) -> None:
    run = export.options(meta={"tenant": "acme", "api_key": "not hidden"}, priority=70).enqueue(1)
    rows(_CLAIM)

    info = run.info()

    assert (info.id, info.job_id, info.state, info.attempts) == (run.id, run.job_id, "running", 1)
    assert (info.handler, info.queue, info.priority) == (export.name, "default", 70)
    assert info.meta == {"tenant": "acme", "api_key": "not hidden"}
    assert info.progress is not None
    assert info.progress.fraction == 0.42
    assert info.started_at is not None
    assert await run.ainfo() == info


def test_what_is_not_there_has_no_info(tb: Timeball) -> None:
    with pytest.raises(NotFound):
        tb.get_run("exe_01M7R7FHSBFQX9D4DG1677XWKJ").info()


async def test_runs_are_found_by_what_they_are(tb: Timeball, rows: Rows, export: Any) -> None:
    @tb.handler(queue="mail")
    def send(number: int) -> None: ...

    first = export.options(meta={"tenant": "acme", "depth": 3}, key="e-1").enqueue(1)
    second = export.options(meta={"tenant": "globex"}, delay="1h").enqueue(2)
    third = send.enqueue(3)

    def found(**asked: Any) -> list[str]:
        return [info.id for info in tb.runs(**asked)]

    assert found() == [third.id, second.id, first.id]
    assert found(handler=export.name) == [second.id, first.id]
    assert found(handler="*send") == [third.id]
    assert found(tag="export", state="queued") == [first.id]
    assert found(state=["queued", "scheduled"]) == [third.id, second.id, first.id]
    assert found(queue="mail") == [third.id]
    assert found(meta={"tenant": "acme"}) == [first.id]
    assert found(meta={"tenant": "acme", "depth": 3}) == [first.id]
    assert found(meta={"depth": 4}) == []
    assert found(key="e-1") == [first.id]
    assert found(key="e-1", state="scheduled") == []
    assert found(key="unknown") == []
    assert found(limit=2) == [third.id, second.id]
    assert [info.id for info in await tb.aruns(queue="mail")] == [third.id]


def test_a_key_has_all_runs_that_were_enqueued_with_it(tb: Timeball, export: Any) -> None:
    runs = []
    for number in range(3):
        runs.append(export.options(key="e").enqueue(number))
        runs[-1].cancel()

    assert [info.id for info in tb.runs(key="e")] == [run.id for run in reversed(runs)]
    assert tb.get_run(key="e").id == runs[-1].id


async def test_a_run_is_found_by_its_key(tb: Timeball, export: Any) -> None:
    run = export.options(key="e").enqueue(1)

    by_key = tb.get_run(key="e")

    assert (by_key.id, by_key.job_id, by_key.is_new) == (run.id, run.job_id, False)
    assert (await tb.aget_run(key="e")).id == run.id
    run.cancel()
    assert tb.get_run(key="e").state() == "cancelled"
    with pytest.raises(NotFound, match="other"):
        tb.get_run(key="other")


async def test_queues_and_workers_are_told(tb: Timeball, rows: Rows, export: Any) -> None:
    export.options(queue="a").enqueue(1)
    export.options(queue="b").enqueue(2)
    export.options(queue="b").enqueue(3)
    rows(
        "INSERT INTO timeball.node (incarnation, kind, name, started_at, renewed_at, lease_until, lease_seconds, slots, busy, handlers, "
        "version) VALUES (gen_random_uuid(), 'worker', 'w', now(), now(), now() + interval '1 minute', 60, 20, 3, '{a}', '1') RETURNING 1"
    )

    assert {queue.name: queue.depth for queue in tb.queues()} == {"a": 1, "b": 2}
    assert await tb.aqueues()
    (worker,) = tb.workers()
    assert (worker.name, worker.slots, worker.busy) == ("w", 20, 3)
    assert [worker.name for worker in await tb.aworkers()] == ["w"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"sate": "dead"}, r"runs\(\) has no option 'sate'"),
        ({"state": "gone"}, 'state is "gone", expected scheduled, '),
        ({"limit": 0}, "limit is 0, expected 1 to 1000"),
        ({"limit": 1_001}, "limit is 1001, expected 1 to 1000"),
        ({"meta": "acme"}, 'meta is "acme", expected a mapping such as'),
        ({"meta": {"a": {}}}, "meta.a is {}, expected a text, a number or a boolean"),
        ({"key": ""}, "key has 0 characters"),
    ],
)
def test_what_runs_are_asked_for_is_checked(tb: Timeball, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        tb.runs(**asked)


def test_a_run_is_asked_for_by_an_id_or_a_key(tb: Timeball) -> None:
    with pytest.raises(InvalidInput, match="neither an id nor a key"):
        tb.get_run()
    with pytest.raises(InvalidInput, match="an id and a key"):
        tb.get_run("exe_01M7R7FHSBFQX9D4DG1677XWKJ", key="k")
