"""What handlers should never return, raise or say, and do: values that no database can hold, and classes that break what they touch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any, NoReturn

import orjson
from hypothesis import strategies as st

from timeball.current import Cancel, Retry, Snooze

LONE_SURROGATE = "\ud800"


class Odd(str):
    """Text whose every method is broken."""

    __slots__ = ()

    def __str__(self) -> str:
        raise SystemExit("no text")

    def _broken(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(LONE_SURROGATE)

    encode = replace = strip = __repr__ = __format__ = _broken  # type: ignore[assignment]


class Untold(Exception):
    """An error without a text, or a repr, or a way to be copied."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    __repr__ = __str__

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no copy")

    @property
    def __notes__(self) -> NoReturn:
        raise RuntimeError("no notes")


class _Liar(type):
    @property
    def __module__(cls) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no module")


class Nameless(Exception, metaclass=_Liar):
    """An error whose class has no module."""


class Classless:
    """What says something else of its class whenever it is asked."""

    @property
    def __class__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no class")


class ClasslessError(Exception):
    """An error that says something else of its class whenever it is asked."""

    __class__ = vars(Classless)["__class__"]


class Colour(StrEnum):
    """Text that is a choice, too."""

    RED = "r\0d"


@dataclass
class Point:
    """A dataclass that holds anything."""

    x: Any


class Endless(dict[str, Any]):
    """A mapping that cannot be walked."""

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")

    def items(self) -> NoReturn:
        raise RuntimeError("no items")


def surrogate_class() -> Exception:
    """An error whose class stands in a module that has no name."""
    return _of_class(f"Odd{LONE_SURROGATE}", f"m{LONE_SURROGATE}\0", ["text", LONE_SURROGATE])


def _of_class(qualname: str, module: Any, arguments: list[Any]) -> Exception:
    kind = type("Odd", (Exception,), {"__module__": module})
    kind.__qualname__ = qualname
    error: Exception = kind(*arguments)
    return error


def cyclic() -> Exception:
    """An error that was raised from itself."""
    error = ValueError("round")
    error.__cause__ = RuntimeError("and round")
    error.__cause__.__cause__ = error
    return error


def noted() -> Exception:
    """An error with notes that are none."""
    error = ValueError("see the notes")
    error.add_note(LONE_SURROGATE)
    error.__notes__ += [Odd("x"), 5, None]  # type: ignore[list-item]
    return error


def set_later(word: Any, **attributes: Any) -> Any:
    """A word whose attributes were changed after it was checked."""
    for name, value in attributes.items():
        setattr(word, name, value)
    return word


def nested(depth: int) -> Any:
    """Lists in lists."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


RETURNED: list[Any] = [
    orjson.Fragment(b"no JSON"),
    orjson.Fragment(b'{"a": "\\ud800"}'),
    orjson.Fragment(b"\xff\xfe"),
    orjson.Fragment(b"1e400"),
    orjson.Fragment(b"1" * 200_000),
    orjson.Fragment(b"[" * 900 + b"]" * 900),
    orjson.Fragment(b'"\\u0000"'),
    {"inside": [orjson.Fragment(b"]")]},
    LONE_SURROGATE,
    {LONE_SURROGATE: 1},
    "a\0b",
    {"a\0": "b\0"},
    2**64,
    -(2**70),
    10**5000,
    math.inf,
    math.nan,
    Decimal("1e400"),
    nested(300),
    nested(100_000),
    "x" * 10**6,
    Odd("odd"),
    Colour.RED,
    Point(LONE_SURROGATE),
    Point(Point(orjson.Fragment(b"{"))),
    Endless(a=1),
    Classless(),
    b"\xff",
    object(),
    Snooze,
    set_later(Snooze("1s"), delay="soon"),
    set_later(Snooze("1s"), delay=math.nan),
    Cancel(Odd("odd")),
    Cancel(LONE_SURROGATE),
    set_later(Cancel(), reason=Untold()),
    Snooze("10000w"),
]


def raised() -> list[BaseException]:
    """Errors, made anew: each keeps the traceback of where it was raised."""
    return [
        surrogate_class(),
        cyclic(),
        noted(),
        Untold("untold"),
        Nameless("nameless"),
        ClasslessError("classless"),
        ValueError(LONE_SURROGATE, "\0", Odd("x")),
        ValueError(10**5000),
        ValueError("x" * 10**6),
        type("X" * 5_000, (Exception,), {"__module__": 7})("a long name"),
        ExceptionGroup(LONE_SURROGATE, [surrogate_class(), ExceptionGroup("inner", [Untold(), cyclic()])]),
        Retry(LONE_SURROGATE, after="1s"),
        set_later(Retry(), after=object()),
        SystemExit(LONE_SURROGATE),
        UnicodeEncodeError("utf-8", LONE_SURROGATE, 0, 1, "no"),
    ]


# for hypothesis

texts = st.text(st.characters(exclude_categories=[]), max_size=30) | st.builds(Odd, st.text(max_size=5))
_scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=2**63, max_value=2**65)
    | st.floats()
    | texts
    | st.binary(max_size=10)
    | st.decimals()
    | st.binary(max_size=10).map(orjson.Fragment)
    | st.text('[]{}",:0123456789eE+-.\\u', max_size=20).map(lambda text: orjson.Fragment(text.encode()))
    | st.builds(object)
)
values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=[]), max_size=5) | st.integers(), inner, max_size=4)
        | st.builds(Point, inner)
        | st.tuples(inner)
    ),
    max_leaves=12,
)
errors = st.recursive(
    st.builds(
        _of_class,
        st.text(st.characters(exclude_categories=[]), max_size=10),
        texts | st.integers() | st.none(),
        st.lists(values, max_size=3),
    )
    | st.builds(Untold),
    lambda inner: st.builds(
        lambda text, errors: ExceptionGroup(text, errors),
        st.text(st.characters(exclude_categories=[]), max_size=5),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=4,
)
