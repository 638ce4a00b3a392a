"""Parameters that a run provides and closes: no arguments, called once for each run, whatever style the handler has."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import pytest

from tests.engine.runners.support import Attempt
from timeball import ActiveRun, Depends, InvalidInput, Timeball, current
from timeball.domain.execution import Failed, Outcome, Succeeded
from timeball.domain.handler import RunStyle
from timeball.engine.runners.in_process import CoroutineRunner, ThreadRunner

if TYPE_CHECKING:
    from decimal import Decimal

NOTES: list[str] = []


class Session:
    """Something that is opened and closed."""

    def __init__(self, name: str = "session") -> None:
        self.name = name


def open_session() -> Iterator[Session]:
    NOTES.append("open session")
    try:
        yield Session(f"session of {current.meta.get('tenant')}")
    finally:
        NOTES.append("close session")


@contextmanager
def open_unit_of_work(session: OpenSession) -> Iterator[str]:
    NOTES.append("begin")
    try:
        yield f"unit in {session.name}"
    except BaseException as error:
        NOTES.append(f"roll back {error}")
        raise
    else:
        NOTES.append("commit")


async def open_client() -> AsyncIterator[str]:
    NOTES.append("open client")
    yield "client"
    NOTES.append("close client")


async def read_user(client: Annotated[str, Depends(open_client)]) -> str:
    return f"ada by {client}"


@asynccontextmanager
async def open_cache() -> AsyncIterator[str]:
    yield "cache"


OpenSession = Annotated[Session, Depends(open_session)]
UnitOfWork = Annotated[str, Depends(open_unit_of_work)]


@pytest.fixture
def tb() -> Timeball:
    NOTES.clear()
    return Timeball()


async def run(tb: Timeball, payload: str = "{}") -> Outcome:
    handler = tb.registry.get("handler")
    runner = CoroutineRunner() if handler.style is RunStyle.COROUTINE else ThreadRunner(1)
    try:
        return await runner.run(handler, Attempt(payload=payload, meta='{"tenant":"acme"}'))
    finally:
        await runner.stop()


def plain(unit: UnitOfWork, number: int, session: OpenSession, *, word: str = "x") -> list[object]:
    NOTES.append("work")
    if number < 0:
        raise ValueError("no such order")
    return [session.name, unit, number, word]


async def coroutine(unit: UnitOfWork, number: int, session: OpenSession, *, word: str = "x") -> list[object]:
    return plain(unit, number, session, word=word)


BOTH = pytest.mark.parametrize("function", [plain, coroutine])


@BOTH
async def test_what_a_handler_depends_on_is_opened_once_and_closed_in_reverse(
    tb: Timeball, function: Callable[..., Any]
) -> None:
    tb.handler(name="handler")(function)

    outcome = await run(tb, '{"number": 5}')

    assert outcome == Succeeded('["session of acme","unit in session of acme",5,"x"]')
    assert NOTES == ["open session", "begin", "work", "commit", "close session"]


@BOTH
async def test_the_error_of_a_handler_reaches_what_it_depends_on(tb: Timeball, function: Callable[..., Any]) -> None:
    tb.handler(name="handler")(function)

    outcome = await run(tb, '{"number": -1}')

    assert isinstance(outcome, Failed)
    assert outcome.error.message == "no such order"
    assert NOTES == ["open session", "begin", "work", "roll back no such order", "close session"]
    assert "timeball/handlers" not in (outcome.error.traceback or "")


@BOTH
async def test_a_provided_parameter_is_no_argument(tb: Timeball, function: Callable[..., Any]) -> None:
    handle: Any = tb.handler(name="handler")(function)
    binder = tb.registry.get("handler").binder

    assert handle.call(5, word="y").payload == '{"number":5,"word":"y"}'
    assert list(binder.schema()["properties"]) == ["number", "word"]
    with pytest.raises(InvalidInput, match="session is unknown"):
        handle.call(5, session=1)
    outcome = await run(tb, '{"number": 5, "session": 1}')
    assert isinstance(outcome, Failed)
    assert outcome.error.type.endswith("PayloadMismatch")
    assert NOTES == [], "the payload is bound before anything is opened"


def test_a_program_that_calls_the_function_gives_the_argument_itself(tb: Timeball) -> None:
    handle = tb.handler(name="handler")(plain)

    assert handle("unit", 5, Session("own")) == ["own", "unit", 5, "x"]


async def test_a_coroutine_function_may_depend_on_what_is_async(tb: Timeball) -> None:
    @tb.handler(name="handler")
    async def work(
        user: Annotated[str, Depends(read_user)],
        client: Annotated[str, Depends(open_client)],
        cache: Annotated[str, Depends(open_cache)],
        session: OpenSession,
    ) -> list[str]:
        return [user, client, cache, session.name]

    assert await run(tb) == Succeeded('["ada by client","client","cache","session of acme"]')
    assert NOTES == ["open client", "open session", "close session", "close client"]


async def test_what_is_provided_is_opened_inside_of_the_code_around_the_run(tb: Timeball) -> None:
    @tb.around_run
    def watch(run: ActiveRun) -> Iterator[None]:
        NOTES.append("enter")
        try:
            yield
        finally:
            NOTES.append(f"leave, {run.outcome}")

    tb.handler(name="handler")(plain)

    await run(tb, '{"number": -1}')

    assert (NOTES[0], NOTES[-1]) == ("enter", "leave, failed")


class _Swallowing:
    def __enter__(self) -> str:
        return "swallows"

    def __exit__(self, *_error: object) -> bool:
        return True


async def test_what_is_provided_cannot_swallow_the_error_of_the_handler(tb: Timeball) -> None:
    @tb.handler(name="handler")
    def work(guard: Annotated[str, Depends(_Swallowing)]) -> None:
        raise ValueError(guard)

    outcome = await run(tb)

    assert isinstance(outcome, Failed)
    assert outcome.error.message == "swallows"


async def test_an_error_of_what_is_provided_fails_the_attempt(tb: Timeball) -> None:
    def broken() -> None:
        raise ConnectionError("no session")

    tb.handler(name="handler")(_of(broken))

    outcome = await run(tb)

    assert isinstance(outcome, Failed)
    assert (outcome.error.type, outcome.error.message) == ("ConnectionError", "no session")


def _of(provider: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that depends on this."""

    def work(value: Any) -> Any:
        return value

    work.__annotations__ = {"value": Annotated[Any, Depends(provider)]}
    return work


