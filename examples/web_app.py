"""A web application that enqueues work, runs it itself, and shows the dashboard under /timeball.

    uvicorn web_app:app

In production, run the workers apart from it: `timeball worker web_app:tb`, and leave `worker` and `scheduler` out below.
"""

from collections.abc import Mapping

from fastapi import FastAPI

from timeball import Timeball

tb = Timeball()


@tb.handler
def send_receipt(order_id: int, to: str) -> str:
    return f"receipt {order_id} -> {to}"


def who(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Who may look at the dashboard, with their name and role: ask your own session or proxy here."""
    return (headers["x-staff"], "admin") if headers.get("x-staff") else None


app = FastAPI(lifespan=tb.lifespan(worker=True, scheduler=True))
app.mount("/timeball", tb.dashboard(auth=who))


@app.post("/orders/{order_id}")
async def order(order_id: int) -> dict[str, str]:
    run = await send_receipt.aenqueue(order_id, to="a@b.co")
    return {"execution": run.id, "receipt": await run.aresult(timeout=30)}
