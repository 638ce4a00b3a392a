"""Handlers that come with a package of their own."""

from __future__ import annotations

from timeball import current


async def greet(name: str, *, times: int = 1) -> str:
    """Greet somebody."""
    current.log("greeting", name=name)
    return " ".join([f"Hello, {name}!"] * times)


def count(to: int) -> dict[str, int]:
    """Count in a thread, and say how far it is."""
    for number in range(to):
        current.progress(number / to)
    return {"counted": to}
