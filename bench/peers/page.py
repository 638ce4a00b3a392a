"""`python -m bench.peers.page`: write the figures of `bench/results/peers.json` into `docs/explanation/peers.md`.

Only what stands between the markers of the page is replaced; the words around it are written by hand.
Whoever has something to say about a run may add a `note` to its JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.peers.tables import Document, in_markdown, reasons, rows, subjects_of
from bench.report import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "peers.md"
BEGIN, END = "<!-- figures: written by `make peers-page` -->", "<!-- end of figures -->"
# Above this, somebody else was at work on the machine when the run began.
_QUIET_LOAD = 0.5
_SIZES = {
    "short": "A run with `SHORT=1`: few jobs and one round, which shows that everything works and not how fast it is.",
    "usual": "The usual run.",
    "full": "The long run (`FULL=1`).",
}


def figures(document: Document) -> str:
    """All tables of a run, with the machine they were measured on."""
    return "\n\n".join([_machine(document), *_questions(document), _settings(document)])


def _machine(document: Document) -> str:
    machine = document["machine"]
    load = machine["load_before"]
    state = (
        "quiet"
        if load < _QUIET_LOAD * machine["cores"]
        else f"busy (load {load:.1f}): only large differences mean something"
    )
    lines = [
        f"Measured on {machine['at'][:10]} on {machine['cores']} cores shared by servers, clients and workers; the machine was {state}.",
        _SIZES[document["size"]],
        *([document["note"]] if "note" in document else []),
        *(f"{name} {says}." for name, says in document["servers"].items()),
    ]
    return "\n".join(lines)


def _questions(document: Document) -> Iterator[str]:
    for question in document["questions"]:
        missing = [f"- {line}" for line in reasons(document, question["question"])]
        table = in_markdown(rows(question, subjects_of(document)))
        yield "\n\n".join([f"### {question['title'].capitalize()}", table, *(["\n".join(missing)] if missing else [])])


def _settings(document: Document) -> str:
    table = [["", "version", "settings"]]
    table += [[peer["subject"], peer["version"], peer["settings"]] for peer in document["peers"]]
    given_up = [["", "store", "what is left of a finished job", "what a crash may cost"]]
    given_up += [
        [peer["subject"], peer["store"], peer["keeps"], peer["survives"]]
        for peer in document["peers"]
        if "," not in peer["subject"]
    ]
    return "\n\n".join(
        ["### The settings", in_markdown(table), "### What each one keeps, and what it may lose", in_markdown(given_up)]
    )


def filled(page: str, document: Document) -> str:
    """The page with these figures."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has lost its markers: put {BEGIN} and {END} where the figures belong")
    return f"{head}{BEGIN}\n\n{figures(document)}\n\n{END}{tail}"


def main() -> None:
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "peers.json"
    document = json.loads(source.read_text(encoding="utf-8"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), document), encoding="utf-8")


if __name__ == "__main__":
    main()