async def test_a_copy_that_the_handler_forked_closes_nothing(tb: Timeball, tmp_path: Path) -> None:
    note = tmp_path / "note"

    def noted() -> Iterator[int]:
        yield os.getpid()
        with note.open("a") as file:
            file.write(f"closed in {os.getpid()}\n")

    def work(value: Any) -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)

    work.__annotations__ = {"value": Annotated[Any, Depends(noted)]}
    tb.handler(name="handler")(work)

    assert await run(tb) == Succeeded()

    assert note.read_text() == f"closed in {os.getpid()}\n"


# wrong declarations


def _needs_itself(value: NeedsOther) -> None: ...


def _needs_other(value: Annotated[Any, Depends(_needs_itself)]) -> None: ...


NeedsOther = Annotated[Any, Depends(_needs_other)]


def _needs_an_argument(url: str) -> None: ...


def _by_position(value: Annotated[Any, Depends(open_session)], /) -> None: ...


def _of_fastapi(value: Annotated[Any, fastapi.Depends(open_session)]) -> None: ...


def _for_type_checkers(value: Annotated[Decimal, Depends(open_session)]) -> None: ...


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (_of(read_user), "depends on tests.handlers.test_dependencies:read_user, which is async"),
        (_of(open_cache), "depends on tests.handlers.test_dependencies:open_cache, which is async"),
        (_of(_needs_itself), "depends on itself: .*_needs_itself -> .*_needs_other -> .*_needs_itself"),
        (_of(_needs_an_argument), "_needs_an_argument takes url, which nothing provides"),
        (_by_position, "cannot be provided, expected a parameter that is given by name"),
        (_of_fastapi, "has Depends of fastapi.*, expected that of timeball"),
        (_for_type_checkers, "the annotation of value .* cannot be read: name 'Decimal' is not defined"),
    ],
)
def test_what_could_never_be_provided_is_refused_at_the_declaration(
    tb: Timeball, function: Callable[..., Any], complaint: str
) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        tb.handler(name="handler")(function)


@pytest.mark.parametrize("given", [5, None, Session()])
def test_depends_takes_what_can_be_called(given: Any) -> None:
    with pytest.raises(InvalidInput, match=r"Depends was given .*, expected a function"):
        Depends(given)


async def test_an_async_context_manager_that_only_the_call_shows_fails_a_plain_function(tb: Timeball) -> None:
    def returns_async() -> Any:
        return open_cache()

    tb.handler(name="handler")(_of(returns_async))

    outcome = await run(tb)

    assert isinstance(outcome, Failed)
    assert "an async context manager, around a plain function" in outcome.error.message


def test_a_handler_without_dependencies_is_bound_as_it_is(tb: Timeball) -> None:
    def work(number: int) -> int:
        return number

    tb.handler(name="handler")(work)

    assert tb.registry.get("handler").binder._function is work  # type: ignore[attr-defined]
