"""A worker or a scheduler that is asked for without options is started without the tree of commands, and is the same."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

from tests.cli.conftest import run
from timeball.cli import main, nodes
from timeball.cli.root import run_command
from timeball.errors import StoreUnavailable

PLAIN = [["worker"], ["worker", "app:tb"], ["scheduler"], ["scheduler", "app:tb"]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What nodes were asked for; none is run."""
    wishes: list[dict[str, Any]] = []
    signature = inspect.signature(nodes.run_nodes)

    def take_note(*arguments: Any, **named: Any) -> None:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        # Of no queue the tree makes an empty list.
        wishes.append({name: value or None for name, value in bound.arguments.items()})

    monkeypatch.setattr(nodes, "run_nodes", take_note)
    return wishes


@pytest.fixture
def without_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for the tree of commands now fails."""
    monkeypatch.setitem(sys.modules, "timeball.cli.root", None)


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_the_tree_asks_for_the_same_node(
    arguments: list[str], asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_command(arguments) == 0
    monkeypatch.setitem(sys.modules, "timeball.cli.root", None)
    assert main.run(arguments) == 0

    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    "arguments",
    [[], ["worker", "--help"], ["worker", "--slots", "3"], ["worker", ""], ["worker", "app:tb", "--"], ["up"]],
    ids=str,
)
@pytest.mark.usefixtures("without_tree")
def test_whatever_else_is_typed_goes_by_the_tree(arguments: list[str], asked: list[dict[str, Any]]) -> None:
    with pytest.raises(ModuleNotFoundError):
        main.run(arguments)

    assert asked == []


@pytest.mark.usefixtures("without_tree")
def test_a_shell_that_completes_starts_no_node(asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TIMEBALL_COMPLETE", "complete_bash")

    with pytest.raises(ModuleNotFoundError):
        main.run(["worker"])

    assert asked == []


@pytest.mark.parametrize(("error", "code"), [(StoreUnavailable("gone"), 1), (KeyboardInterrupt(), 130)])
def test_it_ends_as_by_the_tree(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(nodes, "run_nodes", fail)

    plain, by_tree = run("worker"), run("worker", "--slots", "3")

    assert plain == by_tree
    assert plain.code == code
