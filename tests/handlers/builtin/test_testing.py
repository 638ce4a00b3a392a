from __future__ import annotations

import pytest

from tests.handlers.builtin.support import attempt_at, die, fail, succeed
from timeball.handlers.builtin.system import testing_handlers as handlers_for_trying
from timeball.handlers.registry import Registry


@pytest.fixture
def handlers() -> Registry:
    return Registry(handlers_for_trying())


async def test_echo_returns_whatever_it_is_given(handlers):
    assert await succeed(handlers.get("test.echo"), {"a": [1, {"b": None}]}) == {"a": [1, {"b": None}]}


async def test_delay_waits_and_fails_as_asked(handlers):
    handler = handlers.get("test.delay")

    assert await succeed(handler, {"durationMs": 1}) == {"waited_ms": 1}
    outcome = await fail(handler, {"durationMs": 0, "shouldFail": True, "failMessage": "on purpose"})
    assert outcome.is_retryable
    assert outcome.error.message == "on purpose"
    assert "durationMs" in await die(handler, {"durationMs": -1})
    assert "wait" in await die(handler, {"wait": 1})


async def test_log_writes_lines(handlers):
    handler = handlers.get("test.log")
    attempt = attempt_at(handler, {"message": "tick", "level": "warning", "lines": 2})

    await succeed(handler, None, attempt)

    assert attempt.sink.lines == [("warning", "tick 1"), ("warning", "tick 2")]
