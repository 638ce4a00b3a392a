"""Concurrent enqueues share a commit: which items are written together, and which caller gets which answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from timeball import InvalidInput, StoreUnavailable
from timeball.sdk.enqueue_paths import Batcher


class Writer:
    """Stands for the store: each write waits until it is let go."""

    def __init__(self) -> None:
        self.writes: list[list[int]] = []
        self.gate = asyncio.Semaphore(0)
        self.failure: Exception | None = None

    async def write(self, items: Sequence[int]) -> list[int]:
        self.writes.append(list(items))
        await self.gate.acquire()
        if self.failure is not None and (13 in items or isinstance(self.failure, StoreUnavailable)):
            raise self.failure
        return [10 * item for item in items]

    def let_go(self, times: int = 100) -> None:
        for _ in range(times):
            self.gate.release()


@pytest.fixture
async def writer() -> Writer:
    return Writer()


@pytest.fixture
async def batcher(writer: Writer) -> Batcher[int, int]:
    return Batcher(writer.write)


def submit_all(batcher: Batcher[int, int], *items: int) -> list[asyncio.Future[int]]:
    futures = [batcher.asubmit(item) for item in items]
    return [future for future in futures if future is not None]


async def turn() -> None:
    """Let everything that is ready in the loop happen."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_lone_item_is_written_at_once(writer: Writer, batcher: Batcher[int, int]) -> None:
    (answer,) = submit_all(batcher, 1)
    await turn()

    assert writer.writes == [[1]]
    writer.let_go()
    assert await answer == 10


async def test_items_that_come_during_a_write_go_together(writer: Writer, batcher: Batcher[int, int]) -> None:
    first = submit_all(batcher, 1)
    await turn()
    others = submit_all(batcher, 2, 3, 4)
    writer.let_go()

    assert await asyncio.gather(*first, *others) == [10, 20, 30, 40]
    assert writer.writes == [[1], [2, 3, 4]]


async def test_a_batch_has_a_largest_size(writer: Writer, batcher: Batcher[int, int]) -> None:
    answers = submit_all(batcher, *range(450))
    writer.let_go()
    await asyncio.gather(*answers)

    assert [len(write) for write in writer.writes] == [200, 200, 50]


