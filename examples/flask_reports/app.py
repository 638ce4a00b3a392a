"""A Flask site with many tenants: every user chooses when the report comes, and each report belongs to one tenant.

    flask --app app run          the site
    timeball up app:tb           what makes the reports; its dashboard shows the runs of a tenant: meta.tenant:acme

No handler takes the tenant as an argument. The site knows it from the request; each enqueue notes it in `meta`, and each run has it again.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Flask, Response, abort, g, jsonify, request

from timeball import ActiveRun, PendingEnqueue, Timeball

app = Flask(__name__)
tb = Timeball()

# In place of a database and a mail server.
SALES = {"acme": {"ada": 40, "bob": 2}, "globex": {"hank": 7}}
outbox: list[str] = []


@app.before_request
def find_tenant() -> None:
    tenant = request.headers.get("X-Tenant", "")
    if tenant not in SALES:
        abort(404, f"there is no tenant {tenant!r}")
    g.tenant = tenant


@tb.before_enqueue
def note_tenant(enqueue: PendingEnqueue) -> None:
    enqueue.meta["tenant"] = g.tenant


@tb.around_run
def in_tenant(run: ActiveRun) -> Iterator[None]:
    with app.app_context():
        g.tenant = run.meta["tenant"]
        yield


@tb.handler(queue="reports", retries=2)
def send_report(user: str) -> str:
    report = f"{user} of {g.tenant} sold {SALES[g.tenant][user]}"
    outbox.append(report)
    return report


def owner_of(user: str) -> str:
    return f"user:{g.tenant}:{user}"


@app.post("/users/<user>/report")
def report_now(user: str) -> tuple[Response, int]:
    run = send_report.enqueue(user)
    return jsonify(run=run.id), 202


@app.put("/users/<user>/report/schedule")
def choose_time(user: str) -> Response:
    """A body such as {"cron": "0 7 * * mon-fri", "timezone": "Europe/Berlin"}; a further one changes the schedule."""
    wish = request.get_json()
    job = send_report.schedule(
        wish["cron"],
        name=f"report:{g.tenant}:{user}",
        timezone=wish["timezone"],
        owner=owner_of(user),
        arguments={"user": user},
    )
    return jsonify(action=job.action, next=[time.local for time in tb.jobs.next(job.id, count=3)])


@app.delete("/users/<user>")
def leave(user: str) -> tuple[str, int]:
    """A user who leaves takes all schedules along."""
    del SALES[g.tenant][user]
    tb.jobs.delete_all(owner_of(user))
    return "", 204
