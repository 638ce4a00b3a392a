"""Requests to the API as values, how their responses are parsed, and the client methods made of them.

A method of a resource is a function that builds an `ApiRequest`. On a `Client` it carries out the request and returns the parsed
response; on an `AsyncClient` it returns an awaitable. Type checkers see the arguments and the result of the function.
"""

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


T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Parser = Callable[[bytes], T]
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[T]):
    """One request to the API, and how its response is parsed."""

    method: str
    path: str
    read: Parser[T]
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Statuses of 400 and above whose content is parsed like that of a success.
    accepted_statuses: frozenset[int] = frozenset()

    def with_params(self, **params: Any) -> ApiRequest[T]:
        """The same request with more parameters."""
        return replace(self, params={**self.params, **encode_params(params)})


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A page of a list; `total` is set if it was requested."""

    data: list[T]
    next_cursor: str | None
    has_more: bool
    total: int | None = None
    total_is_exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Poll(Generic[T]):
    """A request that is repeated until its response says that something has finished, or until *timeout* seconds have passed."""

    subject: str
    request: ApiRequest[T]
    is_over: Callable[[T], bool]
    timeout: float | None = None

    def pauses(self) -> Iterator[float]:
        """The seconds to wait between two requests; ResultTimeout when the timeout is used up."""
        waited, pause = 0.0, _FIRST_PAUSE
        while self.timeout is None or waited < self.timeout:
            pause = pause if self.timeout is None else min(pause, self.timeout - waited)
            yield pause
            waited, pause = waited + pause, min(pause * 1.5, _LONGEST_PAUSE)
        raise ResultTimeout(f"{self.subject} has not finished within {self.timeout:g} seconds; it goes on")


def parse_model(model: type[Model]) -> Parser[Model]:
    """Parses a response as a model; fields that this program does not know are ignored."""
    return lambda content: validate_model(model, parse_json(content))


def parse_list(model: type[Model]) -> Parser[list[Model]]:
    """Parses the items of a whole list."""
    return lambda content: [validate_model(model, item) for item in parse_json(content)["data"]]


def parse_page(model: type[Model]) -> Parser[Page[Model]]:
    """Parses a page of a list."""

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
    """The content of a response, unparsed."""
    return content


def parse_json(content: bytes) -> Any:
    """Parses any JSON."""
    try:
        return orjson.loads(content) if content else None
    except orjson.JSONDecodeError:
        raise _unexpected_response("the response is not valid JSON") from None


def validate_model(model: type[Model], document: Any) -> Model:
    """A document as a model; ServerError if it does not fit."""
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
        hint="check that this is a Timeball server, and that this program is not older than it",
    )


def get(path: str, read: Parser[T], **params: Any) -> ApiRequest[T]:
    """A GET request."""
    return ApiRequest("GET", path, read, encode_params(params))


def post(path: str, read: Parser[T], body: Mapping[str, Any] | None = None, **params: Any) -> ApiRequest[T]:
    """A POST request. It is sent with an Idempotency-Key, so that it is carried out once if it is sent twice."""
    return ApiRequest("POST", path, read, encode_params(params), {} if body is None else encode_params(body))


def path_of(*steps: str) -> str:
    """A path of escaped steps: no step can become two steps, or none."""
    for step in steps:
        if step in ("", ".", ".."):
            raise InvalidInput(f'the name or id is "{step}", expected an existing one', hint="list what there is")
    return "".join(f"/{quote(step, safe='')}" for step in steps)


def encode_params(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were given, as JSON and URLs write them."""
    return {name.rstrip("_"): encode_value(value) for name, value in fields.items() if value is not None}


def encode_value(value: Any) -> Any:
    """A value as it is sent: instants in UTC; a time without an offset stays so, and is on the clock of the job."""
    if not isinstance(value, datetime):
        return value
    return value.isoformat() if value.tzinfo is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


P = ParamSpec("P")
Result = TypeVar("Result")
ClientType = TypeVar("ClientType")


class Resource(Generic[ClientType]):
    """The methods of one resource: `client.jobs`, `client.queues`."""

    def __init__(self, client: ClientType) -> None:
        self.client = client


class Method(Generic[P, Result]):
    """A method that sends one request."""

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
    """A method that repeats a request until something has finished."""

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
    """A method that yields all items of a list, page after page."""

    def __init__(self, make: Callable[P, ApiRequest[Page[Result]]]) -> None:
        self._make = make
        self.__doc__ = f"{make.__doc__} All pages, one after the other."

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
    """A method that yields the content of a response as it arrives."""

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
    """*function* with the name and docstring of *model*, for `help(client.jobs.create)`."""
    function.__doc__, function.__name__ = model.__doc__, model.__name__
    function.__wrapped__ = model
    return function
