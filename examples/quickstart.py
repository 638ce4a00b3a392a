"""The shortest whole program: a handler, a schedule, an enqueue.

In this folder, run everything in one terminal and the program in another:

    timeball up quickstart:tb
    python quickstart.py
"""

from timeball import Timeball

tb = Timeball()  # TIMEBALL_DATABASE_URL, or the embedded PostgreSQL


@tb.handler(queue="mail", retries=5, timeout="30s")
def send_receipt(order_id: int, to: str) -> str:
    return f"receipt {order_id} -> {to}"


@tb.cron("0 9 * * mon-fri", timezone="Europe/Berlin")
async def morning_report() -> None:
    print("good morning")


if __name__ == "__main__":
    run = send_receipt.enqueue(42, to="a@b.co")
    print(run.id, run.result(timeout=10))
