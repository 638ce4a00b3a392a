"""What is asked of the API, as values: a request, and how to read its answer. Nothing here sends anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ValidationError

from timeball.errors import InvalidInput, ResultTimeout, ServerError

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Read = Callable[[bytes], T]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request to the API, and how its answer is read."""

    method: str
    path: str
    read: Read[T]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Statuses from 400 on whose content is an answer all the same.
    also_fine: frozenset[int] = frozenset()

    def having(self, **params: Any) -> Call[T]:
        """The same, with other parameters beside its own."""
        return replace(self, params={**self.params, **given(params)})


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `total` is there if it was asked for."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Awaited(Generic[T]):
    """A question that is asked until its answer says that something is over, or until *timeout* seconds have passed."""

    subject: str
    question: Call[T]
    is_over: Callable[[T], bool]
    timeout: float | None = None

    def pauses(self) -> Iterator[float]:
        """How long to rest between two questions, in seconds; ResultTimeout when the timeout has been rested away."""
        rested, pause = 0.0, _FIRST_PAUSE
        while self.timeout is None or rested < self.timeout:
            pause = pause if self.timeout is None else min(pause, self.timeout - rested)
            yield pause
            rested, pause = rested + pause, min(pause * 1.5, _LONGEST_PAUSE)
        raise ResultTimeout(f"{self.subject} has not ended within {self.timeout:g} seconds; it goes on")


def a(model: type[Model]) -> Read[Model]:
    """Reads an answer as a model; fields that this program does not know are passed over."""
    return lambda content: fitted(model, anything(content))


def many(model: type[Model]) -> Read[list[Model]]:
    """Reads the items of a whole list."""
    return lambda content: [fitted(model, item) for item in anything(content)["data"]]


def a_page(model: type[Model]) -> Read[Page[Model]]:
    """Reads a part of a list."""

    def read(content: bytes) -> Page[Model]:
        document = anything(content)
        return Page(
            data=[fitted(model, item) for item in document["data"]],
            next_cursor=document.get("next_cursor"),
            has_more=document.get("has_more", False),
            total=document.get("total"),
            total_is_exact=document.get("total_is_exact"),
        )

    return read


def nothing(_content: bytes) -> None:
    """Reads an answer that has no content."""
    return


def raw(content: bytes) -> bytes:
    """Reads nothing at all: the content as it came."""
    return content


def anything(content: bytes) -> Any:
    """Reads whatever JSON there is."""
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise _not_understood("the answer is not JSON") from None


def fitted(model: type[Model], document: Any) -> Model:
    """A document as a model; ServerError if it is none."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = "/".join(map(str, problem["loc"]))
        raise _not_understood(f"the answer is no {model.__name__}: {problem['msg']} at /{where}") from None


def _not_understood(message: str) -> ServerError:
    return ServerError.told(
        message,
        code="answer_not_understood",
        hint="is this a Timeball server? if it is, bring this program up to its release",
    )


def get(path: str, read: Read[T], **params: Any) -> Call[T]:
    """A question."""
    return Call("GET", path, read, given(params))


def post(path: str, read: Read[T], body: Mapping[str, Any] | None = None, **params: Any) -> Call[T]:
    """Something to do. It is sent with an Idempotency-Key, so that sending it twice does it once."""
    return Call("POST", path, read, given(params), {} if body is None else given(body))


def at(*steps: str) -> str:
    """A path; whatever stands in its steps, no step becomes two, or none."""
    for step in steps:
        if step in ("", ".", ".."):
            raise InvalidInput(
                f'a name or id is "{step}", expected that of something there is', hint="list what there is"
            )
    return "".join(f"/{quote(step, safe='')}" for step in steps)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, as JSON and URLs spell them."""
    return {name.rstrip("_"): spelled(value) for name, value in fields.items() if value is not None}


def spelled(value: Any) -> Any:
    """A value as it is sent: instants in UTC; a time without an offset stays one, and is meant on the job's clock."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")