async def test_a_refused_item_does_not_fail_the_others(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.failure = InvalidInput("13 is unlucky")
    answers = submit_all(batcher, 12, 13, 14)
    writer.let_go()

    outcomes = await asyncio.gather(*answers, return_exceptions=True)

    assert outcomes == [120, writer.failure, 140]
    assert writer.writes == [[12, 13, 14], [12], [13], [14]]


async def test_all_items_fail_at_once_if_the_store_is_away(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.failure = StoreUnavailable("away")
    answers = submit_all(batcher, 1, 2)
    writer.let_go()

    assert await asyncio.gather(*answers, return_exceptions=True) == [writer.failure] * 2
    assert writer.writes == [[1, 2]]


async def test_an_unexpected_error_reaches_the_callers(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.failure = ZeroDivisionError("13")
    (answer,) = submit_all(batcher, 13)
    writer.let_go()

    with pytest.raises(ZeroDivisionError):
        await answer


async def test_an_item_cancelled_before_its_write_is_left_out(writer: Writer, batcher: Batcher[int, int]) -> None:
    (first,) = submit_all(batcher, 1)
    await turn()
    second, third = submit_all(batcher, 2, 3)
    fourth = batcher.submit(4)
    assert fourth is not None
    second.cancel()
    fourth.cancel()
    writer.let_go()

    assert await asyncio.gather(first, third) == [10, 30]
    assert writer.writes == [[1], [3]]


async def test_an_item_cancelled_during_its_write_does_not_disturb_the_others(
    writer: Writer, batcher: Batcher[int, int]
) -> None:
    first, second = submit_all(batcher, 1, 2)
    await turn()
    first.cancel()
    writer.let_go()

    assert await second == 20


async def test_threads_and_other_event_loops_get_their_answers(writer: Writer, batcher: Batcher[int, int]) -> None:
    async def from_another_loop() -> int:
        future = batcher.asubmit(2)
        assert future is not None
        return await future

    def from_a_thread() -> int:
        future = batcher.submit(1)
        assert future is not None
        return future.result(10)

    writer.let_go()
    answers = await asyncio.gather(
        asyncio.to_thread(from_a_thread), asyncio.to_thread(lambda: asyncio.run(from_another_loop()))
    )

    assert answers == [10, 20]


async def test_a_thread_gets_its_own_error_and_not_that_of_another(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.failure = InvalidInput("13 is unlucky")
    unlucky, lucky = batcher.submit(13), batcher.submit(14)
    assert unlucky is not None
    assert lucky is not None
    writer.let_go()

    with pytest.raises(InvalidInput, match="unlucky"):
        await asyncio.to_thread(unlucky.result, 10)
    assert await asyncio.to_thread(lucky.result, 10) == 140


async def test_a_thread_that_has_given_up_gets_no_answer(writer: Writer, batcher: Batcher[int, int]) -> None:
    future = batcher.submit(1)
    assert future is not None

    with pytest.raises(TimeoutError):
        await asyncio.to_thread(future.result, 0.001)
    future.cancel()
    writer.let_go()
    (other,) = submit_all(batcher, 2)

    assert await other == 20


async def test_an_answer_for_a_closed_event_loop_is_discarded(writer: Writer, batcher: Batcher[int, int]) -> None:
    async def submit_and_leave() -> None:
        submit_all(batcher, 1)

    await asyncio.to_thread(lambda: asyncio.run(submit_and_leave()))
    (answer,) = submit_all(batcher, 2)
    writer.let_go()

    assert await answer == 20


async def test_closing_fails_the_callers_that_wait_and_takes_no_more_items(
    writer: Writer, batcher: Batcher[int, int]
) -> None:
    submit_all(batcher, 1)
    await turn()
    waiting = submit_all(batcher, 2)
    in_a_thread = batcher.submit(3)
    assert in_a_thread is not None

    batcher.close()

    with pytest.raises(StoreUnavailable, match="closed while this call was under way"):
        await waiting[0]
    with pytest.raises(StoreUnavailable):
        in_a_thread.result(10)
    assert batcher.submit(4) is None
    assert batcher.asubmit(5) is None


async def test_one_task_writes_all_batches_and_ends_at_the_closing(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.let_go()
    before, seen = asyncio.all_tasks(), set[asyncio.Task[object]]()

    for item in range(3):
        (answer,) = submit_all(batcher, item)
        assert await answer == 10 * item
        seen |= asyncio.all_tasks() - before
    assert len(seen) == 1

    batcher.close()
    await turn()
    assert asyncio.all_tasks() == before


async def test_an_item_that_comes_after_the_task_was_cancelled_is_written_by_another(
    writer: Writer, batcher: Batcher[int, int]
) -> None:
    """A loop that is shut down cancels all tasks, and an item may come before the batcher is closed."""
    writer.let_go()
    before = asyncio.all_tasks()
    (first,) = submit_all(batcher, 1)
    await first

    for task in asyncio.all_tasks() - before:
        task.cancel()
    await turn()
    (second,) = submit_all(batcher, 2)

    assert await second == 20


async def test_no_answer_is_lost_or_mixed_up_between_many_threads(writer: Writer, batcher: Batcher[int, int]) -> None:
    writer.let_go(10_000)
    answers_by_item: dict[int, int] = {}

    def work(start: int) -> None:
        for item in range(start, start + 100):
            future = batcher.submit(item)
            assert future is not None
            answers_by_item[item] = future.result(30)

    threads = [threading.Thread(target=work, args=(1_000 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*(asyncio.to_thread(thread.join) for thread in threads))

    assert answers_by_item == {
        item: 10 * item for number in range(8) for item in range(1_000 * number, 1_000 * number + 100)
    }


async def test_a_signal_between_two_steps_does_not_block_the_next_caller(
    writer: Writer, batcher: Batcher[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next caller took the loop for woken, and waited for ever."""

    class Struck(Exception): ...

    def strike(*_: object) -> None:
        raise Struck

    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", strike)
        with pytest.raises(Struck):
            batcher.asubmit(1)
    (answer,) = submit_all(batcher, 2)
    writer.let_go()

    assert await asyncio.wait_for(answer, 30) == 20


async def test_the_number_of_waiting_callers_is_known(writer: Writer, batcher: Batcher[int, int]) -> None:
    before = batcher.waiting
    answers = submit_all(batcher, 1, 2, 3)
    waiting = [batcher.waiting]
    await turn()
    waiting.append(batcher.waiting)
    writer.let_go()
    await asyncio.gather(*answers)
    await turn()

    assert (before, waiting, batcher.waiting) == (0, [3, 3], 0)
