"""The options of other job queues: each is refused with its name here, which exists."""

from __future__ import annotations

import re

import pytest

from timeball import InvalidInput, Timeball
from timeball.sdk.counterparts import COUNTERPARTS
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
