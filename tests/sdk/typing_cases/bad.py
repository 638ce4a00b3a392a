"""A program that strict type checkers must refuse: each marked line, for the marked reason (mypy | pyright). Never run."""

from __future__ import annotations

from timeball import Run, Timeball

tb = Timeball()


@tb.handler
def send(order_id: int, to: str) -> str:
    return f"{order_id} {to}"


@tb.handler(queue="mail")
async def double(n: int) -> int:
    return 2 * n


@tb.handler(retries="five")  # refused: call-overload, untyped-decorator | reportArgumentType
def wrong_option() -> None: ...


@tb.handler(retry=5)  # refused: call-overload, untyped-decorator | reportCallIssue, reportUntypedFunctionDecorator
def unknown_option() -> None: ...


@tb.cron("@daily", overlap="perhaps")  # refused: arg-type | reportArgumentType
def wrong_choice() -> None: ...


send("1", to="x")  # refused: arg-type | reportArgumentType
send.enqueue("1", to="x")  # refused: arg-type | reportArgumentType
send.enqueue(1)  # refused: call-arg | reportCallIssue
send.enqueue(1, to="x", copy=True)  # refused: call-arg | reportCallIssue
send.options(priority=90).enqueue(1, to=2)  # refused: arg-type | reportArgumentType
send.options(prio=90)  # refused: call-arg | reportCallIssue
send.options(delay=object())  # refused: arg-type | reportArgumentType
send.call(1)  # refused: call-arg | reportCallIssue
send.enqueue_many([double.call(1)])  # refused: list-item | reportArgumentType
double.enqueue(n="1")  # refused: arg-type | reportArgumentType

send.schedule("@daily", crom="x")  # refused: call-arg | reportCallIssue
send.schedule(every=object(), name="n")  # refused: arg-type | reportArgumentType
send.schedule("@daily", overlap="perhaps")  # refused: arg-type | reportArgumentType
tb.jobs.update("n", prio=1)  # refused: call-arg | reportCallIssue
tb.jobs.list(sort="size")  # refused: arg-type | reportArgumentType
send.schedule_many([{"cron": "@daily", "nam": "n"}])  # refused: typeddict-unknown-key | reportArgumentType

number: int = send.enqueue(1, to="x").result()  # refused: assignment | reportAssignmentType
text: str = double.enqueue(1).result()  # refused: assignment | reportAssignmentType
other: Run[str] = double.enqueue(1)  # refused: assignment | reportAssignmentType
now: int = double(1)  # refused: assignment | reportAssignmentType


async def coroutines() -> None:
    await send.aenqueue(1, 2)  # refused: arg-type | reportArgumentType
    text: str = await (await double.aenqueue(1)).aresult()  # refused: assignment | reportAssignmentType
    print(text)
