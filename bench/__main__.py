"""`python -m bench [question ...]`: one line of figures each."""

from __future__ import annotations

import asyncio
import importlib
import sys

QUESTIONS = ("drain", "latency", "lateness", "backlog", "bulk", "webhooks")


def main() -> None:
    asked = sys.argv[1:] or QUESTIONS
    unknown = sorted(set(asked) - set(QUESTIONS))
    if unknown:
        raise SystemExit(f"no such question: {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
    for name in asked:
        answer = asyncio.run(importlib.import_module(f"bench.{name}").ask())
        print(f"{name:10} {answer}", flush=True)


if __name__ == "__main__":
    main()
