"""Requests to the API as values, how their responses are parsed, and the client methods made of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload
from urllib.parse import quote

import orjson
from pydantic import BaseModel, ValidationError

from timeball.domain.values.field_errors import errors_from_pydantic, summarize
from timeball.errors import InvalidInput, ResultTimeout, ServerError

if TYPE_CHECKING:
    from timeball.client.clients import AsyncClient, Client


# What is asked of the API, as values: a request, and how to read its answer. Nothing here sends anything.

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Parser = Callable[[bytes], T]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    """One request to the API, and how its answer is read."""

    method: str
    path: str
    read: Parser[T]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Statuses from 400 on whose content is an answer all the same.
    accepted_statuses: frozenset[int] = frozenset()

    def with_params(self, **params: Any) -> ApiRequest[T]:
        """The same, with other parameters beside its own."""
        return replace(self, params={**self.params, **encode_params(params)})


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `total` is there if it was asked for."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Poll(Generic[T]):
    """A question that is asked until its answer says that something is over, or until *timeout* seconds have passed."""

    subject: str
    request: ApiRequest[T]
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


def parse_model(model: type[Model]) -> Parser[Model]:
    """Reads an answer as a model; fields that this program does not know are passed over."""
    return lambda content: validate_model(model, parse_json(content))


def parse_list(model: type[Model]) -> Parser[list[Model]]:
    """Reads the items of a whole list."""
    return lambda content: [validate_model(model, item) for item in parse_json(content)["data"]]


def parse_page(model: type[Model]) -> Parser[Page[Model]]:
    """Reads a part of a list."""

    def read(content: bytes) -> Page[Model]:
        document = parse_json(content)
        return Page(
            data=[validate_model(model, item) for item in document["data"]],
            next_cursor=document.get("next_cursor"),
            has_more=document.get("has_more", False),
            total=document.get("total"),
            total_is_exact=document.get("total_is_exact"),
        )

    return read


def parse_nothing(_content: bytes) -> None:
    """Reads an answer that has no content."""
    return


def raw_content(content: bytes) -> bytes:
    """Reads nothing at all: the content as it came."""
    return content


def parse_json(content: bytes) -> Any:
    """Reads whatever JSON there is."""
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise _unexpected_response("the response is not valid JSON") from None


def validate_model(model: type[Model], document: Any) -> Model:
    """A document as a model; ServerError if it is none."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        errors = errors_from_pydantic(problems, document, "the response", shows_value=False)
        raise _unexpected_response(f"the response is not a {model.__name__}: {summarize(errors)}") from None


def _unexpected_response(message: str) -> ServerError:
    return ServerError.from_response(
        message,
        code="answer_not_understood",
        hint="is this a Timeball server? if it is, bring this program up to its release",
    )


def get(path: str, read: Parser[T], **params: Any) -> ApiRequest[T]:
    """A question."""
    return ApiRequest("GET", path, read, encode_params(params))


def post(path: str, read: Parser[T], body: Mapping[str, Any] | None = None, **params: Any) -> ApiRequest[T]:
    """Something to do. It is sent with an Idempotency-Key, so that sending it twice does it once."""
    return ApiRequest("POST", path, read, encode_params(params), {} if body is None else encode_params(body))


def path_of(*steps: str) -> str:
    """A path; whatever stands in its steps, no step becomes two, or none."""
    for step in steps:
        if step in ("", ".", ".."):
            raise InvalidInput(
                f'a name or id is "{step}", expected that of something there is', hint="list what there is"
            )
    return "".join(f"/{quote(step, safe='')}" for step in steps)


def encode_params(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, as JSON and URLs spell them."""
    return {name.rstrip("_"): encode_value(value) for name, value in fields.items() if value is not None}


def encode_value(value: Any) -> Any:
    """A value as it is sent: instants in UTC; a time without an offset stays one, and is meant on the job's clock."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


# The verbs of the client, written once for both faces.
#
# A verb is a function that makes a `Call`. Found on a `Client` it carries the call out and returns what the answer means; found
# on an `AsyncClient` it returns something to await. Type checkers see the same: arguments and results are those of the function.

P = ParamSpec("P")
Result = TypeVar("Result")
ClientType = TypeVar("ClientType")


class Resource(Generic[ClientType]):
    """Verbs about one thing: `client.jobs`, `client.queues`."""

    def __init__(self, client: ClientType) -> None:
        self.client = client


class Method(Generic[P, Result]):
    """One call."""

    def __init__(self, make: Callable[P, ApiRequest[Result]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> Method[P, Result]: ...
    @overload
    def __get__(self, resource: Resource[Client], owner: type) -> Callable[P, Result]: ...
    @overload
    def __get__(self, resource: Resource[AsyncClient], owner: type) -> Callable[P, Awaitable[Result]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return _with_docs_of(self._make, lambda *args, **kwargs: resource.client.perform(self._make(*args, **kwargs)))


class WaitMethod(Generic[P, Result]):
    """One call, again and again, until its answer says that something is over."""

    def __init__(self, make: Callable[P, Poll[Result]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> WaitMethod[P, Result]: ...
    @overload
    def __get__(self, resource: Resource[Client], owner: type) -> Callable[P, Result]: ...
    @overload
    def __get__(self, resource: Resource[AsyncClient], owner: type) -> Callable[P, Awaitable[Result]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return _with_docs_of(self._make, lambda *args, **kwargs: resource.client.poll(self._make(*args, **kwargs)))


class IterateMethod(Generic[P, Result]):
    """All items of a list, page after page, as they are asked for."""

    def __init__(self, make: Callable[P, ApiRequest[Page[Result]]]) -> None:
        self._make = make
        self.__doc__ = f"{make.__doc__} All of them, page after page."

    @overload
    def __get__(self, resource: None, owner: type) -> IterateMethod[P, Result]: ...
    @overload
    def __get__(self, resource: Resource[Client], owner: type) -> Callable[P, Iterator[Result]]: ...
    @overload
    def __get__(self, resource: Resource[AsyncClient], owner: type) -> Callable[P, AsyncIterator[Result]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return _with_docs_of(self._make, lambda *args, **kwargs: resource.client.iterate(self._make(*args, **kwargs)))


class DownloadMethod(Generic[P]):
    """Bytes, as they come: for what is too large to be held."""

    def __init__(self, make: Callable[P, ApiRequest[bytes]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, resource: None, owner: type) -> DownloadMethod[P]: ...
    @overload
    def __get__(self, resource: Resource[Client], owner: type) -> Callable[P, Iterator[bytes]]: ...
    @overload
    def __get__(self, resource: Resource[AsyncClient], owner: type) -> Callable[P, AsyncIterator[bytes]]: ...
    def __get__(self, resource: Any, owner: type) -> Any:
        if resource is None:
            return self
        return _with_docs_of(self._make, lambda *args, **kwargs: resource.client.download(self._make(*args, **kwargs)))


def _with_docs_of(model: Callable[..., Any], function: Any) -> Any:
    """*function*, introduced as *model* would be: `help(client.jobs.create)` tells something."""
    function.__doc__, function.__name__ = model.__doc__, model.__name__
    function.__wrapped__ = model
    return function
