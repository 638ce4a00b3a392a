"""The search language of every front: `status:dead queue:mail handler:app.mail.* payload.user.id:42 after:-2h -tag:test`.

A term names a field, so that every search is a question the store can answer: `field:value`, with `*` for any text,
commas for alternatives, `>` and `<` for numbers and spans, quotes around what contains blanks, and a minus before what must
not be. A bare word is looked for in names and ids. All terms must hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeAlias

from timeball.domain.civil_time import read_moment
from timeball.domain.execution import Origin, parse_states
from timeball.domain.instants import shown
from timeball.domain.job import JobStatus
from timeball.domain.schedule import ScheduleKind
from timeball.domain.spans import parse_span
from timeball.errors import InvalidInput

LONGEST = 1_000
MOST_TERMS = 30
_TERM = re.compile(r'(-?)((?:"[^"]*"|[^\s"])+)')
_FIELD = re.compile(r"([A-Za-z_]+(?:\.[^:\"\s]+)?):(.*)", re.DOTALL)

Value: TypeAlias = str | int | timedelta | datetime


class Kind(StrEnum):
    """What the values of a field are."""

    TEXT = "text"
    STATE = "state"
    CHOICE = "choice"
    NUMBER = "number"
    SPAN = "span"
    MOMENT = "moment"
    JSON = "json"


class Relation(StrEnum):
    """How a field must stand to a value."""

    IS = "is"
    LIKE = "like"
    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class Term:
    """One thing that must hold, or must not: the field stands so to one of the values. An instant may be a span from now."""

    field: str
    relation: Relation
    values: tuple[Value, ...]
    path: tuple[str, ...] = ()
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """A field that can be named in a search."""

    kind: Kind
    choices: tuple[str, ...] = ()


_SHARED = {
    "queue": Field(Kind.TEXT),
    "handler": Field(Kind.TEXT),
    "tag": Field(Kind.TEXT),
    "created_by": Field(Kind.TEXT),
    "priority": Field(Kind.NUMBER),
    "payload": Field(Kind.JSON),
    "after": Field(Kind.MOMENT),
    "before": Field(Kind.MOMENT),
}
EXECUTION_FIELDS: Mapping[str, Field] = _SHARED | {
    "status": Field(Kind.STATE),
    "job": Field(Kind.TEXT),
    "worker": Field(Kind.TEXT),
    "error": Field(Kind.TEXT),
    "fingerprint": Field(Kind.TEXT),
    "settled": Field(Kind.CHOICE, ("yes", "no")),
    "origin": Field(Kind.CHOICE, tuple(Origin)),
    "attempts": Field(Kind.NUMBER),
    "late": Field(Kind.SPAN),
    "waits": Field(Kind.SPAN),
    "took": Field(Kind.SPAN),
}
JOB_FIELDS: Mapping[str, Field] = _SHARED | {
    "status": Field(Kind.STATE, tuple(JobStatus)),
    "name": Field(Kind.TEXT),
    "kind": Field(Kind.CHOICE, tuple(ScheduleKind)),
    "zone": Field(Kind.TEXT),
}


def parse_query(text: str, fields: Mapping[str, Field]) -> tuple[Term, ...]:
    """The terms of a search; InvalidInput says which of them does not fit, and what would."""
    if len(text) > LONGEST or "\0" in text:
        raise InvalidInput(f"the search is longer than {LONGEST} characters, or contains a NUL", field="q")
    if text.count('"') % 2:
        raise InvalidInput(f"the search {shown(text)!r} has a quote that does not end", field="q", hint='"two words"')
    terms = tuple(_term(word, fields, is_negated=bool(minus)) for minus, word in _TERM.findall(text))
    if len(terms) > MOST_TERMS:
        raise InvalidInput(f"the search has {len(terms)} terms, expected at most {MOST_TERMS}", field="q")
    return terms


def _term(word: str, fields: Mapping[str, Field], *, is_negated: bool) -> Term:
    found = None if word.startswith('"') else _FIELD.fullmatch(word)
    if found is None:
        return Term("", Relation.LIKE, (word.replace('"', ""),), is_negated=is_negated)
    name, *path = found[1].split(".")
    field = fields.get(name)
    if field is None or bool(path) != (field.kind is Kind.JSON):
        raise _unknown(found[1], fields)
    return _valued(name, tuple(path), field, found[2], is_negated)


def _valued(name: str, path: tuple[str, ...], field: Field, given: str, is_negated: bool) -> Term:
    text, relation = given, Relation.IS
    if given[:1] in (">", "<") and field.kind in (Kind.NUMBER, Kind.SPAN):
        text, relation = given[1:], Relation.MORE if given[0] == ">" else Relation.LESS
    elif field.kind is Kind.SPAN:
        relation = Relation.MORE
    words = [text.replace('"', "")] if '"' in text else text.split(",")
    if not all(words):
        raise InvalidInput(f"{name}: is followed by nothing", field="q", hint=f"write {name}:value, without a blank")
    if field.kind in (Kind.TEXT, Kind.JSON) and any("*" in word for word in words) and '"' not in text:
        relation = Relation.LIKE
    values = tuple(value for word in words for value in _values(name, field, word))
    return Term(name, relation, values, path, is_negated)


def _values(name: str, field: Field, word: str) -> tuple[Value, ...]:
    match field.kind:
        case Kind.TEXT | Kind.JSON:
            return (word,)
        case Kind.STATE:
            return (word,) if word in field.choices else parse_states([word], "status")
        case Kind.CHOICE:
            return (_chosen(name, field, word),)
        case Kind.NUMBER:
            return (_number(name, word),)
        case Kind.SPAN:
            return (parse_span(word, name),)
        case Kind.MOMENT:
            return (_moment(name, word),)


def _chosen(name: str, field: Field, word: str) -> str:
    if word not in field.choices:
        raise InvalidInput(f"{name} is {shown(word)!r}, expected one of {', '.join(field.choices)}", field="q")
    return word


def _number(name: str, word: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", word, re.ASCII):
        raise InvalidInput(f"{name} is {shown(word)!r}, expected a whole number, or one after > or <", field="q")
    return int(word)


def _moment(name: str, word: str) -> timedelta | datetime:
    """`-2h` and `+10m` are counted from now; everything else is an instant, in UTC unless it says otherwise."""
    if word[0] in "+-" and not word[1:5].isdecimal():
        span = parse_span(word[1:], name)
        return -span if word[0] == "-" else span
    return read_moment(word, "UTC", name)


def _unknown(name: str, fields: Mapping[str, Field]) -> InvalidInput:
    import difflib  # for who has mistyped something

    known = [f"{one}.key" if field.kind is Kind.JSON else one for one, field in fields.items()]
    near = difflib.get_close_matches(name, list(fields), 1)
    hint = f"did you mean {near[0]}:?" if near else 'put quotes around text that contains a colon: "a:b"'
    return InvalidInput(f"{shown(name)}: cannot be searched; known are {', '.join(known)}", field="q", hint=hint)
