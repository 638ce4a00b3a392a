"""What does a job cost by how many workers share the work, and what does a node cost that has nothing to do?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from bench.cost import Cost
from bench.curves import Curve, write_curves
from bench.growing import WORKER, drained, note, note_idle, trickled
from bench.lab import Lab
from bench.system import System

TITLE = "what a job and an idle node cost, by how many nodes there are"
_SIZES, _ALL_SIZES = (1, 4, 16), (1, 2, 4, 8, 16)


async def ask(lab: Lab) -> None:
    """Workers that work, workers and schedulers that do not."""
    sizes = _ALL_SIZES if lab.is_full else _SIZES
    curves = [
        await _working(lab, sizes, "drained", drained),
        await _working(lab, sizes, "enqueued by itself", trickled),
    ]
    curves += [await _idle(lab, kind, sizes) for kind in ("worker", "scheduler")]
    write_curves("growth_nodes", curves)


async def _working(
    lab: Lab, sizes: Sequence[int], what: str, measure: Callable[[System, int], Awaitable[Cost]]
) -> Curve:
    curve = Curve(f"a job {what}, by worker processes", sizes)
    for size in sizes:
        async with lab.system() as system:
            note(lab, curve, f"{what}, {_named(size, 'worker')}", await measure(system, size), WORKER)
    return curve


async def _idle(lab: Lab, kind: str, sizes: Sequence[int]) -> Curve:
    """What each of so many nodes costs."""
    curve = Curve(f"an idle {kind}, by how many there are", sizes)
    for size in sizes:
        async with lab.system() as system:
            await system.start_nodes(*((size, 0) if kind == "scheduler" else (0, size)))
            await note_idle(lab, curve, f"each of {_named(size, f'idle {kind}')}", system)
    return curve


def _named(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
