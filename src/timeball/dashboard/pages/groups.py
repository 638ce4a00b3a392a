"""Groups: their list, one group as a tree of its parts, why it waits, and its end before its time."""

from __future__ import annotations

from starlette.responses import Response

from timeball.api.auth import Role
from timeball.api.models.groups import group_document, group_explanation_document, group_tree_document
from timeball.api.resources.groups import part_number
from timeball.dashboard.context import PageContext, PageRouter
from timeball.dashboard.formatting import pluralize
from timeball.domain.follow_ups import GroupState

router = PageRouter()

_PAGE, _PARTS = 50, 200

# The states of groups and parts, each with the state of executions whose look it has.
STATE_STYLES = {
    GroupState.OPEN.value: "running",
    GroupState.SUCCEEDED.value: "succeeded",
    GroupState.FAILED.value: "dead",
}


@router.get("/groups")
async def list_groups(context: PageContext) -> Response:
    """The groups that are in no other one, the latest first."""
    chosen = context.query("state")
    state = GroupState(chosen) if chosen in list(GroupState) else None
    page = await context.site.queries.groups.page(state, context.page_request(_PAGE), is_nested=False)
    return context.page(
        "groups.html",
        part="partials/groups_list.html",
        rows=[group_document(group) for group in page.items],
        page=page,
        state=state,
        group_states=[word.value for word in GroupState],
        looks=STATE_STYLES,
    )


@router.get("/groups/{group}")
async def group_page(context: PageContext) -> Response:
    """One group: how far it is, and a page of its parts with what each has begun."""
    is_open, after = context.query("parts") == "open", part_number(context.query("cursor") or None)
    tree = await context.site.queries.groups.tree(context.path["group"], after, _PARTS, is_open=is_open)
    return context.page(
        "group.html",
        part="partials/group_body.html",
        group=group_tree_document(tree),
        is_open=is_open,
        after=after,
        looks=STATE_STYLES,
    )


@router.get("/groups/{group}/why")
async def why_group(context: PageContext) -> Response:
    """For which parts a group waits, and why those have not ended."""
    explanation = await context.site.queries.explain.group(context.path["group"])
    return context.page(
        "group_why.html",
        part="partials/group_why.html",
        why=group_explanation_document(explanation),
        looks=STATE_STYLES,
    )


@router.post("/groups/{group}/cancel", Role.OPERATOR)
async def cancel_group(context: PageContext) -> Response:
    """Cancel what waits of a group, and ask what runs to stop."""
    group = context.path["group"]
    ended = await context.api.post("groups", group, "cancel", body={"reason": context.form.get("reason") or None})
    toast = f"{pluralize(ended['cancelled'], 'execution')} cancelled or asked to stop."
    return context.go(context.back(f"/groups/{group}"), toast)
