"""Declarations of handlers: what a handle is, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from datetime import timedelta
from typing import Any

import pytest

from timeball import Conflict, HandlerHandle, InvalidInput, Isolate, Timeball
from timeball.config.settings import load_settings
from timeball.domain.handler import RunStyle

tb = Timeball("postgresql://nobody@nowhere.invalid/nothing")


@tb.handler
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tb.handler(queue="slow", priority=90, retries=7, timeout=None, backoff="2s", max_backoff="1m", no_retry=KeyError)
async def double(n: int) -> int:
    return 2 * n


@pytest.fixture
def fresh() -> Timeball:
    return Timeball("postgresql://nobody@nowhere.invalid/nothing")


def test_a_handler_called_directly_is_the_function() -> None:
    assert add(1, b=2) == 3


async def test_an_async_handler_called_directly_is_the_coroutine_function() -> None:
    assert await double(2) == 4


def test_a_handle_looks_like_its_function() -> None:
    assert add.__name__ == "add"
    assert add.__doc__ == "Add two numbers."
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    assert repr(add) == "<handler tests.sdk.test_handlers:add>"


def test_a_handle_is_pickled_by_name_like_a_function() -> None:
    assert pickle.loads(pickle.dumps(add)) is add


def test_a_handler_is_named_after_its_module_and_function() -> None:
    assert add.name == "tests.sdk.test_handlers:add"


def test_a_handler_can_be_given_a_name(fresh: Timeball) -> None:
    @fresh.handler(name="mail.send")
    def send() -> None: ...

    assert send.name == "mail.send"
    assert fresh.registry.names() == ("mail.send",)


def test_a_handler_keeps_its_options() -> None:
    options = double.handler.options

    fields = {"queue": "slow", "priority": 90, "max_retries": 7, "timeout_ms": None}
    assert options.fields == fields | {"initial_backoff_ms": 2_000, "backoff_ms": (), "max_backoff_ms": 60_000}
    assert options.no_retry == (KeyError,)


def test_a_handler_may_say_when_its_children_are_replaced(fresh: Timeball) -> None:
    @fresh.handler(isolate=Isolate(runs_per_child=50, max_memory="1GB"))
    def parse() -> None: ...

    limits = parse.handler.options.isolate
    assert parse.handler.style is RunStyle.PROCESS
    assert limits is not None
    assert (limits.runs_per_child, limits.memory) == (50, 2**30)
    assert limits.allows(49, 2**30)
    assert not limits.allows(50, 0)
    assert not limits.allows(0, 2**30 + 1)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"max_memory": "1 XB"}, 'max_memory is "1 XB", expected a size like "512MB" or "1.5GB"'),
        ({"max_memory": "much"}, 'max_memory is "much", expected a size'),
        ({"max_memory": -1}, "max_memory is -1, expected a size"),
        ({"max_memory": True}, "max_memory is True, expected a size"),
        ({"max_memory": 512}, "max_memory is 512, expected at least 16MB"),
        ({"max_memory": "1KB"}, 'max_memory is "1KB", expected at least 16MB'),
        ({"runs_per_child": 0}, "runs_per_child is 0, expected a whole number from 1"),
        ({"runs_per_child": True}, "runs_per_child is true, expected a whole number from 1"),
    ],
)
def test_limits_of_children_that_mean_nothing_are_refused_where_they_are_written(
    limits: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Isolate(**limits)


_STYLES: list[Any] = [{"name": "a"}, {"name": "b", "interrupt": True}, {"name": "c", "isolate": True}]


def test_a_handler_keeps_how_it_is_stopped(fresh: Timeball) -> None:
    @fresh.handler(grace="30s", interrupt=True)
    def patient() -> None: ...

    assert (patient.handler.grace, patient.handler.options.interrupt) == (timedelta(seconds=30), True)
    usual = [fresh.handler(**options)(lambda: None).handler.grace for options in _STYLES]
    assert usual == [timedelta(seconds=1), timedelta(seconds=10), timedelta(seconds=10)]


@pytest.mark.parametrize(
    ("options", "problem"), [({"interrupt": True}, "runs in the event loop"), ({"grace": "5s"}, "never ended by force")]
)
def test_a_coroutine_function_is_refused_what_means_nothing_to_it(
    fresh: Timeball, options: dict[str, Any], problem: str
) -> None:
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match=problem):
        fresh.handler(**options)(work)


def test_a_handler_may_list_its_pauses(fresh: Timeball) -> None:
    @fresh.handler(backoff=["5s", 30, timedelta(minutes=5)], retry_on=(OSError, KeyError), expected=KeyError)
    def send() -> None: ...

    options = send.handler.options
    assert options.fields == {"backoff_ms": (5_000, 30_000, 300_000)}
    assert (options.retry_on, options.expected, options.backoff) == ((OSError, KeyError), (KeyError,), None)


def test_a_handler_may_compute_its_pauses(fresh: Timeball) -> None:
    def pause(failures: int, _error: BaseException) -> str:
        return f"{failures}m"

    @fresh.handler(backoff=pause)
    def send() -> None: ...

    assert (send.handler.options.backoff, send.handler.options.fields) == (pause, {})


def test_one_pause_of_an_enqueue_takes_the_place_of_the_handlers_list(fresh: Timeball) -> None:
    @fresh.handler(backoff=["5s", "30s"])
    def send() -> None: ...

    specs = [
        each._request_of(("{}",)).spec for each in (send, send.options(backoff="2s"), send.options(backoff=["1s"]))
    ]

    assert [(spec.backoff_ms, spec.initial_backoff_ms) for spec in specs] == [
        ((5_000, 30_000), 1_000),
        ((), 2_000),
        ((1_000,), 1_000),
    ]


@pytest.mark.parametrize(
    ("isolate", "expected"), [(False, RunStyle.THREAD), (True, RunStyle.PROCESS)], ids=["thread", "process"]
)
def test_isolate_runs_a_handler_in_a_child_process(fresh: Timeball, isolate: bool, expected: RunStyle) -> None:
    @fresh.handler(isolate=isolate)
    def crunch() -> None: ...

    assert crunch.handler.style is expected


def test_declaring_starts_and_opens_nothing(fresh: Timeball) -> None:
    threads = threading.active_count()

    fresh.handler(lambda: None)
    fresh.every("1s", name="tick", arguments={"a": 1})(add.__wrapped__)

    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"priority": 101}, "priority is 101, expected 0 to 100"),
        ({"retries": -1}, "max_retries is -1"),
        ({"timeout": "soon"}, 'timeout is "soon", expected a span'),
        ({"backoff": 0.0001}, "backoff is 0.0001, expected a whole number of milliseconds"),
        ({"queue": ""}, "queue has 0 characters"),
        ({"delivery": "maybe"}, 'delivery is "maybe", expected at_least_once or at_most_once'),
        ({"no_retry": ("ValueError",)}, "no_retry has 'ValueError', expected classes of exceptions"),
        ({"retry_on": "OSError"}, "retry_on has 'OSError', expected classes of exceptions"),
        ({"retry_on": (OSError, 5)}, "retry_on has 5, expected classes of exceptions"),
        ({"retry_on": ()}, "retry_on is empty, expected classes of exceptions"),
        ({"expected": int}, "expected has <class 'int'>, expected classes of exceptions"),
        ({"backoff": []}, "backoff is an empty list, expected a pause for each retry"),
        ({"backoff": ["5s", "soon"]}, 'backoff is "soon", expected a span'),
        ({"backoff": ["1s"] * 101}, "backoff_ms has 101 entries, expected at most 100"),
        ({"backoff": len}, "backoff is <built-in function len>, expected a function of the number of failed attempts"),
        ({"backoff": asyncio.sleep}, "backoff is a coroutine function, expected a plain one"),
        ({"grace": "soon"}, 'grace is "soon", expected a span'),
        ({"grace": "11m"}, 'grace is "11m", expected up to 10m'),
        ({"interrupt": "yes"}, 'interrupt is "yes", expected True or False'),
        (
            {"interrupt": True, "isolate": True},
            "interrupt is for a plain function in a thread, but this handler runs in a child",
        ),
        ({"isolate": "yes"}, 'isolate is "yes", expected True, False or Isolate'),
        ({"tags": "one"}, "tags is str, expected a list"),
        ({"retry": 5}, "@tb.handler has no option 'retry'; known are backoff"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_options_are_refused_at_the_declaration(fresh: Timeball, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem.replace("(", r"\(")):
        fresh.handler(**options)(lambda: None)


def test_a_name_given_by_position_is_refused_with_a_hint(fresh: Timeball) -> None:
    with pytest.raises(InvalidInput, match=r"'mail', expected a function; options have names: @tb.handler\(name=...\)"):
        fresh.handler("mail")  # type: ignore[call-overload]


def test_generators_are_refused(fresh: Timeball) -> None:
    with pytest.raises(InvalidInput, match="is a generator"):

        @fresh.handler
        def pages() -> Any:
            yield 1


def test_two_handlers_of_one_name_are_refused_with_both_locations(fresh: Timeball) -> None:
    fresh.handler(name="twice")(lambda: None)

    with pytest.raises(Conflict, match=r"declared twice: by .*test_handlers.py:\d+ and by"):
        fresh.handler(name="twice")(lambda: None)


def test_a_handle_of_another_timeball_is_refused(fresh: Timeball) -> None:
    with pytest.raises(InvalidInput, match="belongs to another Timeball"):
        fresh.handler(add)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delay": "1m", "at": "2030-01-01T00:00Z"}, "delay and at are both given"),
        ({"delay": "-1s"}, "delay is"),
        ({"prio": 1}, r"options\(\) has no option 'prio'; known are at, backoff"),
    ],
    ids=["both", "negative", "unknown"],
)
def test_wrong_options_of_an_enqueue_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        add.options(**options).enqueue(1)


def test_arguments_that_do_not_fit_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(InvalidInput, match=r"do not fit add\(a: int, b: int = …\): a is missing"):
        add.enqueue(b=2)  # type: ignore[call-arg]


def test_settings_exclude_other_arguments(fresh: Timeball) -> None:
    with pytest.raises(InvalidInput, match="expected one or the other"):
        Timeball("postgresql:///x", settings=fresh.settings)


def test_a_handle_is_an_instance_of_the_public_base_class() -> None:
    assert isinstance(add, HandlerHandle)
    assert isinstance(double, HandlerHandle)


def test_a_misspelt_option_is_refused_with_a_suggestion(fresh: Timeball) -> None:
    with pytest.raises(InvalidInput, match="has no option 'prority'") as refusal:
        fresh.handler(prority=3)  # type: ignore[call-overload]

    assert refusal.value.hint == "did you mean priority?"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"settings": "postgresql://h"}, "settings is str, expected Settings"),
        ({"settings": {"port": 1}}, "settings is dict, expected Settings"),
        (
            {"settings": load_settings(), "database_url": "postgresql://h"},
            "settings are given beside database_url or data_dir, expected one or the other",
        ),
    ],
    ids=["text", "mapping", "both"],
)
def test_settings_of_the_wrong_type_are_refused_by_the_constructor(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refusal:
        Timeball(**arguments)

    assert "load_settings" in (refusal.value.hint or "")
