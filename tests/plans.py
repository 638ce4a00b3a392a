"""What a plan that was run has read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes_of(part)


def rows_touched(plan: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every scan of a table in a plan that was run: how, and how many rows it looked at."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        looked_at = sum(
            plan.get(part, 0) for part in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Index Recheck")
        )
        name = f"{plan['Node Type']} on {plan['Relation Name']} by {plan.get('Index Name', 'no index')}"
        yield name, round(looked_at * plan["Actual Loops"])
    for part in plan.get("Plans", ()):
        yield from rows_touched(part)
