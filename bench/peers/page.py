"""`python -m bench.peers.page`: write the figures of `bench/results/peers.json` into `docs/explanation/peers.md`, and draw them.

Only what stands between the markers of the page is replaced; the words around it are written by hand.
A `note` of a question in the JSON is shown above its table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.peers.chart import chart
from bench.peers.results import Document, Page, is_quiet, left, read
from bench.peers.tables import ahead, figures_of, in_markdown, reasons, rows
from bench.report import RESULTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "peers.md"
PICTURE = RESULTS / "peers.svg"
BEGIN, END = "<!-- figures: written by `make peers-page` -->", "<!-- end of figures -->"
_SIZES = {
    "short": "A run with `SHORT=1`: few jobs and one round, which shows that everything works and not how fast it is.",
    "full": "The long run (`FULL=1`).",
}


def figures(document: Document) -> str:
    """All tables of a run, with the machine they were measured on."""
    picture = "![All peers, a panel for each figure, the best above](../../bench/results/peers.svg)"
    pages = document["questions"]
    return "\n\n".join([_servers(document), picture, *map(_question, pages), *_settings(pages), *_kept(pages)])


def _servers(document: Document) -> str:
    pages = document["questions"]
    servers = dict.fromkeys(f"{name} {says}." for page in pages for name, says in page["servers"].items())
    cores = dict.fromkeys(f"{page['machine']['cores']}" for page in pages)
    owed = left(document)
    lines = [
        f"Measured on {' and '.join(cores)} cores, which servers, clients and workers share.",
        *servers,
        *([f"Not asked yet: {', '.join(owed)}."] if owed else []),
    ]
    return "\n".join(lines)


def _question(page: Page) -> str:
    parts = [f"### {page['title'].capitalize()}", _occasion(page), in_markdown(rows(page)), _ahead(page)]
    missing = [f"- {line}" for line in reasons(page)]
    return "\n\n".join([*parts, *(["No figure:", "\n".join(missing)] if missing else [])])


def _occasion(page: Page) -> str:
    machine = page["machine"]
    load = machine["load_before"]
    state = "quiet" if is_quiet(machine) else f"busy (load {load:.1f}): only large differences mean something"
    day, hour = machine["at"][:10], machine["at"][11:16]
    asked = f"Asked on {day} at {hour} UTC; the machine was {state}."
    return "\n".join(
        [
            asked,
            *([_SIZES[page["size"]]] if page["size"] in _SIZES else []),
            *([page["note"]] if "note" in page else []),
        ]
    )


def _ahead(page: Page) -> str:
    """The peers that are better than Timeball, figure by figure: a reader need not look for them."""
    compared = [(figure, ahead(page, figure)) for figure in figures_of(page)]
    lines = [f"- {figure}: {', '.join(better)}" for figure, better in compared if better]
    return "\n".join(["Better than Timeball:", "", *lines] if lines else ["Better than Timeball: none."])


def _settings(pages: Iterable[Page]) -> Iterator[str]:
    said: dict[tuple[str, str, str], list[str]] = {}
    for page in pages:
        for peer in page["peers"]:
            said.setdefault((peer["subject"], peer["version"], peer["settings"]), []).append(page["question"])
    head = ["", "version", "questions", "settings"]
    body = [[subject, version, ", ".join(asked), says] for (subject, version, says), asked in said.items()]
    yield "### The settings"
    yield in_markdown([head, *sorted(body, key=lambda row: _place(row[0]))])


def _place(subject: str) -> tuple[bool, str]:
    """Timeball first, the others by name, a peer's other settings below its usual ones."""
    return (not subject.startswith("Timeball"), subject.lower())


def _kept(pages: Iterable[Page]) -> Iterator[str]:
    peers = {peer["subject"]: peer for page in pages for peer in page["peers"] if "," not in peer["subject"]}
    head = ["", "store", "what is left of a finished job", "what a crash may cost"]
    body = [[subject, peer["store"], peer["keeps"], peer["survives"]] for subject, peer in peers.items()]
    yield "### What each one keeps, and what it may lose"
    yield in_markdown([head, *sorted(body, key=lambda row: _place(row[0]))])


def filled(page: str, document: Document) -> str:
    """The page with these figures."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} has lost its markers: put {BEGIN} and {END} where the figures belong")
    return f"{head}{BEGIN}\n\n{figures(document)}\n\n{END}{tail}"


def main() -> None:
    document = read(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "peers.json")
    if not document["questions"]:
        raise SystemExit("no question has been asked of all peers yet; `make bench-peers` asks them")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), document), encoding="utf-8")
    PICTURE.write_text(chart(document), encoding="utf-8")


if __name__ == "__main__":
    main()
