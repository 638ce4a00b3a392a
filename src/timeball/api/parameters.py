"""A parameter nobody knows is refused: a misspelt filter that is ignored would list everything."""

from __future__ import annotations

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from timeball.api.problems import Refusal
from timeball.domain.instants import shown


async def known_parameters(request: Request) -> None:
    """Refuse parameters in the query that the route does not have."""
    route = request.scope.get("route")
    if not request.query_params or not isinstance(route, APIRoute):
        return
    known = _names(route.dependant)
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        listed = ", ".join(sorted(known)) or "none"
        raise Refusal(
            422,
            "unknown_parameter",
            f"unknown parameter {shown(unknown[0])!r}; known are: {listed}",
            hint="check its spelling",
        )


def _names(dependant: Dependant) -> set[str]:
    own = {parameter.alias for parameter in dependant.query_params}
    return own.union(*(_names(inner) for inner in dependant.dependencies))
