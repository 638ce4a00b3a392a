"""The verbs of the client, written once for both faces.

A verb is a function that makes a `Call`. Found on a `Client` it carries the call out and returns what the answer means; found
on an `AsyncClient` it returns something to await. Type checkers see the same: arguments and results are those of the function.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from timeball.client.calls import Awaited, Call, Page

if TYPE_CHECKING:
    from timeball.client.faces import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
Face = TypeVar("Face")


class Group(Generic[Face]):
    """Verbs about one thing: `client.jobs`, `client.queues`."""

    def __init__(self, face: Face) -> None:
        self.face = face


class Verb(Generic[P, T]):
    """One call."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, group: None, owner: type) -> Verb[P, T]: ...
    @overload
    def __get__(self, group: Group[Client], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AsyncClient], owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, group: Any, owner: type) -> Any:
        if group is None:
            return self
        return _like(self._make, lambda *args, **kwargs: group.face.perform(self._make(*args, **kwargs)))


class Await(Generic[P, T]):
    """One call, again and again, until its answer says that something is over."""

    def __init__(self, make: Callable[P, Awaited[T]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, group: None, owner: type) -> Await[P, T]: ...
    @overload
    def __get__(self, group: Group[Client], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, group: Group[AsyncClient], owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, group: Any, owner: type) -> Any:
        if group is None:
            return self
        return _like(self._make, lambda *args, **kwargs: group.face.await_end(self._make(*args, **kwargs)))


class Walk(Generic[P, T]):
    """All items of a list, page after page, as they are asked for."""

    def __init__(self, make: Callable[P, Call[Page[T]]]) -> None:
        self._make = make
        self.__doc__ = f"{make.__doc__} All of them, page after page."

    @overload
    def __get__(self, group: None, owner: type) -> Walk[P, T]: ...
    @overload
    def __get__(self, group: Group[Client], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, group: Group[AsyncClient], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, group: Any, owner: type) -> Any:
        if group is None:
            return self
        return _like(self._make, lambda *args, **kwargs: group.face.walk(self._make(*args, **kwargs)))


class Download(Generic[P]):
    """Bytes, as they come: for what is too large to be held."""

    def __init__(self, make: Callable[P, Call[bytes]]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, group: None, owner: type) -> Download[P]: ...
    @overload
    def __get__(self, group: Group[Client], owner: type) -> Callable[P, Iterator[bytes]]: ...
    @overload
    def __get__(self, group: Group[AsyncClient], owner: type) -> Callable[P, AsyncIterator[bytes]]: ...
    def __get__(self, group: Any, owner: type) -> Any:
        if group is None:
            return self
        return _like(self._make, lambda *args, **kwargs: group.face.download(self._make(*args, **kwargs)))


def _like(model: Callable[..., Any], function: Any) -> Any:
    """*function*, introduced as *model* would be: `help(client.jobs.create)` tells something."""
    function.__doc__, function.__name__ = model.__doc__, model.__name__
    function.__wrapped__ = model
    return function
