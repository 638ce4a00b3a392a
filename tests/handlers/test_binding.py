"""Payloads meet parameters: by name, checked, converted; or refused with the name of what does not fit."""

from __future__ import annotations

import enum
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from uuid import UUID

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from timeball.domain.handler import PayloadMismatch
from timeball.errors import InvalidInput, PayloadError
from timeball.handlers.binding import SignatureBinder

if TYPE_CHECKING:
    from pydantic import BaseModel as NeverImported


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    since: date


class Order(BaseModel):
    number: int
    lines: list[str] = []


class Point(NamedTuple):
    x: int
    y: int


class Connection:
    """Means nothing to Pydantic."""


def there_and_back(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    binder = SignatureBinder(function)
    return binder.call(binder.encode(args, kwargs))


def send_receipt(order_id: int, to: str) -> tuple[int, str]:
    return order_id, to


def test_arguments_are_stored_by_the_names_of_their_parameters() -> None:
    binder = SignatureBinder(send_receipt)

    assert orjson.loads(binder.encode((42,), {"to": "x"})) == {"order_id": 42, "to": "x"}
    assert binder.call('{"to": "x", "order_id": 42}') == (42, "x")


def test_a_function_without_parameters_takes_the_empty_object_or_null() -> None:
    binder = SignatureBinder(lambda: "done")

    assert binder.encode((), {}) == "{}"
    assert binder.call("{}") == binder.call("null") == binder.call("{ }") == "done"
    with pytest.raises(PayloadMismatch, match="surplus"):
        binder.call('{"surplus": 1}')


def test_a_default_that_is_not_overridden_is_not_stored() -> None:
    def greet(name: str, greeting: str = "hello", *, loud: bool = False) -> str:
        return f"{greeting} {name}{'!' if loud else ''}"

    assert SignatureBinder(greet).encode(("you",), {}) == '{"name":"you"}'
    assert there_and_back(greet, "you", loud=True) == "hello you!"


def test_every_kind_of_parameter_comes_back_in_its_place() -> None:
    def all_kinds(a: int, b: int = 2, /, c: int = 3, *rest: float, d: str, e: str = "e", **more: date) -> Any:
        return a, b, c, rest, d, e, more

    assert there_and_back(all_kinds, 1, d="d") == (1, 2, 3, (), "d", "e", {})
    assert there_and_back(all_kinds, 1, 5, 6, 7, 8.5, d="d", on=date(2024, 5, 1)) == (
        *(1, 5, 6, (7.0, 8.5), "d", "e"),
        {"on": date(2024, 5, 1)},
    )


def test_a_name_that_two_arguments_share_is_refused() -> None:
    def overlapping(a: int, /, **more: int) -> None: ...

    with pytest.raises(InvalidInput, match="a is given twice"):
        SignatureBinder(overlapping).encode((1,), {"a": 2})


def all_kinds(a: int, b: int = 2, /, c: str = "canary", *, to: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "complaint"),
    [
        (send_receipt, (1,), {}, "to is missing"),
        (send_receipt, (), {}, "order_id is missing; to is missing"),
        (send_receipt, (1, "x", 3), {}, "found 3 values by position, expected 2 at most"),
        (send_receipt, (1,), {"to": "x", "cc": "y"}, "cc is unknown, expected order_id, to"),
        (
            send_receipt,
            (),
            {"orderid": 1, "to": "y"},
            "orderid is unknown: did you mean order_id?; order_id is missing",
        ),
        (send_receipt, (1, "x"), {"to": "y"}, "to is given twice, by position and by name"),
        (all_kinds, (), {"a": 1, "to": "x"}, "a is given by name, expected by position; a is missing"),
        (all_kinds, (1, 2, "c", "to"), {}, "found 4 values by position, expected 3 at most; to is missing"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_enqueue(
    function: Callable[..., Any], args: Any, kwargs: Any, complaint: str
) -> None:
    shapes = {
        send_receipt: "send_receipt(order_id: int, to: str)",
        all_kinds: "all_kinds(a: int, b: int = …, /, c: str = …, *, to: str)",
    }

    with pytest.raises(InvalidInput) as refusal:
        SignatureBinder(function).encode(args, kwargs)

    assert str(refusal.value) == f"the arguments do not fit {shapes[function]}: {complaint}"
    assert refusal.value.hint


@pytest.mark.parametrize(
    ("payload", "field", "complaint"),
    [
        ('{"order_id": "many", "to": "x"}', "/order_id", 'order_id is "many", expected a whole number'),
        ('{"order_id": 1}', "/to", "to is missing"),
        ('{"order_id": 1, "to": "x", "cc": 1}', "/cc", "cc is unknown, expected order_id, to"),
        ('{"orderid": 1, "order_id": 1, "to": "x"}', "/orderid", "orderid is unknown: did you mean order_id?"),
        ('{"order_id": 1, "to": null}', "/to", "to is null, expected text"),
        ('{"to": 5}', "/order_id", "order_id is missing; to is 5, expected text"),
        ("[1, 2]", "", "the payload is a list of 2, expected an object"),
        ("7", "", "the payload is 7, expected an object"),
        ("{", "", "the payload is not valid JSON, expected an object: EOF while parsing an object at line 1 column 1"),
        ("", "", "the payload is not valid JSON, expected an object: EOF while parsing a value at line 1 column 0"),
        ("[" * 10_000, "", "the payload is not valid JSON, expected an object: recursion limit exceeded"),
    ],
)
def test_a_stored_payload_that_does_not_fit_says_which_field(payload: str, field: str, complaint: str) -> None:
    with pytest.raises(PayloadMismatch) as mismatch:
        SignatureBinder(send_receipt).call(payload)

    said = f"the payload does not fit send_receipt(order_id: int, to: str): {complaint}"
    assert str(mismatch.value).startswith(said)
    assert mismatch.value.field == f"payload{field}"
    assert mismatch.value.hint
    assert len(str(mismatch.value)) < 1_000


@pytest.mark.parametrize(
    ("annotation", "value", "complaint"),
    [
        (datetime, "soon", '"soon", expected an instant such as 2026-11-16T06:00:00Z'),
        (date, "2026-13-01", '"2026-13-01", expected a date such as 2026-11-16'),
        (timedelta, "long", '"long", expected a number of seconds, or a duration such as PT30S'),
        (Decimal, "much", '"much", expected a number'),
        (UUID, "x", '"x", expected a UUID'),
        (Colour, "blue", '"blue", expected red'),
        (Address, [], "a list of 0, expected an object"),
        (Order, 5, "5, expected an object"),
        (Point, 5, "5, expected a list or an object"),
        (set[int], 5, "5, expected a list"),
        (tuple[int, ...], "x", '"x", expected a list'),
        (int, 1.5, "1.5, expected a whole number"),
        (bool, "maybe", '"maybe", expected true or false'),
        (Annotated[int, Field(gt=0)], 0, "0, expected more than 0"),
        (Annotated[str, Field(pattern="^a$")], "b", '"b", expected text that matches ^a$'),
        (int | None, "x", '"x", expected a whole number'),
    ],
)
def test_what_an_annotation_expects_is_said_in_our_words(annotation: Any, value: Any, complaint: str) -> None:
    def takes(value: Any) -> Any: ...

    takes.__annotations__["value"] = annotation

    with pytest.raises(PayloadMismatch) as mismatch:
        SignatureBinder(takes).call(orjson.dumps({"value": value}).decode())

    assert str(mismatch.value).endswith(f": value is {complaint}")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (datetime, datetime.fromisoformat("2024-05-01T12:00:00.123456+02:00")),
        (date, date(2024, 5, 1)),
        (timedelta, timedelta(days=3, milliseconds=5)),
        (Decimal, Decimal("12345678901234567890.12")),
        (UUID, UUID(int=7)),
        (Colour, Colour.RED),
        (Address, Address("Main", date(2024, 5, 1))),
        (Order, Order(number=1, lines=["a"])),
        (Point, Point(1, 2)),
        (Path, Path("a/b")),
        (bytes, b"text"),
        (set[int], {1, 2}),
        (tuple[int, ...], (1, 2)),
        (dict[int, str], {1: "one"}),
        (list[Order] | None, None),
        (Annotated[int, Field(gt=0)], 5),
        (float, 3.0),
    ],
)
def test_values_beyond_json_come_back_as_they_were(annotation: Any, value: Any) -> None:
    def takes(value: Any) -> Any:
        return value

    takes.__annotations__["value"] = annotation

    found = there_and_back(takes, value)

    assert found == value
    assert type(found) is type(value)


def test_without_annotations_arguments_pass_as_they_are() -> None:
    def takes(a, b=None):  # type: ignore[no-untyped-def]
        return a, b

    assert there_and_back(takes, [1, {"x": None}], b="2024-05-01") == ([1, {"x": None}], "2024-05-01")


def test_an_annotation_that_cannot_be_used_lets_only_its_own_argument_through() -> None:
    def takes(a: NeverImported, b: int, c: Connection | None = None, *, d: Undefined = 1) -> Any:  # type: ignore[name-defined]  # noqa: F821
        return a, b, c, d

    assert SignatureBinder(takes).call('{"a": "x", "b": "5", "d": "y"}') == ("x", 5, None, "y")


def test_annotations_may_name_what_is_defined_later() -> None:
    binder = SignatureBinder(takes_later)

    assert binder.call('{"value": {"size": "3"}}') == Later(3)


def takes_later(value: Later) -> Later:
    return value


@dataclass
class Later:
    size: int


@pytest.mark.parametrize(
    "name", ["_private", "model_config", "schema", "self", "cls", "validate", "payload", "function"]
)
def test_a_parameter_may_have_any_name(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def takes({name}: int): return {name}", scope)

    binder = SignatureBinder(scope["takes"])

    assert binder.encode((), {name: 5}) == f'{{"{name}":5}}'
    assert binder.call(f'{{"{name}": "5"}}') == 5


def test_methods_partials_and_wrapped_functions_are_bound_by_what_they_take() -> None:
    class Shop:
        def sell(self, amount: int) -> int:
            return amount

    @wraps(send_receipt)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return send_receipt(*args, **kwargs)

    assert there_and_back(Shop().sell, 3) == 3
    assert there_and_back(partial(send_receipt, 1), to="x") == (1, "x")
    assert there_and_back(wrapped, 1, "x") == (1, "x")


@pytest.mark.parametrize("value", [object(), {"deep": [lambda: None]}, 2**70, "\ud800", {1, object()}, Connection()])
def test_what_is_no_json_is_refused_by_the_name_of_its_argument(value: Any) -> None:
    with pytest.raises(PayloadError, match="to is not JSON") as refusal:
        SignatureBinder(send_receipt).encode((1, value), {})

    assert refusal.value.field == "to"


@pytest.mark.parametrize("value", [float("nan"), [1, float("inf")], {"x": (float("-inf"),)}])
def test_numbers_json_does_not_know_are_refused_and_not_turned_into_null(value: Any) -> None:
    with pytest.raises(PayloadError, match="to contains NaN"):
        SignatureBinder(send_receipt).encode((1, value), {})

    assert SignatureBinder(send_receipt).encode((1, None), {}) == '{"order_id":1,"to":null}'


def test_nul_is_refused_but_not_the_text_of_its_escape() -> None:
    with pytest.raises(PayloadError, match="to contains a NUL"):
        SignatureBinder(send_receipt).encode((1, ["a\0b"]), {})

    assert there_and_back(send_receipt, 1, "\\u0000") == (1, "\\u0000")


def test_what_is_too_large_or_too_deep_is_refused() -> None:
    deep: Any = []
    for _ in range(120):
        deep = [deep]
    circular: list[Any] = []
    circular.append(circular)

    with pytest.raises(PayloadError, match="expected at most 262144"):
        SignatureBinder(send_receipt).encode((1, "x" * 300_000), {})
    with pytest.raises(PayloadError, match="to is nested more than 100"):
        SignatureBinder(send_receipt).encode((1, deep), {})
    with pytest.raises(PayloadError, match="to is not JSON"):
        SignatureBinder(send_receipt).encode((1, circular), {})
    with pytest.raises(PayloadError, match="to is not JSON"):
        SignatureBinder(send_receipt).encode((1, {1: circular}), {})


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, json_values)
def test_any_json_comes_back_or_is_refused(first: Any, second: Any) -> None:
    def takes(first, *, second):  # type: ignore[no-untyped-def]
        return first, second

    try:
        assert there_and_back(takes, first, second=second) == (first, second)
    except PayloadError as refusal:
        assert "NUL" in str(refusal) or "surrogates" in str(refusal)  # noqa: PT017


@given(st.text(max_size=100))
def test_no_payload_gets_anything_but_a_mismatch_out_of_a_binder(payload: str) -> None:
    with suppress(PayloadMismatch):
        SignatureBinder(send_receipt).call(payload)


def test_a_secret_that_does_not_fit_is_not_told() -> None:
    def send(to: str) -> None: ...

    with pytest.raises(PayloadMismatch) as caught:
        SignatureBinder(send).call('{"to": "a@b.co", "api_token": "canary-77"}')

    assert "api_token" in str(caught.value)
    assert "canary-77" not in str(caught.value)
