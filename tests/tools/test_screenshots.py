"""Four pictures are in the repository; README and docs show no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.screenshots import KEPT, KEPT_FOLDER, PAGES, ROOT, SIZES

TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_four_pictures_are_in_the_repository() -> None:
    assert len(KEPT) == 4
    assert {path.name for path in KEPT_FOLDER.iterdir()} == KEPT


def test_every_kept_picture_is_one_that_is_taken() -> None:
    taken = {f"{page}-{size}-{scheme}.png" for page in PAGES for size in SIZES for scheme in ("light", "dark")}

    assert taken >= KEPT


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_texts_show_only_kept_pictures(path: Path) -> None:
    shown = re.findall(r"screenshots/([\w.-]+\.png)", path.read_text(encoding="utf-8"))

    assert set(shown) <= KEPT


def test_every_kept_picture_is_shown() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in TEXTS)

    assert all(f"screenshots/{name}" in text for name in KEPT)
