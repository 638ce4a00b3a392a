"""The options of other job queues: each is refused with its name here, which exists."""

from __future__ import annotations

import re
from typing import Any

import pytest

from timeball import InvalidInput, Timeball
from timeball.handlers.counterparts import CALLS, COUNTERPARTS, ENQUEUE_WORDS
from timeball.sdk.options import EnqueueOptions, HandlerDeclaration, ScheduleOptions, ScheduleParams

OPTIONS = {
    word
    for options in (EnqueueOptions, HandlerDeclaration, ScheduleOptions, ScheduleParams)
    for word in options.__optional_keys__
}


@pytest.mark.parametrize(("foreign", "here"), sorted(COUNTERPARTS.items()))
def test_a_counterpart_exists(foreign: str, here: str) -> None:
    named = re.findall(r"(\w+)=", here) + re.findall(r"^(\w+)(?=,|;|$| or)", here)
    members = re.findall(r"tb\.(\w+)", here)

    assert foreign not in OPTIONS, "an option of ours needs no counterpart"
    assert {word for word in named if word not in ("nothing", "inline")} <= OPTIONS
    assert all(hasattr(Timeball, member) for member in members)
    assert named or members or here.startswith("nothing: ")


def test_an_option_of_celery_is_refused_with_its_name_here() -> None:
    fresh = Timeball()

    @fresh.handler(name="send")
    def send() -> None: ...

    with pytest.raises(InvalidInput, match=r"options\(\) has no option 'countdown'") as refusal:
        send.options(countdown=60)  # type: ignore[call-arg]

    assert refusal.value.hint == 'countdown of other job queues is here: options(delay="10m")'


def fresh_handler() -> Any:
    fresh = Timeball()

    @fresh.handler(name="send")
    def send(order_id: int, rest: str = "") -> None: ...

    return send


def test_an_option_of_the_function_says_where_it_belongs() -> None:
    with pytest.raises(InvalidInput) as refusal:
        fresh_handler().options(retry_on=LookupError)

    assert refusal.value.hint == "it belongs to the function, and holds for every call: @tb.handler(retry_on=...)"


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"countdown": 60}, 'countdown of other job queues is here: options(delay="10m")'),
        ({"eta": None}, "eta of other job queues is here: options(at=...)"),
        ({"delay": 60}, "delay is an option and not an argument: options(delay=...).enqueue(...)"),
        ({"kwargs": {}}, "give one value for each parameter that has no default, by position or by name"),
    ],
)
def test_an_option_among_the_arguments_is_told_where_it_belongs(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(InvalidInput, match="is unknown, expected") as refusal:
        fresh_handler().enqueue(42, **arguments)

    assert refusal.value.hint == hint


def test_an_argument_of_that_name_stays_an_argument() -> None:
    fresh = Timeball(inline=True)

    @fresh.handler(name="launch")
    def launch(countdown: int) -> int:
        return countdown

    assert launch.enqueue(countdown=3).result() == 3


def test_the_options_of_an_enqueue_are_known_by_name() -> None:
    assert EnqueueOptions.__optional_keys__ == ENQUEUE_WORDS


@pytest.mark.parametrize(("call", "here"), sorted(CALLS.items()))
def test_a_call_of_another_library_is_told_what_it_is_called_here(call: str, here: str) -> None:
    send = fresh_handler()

    with pytest.raises(AttributeError) as refusal:
        getattr(send, call)

    assert str(refusal.value).endswith(f"has no attribute {call!r}; {call} of other job queues is here: {here}")
    assert refusal.value.name == call
    methods = re.findall(r"(?:^|[ .])(a?enqueue|call|options)\(", here)
    assert all(hasattr(send, method) for method in methods)


def test_any_other_attribute_is_just_missing() -> None:
    with pytest.raises(AttributeError, match=r"^'SyncHandlerHandle' object has no attribute 'colour'$"):
        _ = fresh_handler().colour
    assert not hasattr(fresh_handler(), "__deepcopy__")
