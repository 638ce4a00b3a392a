"""A program whose handlers fail in a child, with a configuration of logging that is the child's own."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

from timeball import Timeball

tb = Timeball()


class FileCollector(logging.Handler):
    """Writes what a collector hears into a file: level, logger, process, and the text with its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        if os.environ.get("COLLECTOR_BLOCKS"):
            time.sleep(3_600)
        with Path(os.environ["COLLECTED"]).open("a", encoding="utf-8") as file:
            fields: Any = (record.levelname, record.name, os.getpid(), self.format(record))
            file.write(repr(fields) + "\n")


@tb.on_worker_start
def configure_logging() -> None:
    if "COLLECTED" in os.environ:
        logging.getLogger().addHandler(FileCollector())


@tb.handler(name="fail_in_child", isolate=True)
def fail_in_child() -> None:
    raise LookupError("nothing there")


@tb.handler(name="pid", isolate=True)
def pid() -> int:
    return os.getpid()


@tb.handler(name="print_in_thread")
def print_in_thread() -> None:
    print("from a thread")


@tb.handler(name="print_in_child", isolate=True)
def print_in_child() -> None:
    print("from a child")
