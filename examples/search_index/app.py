"""A search service: documents change many times a minute, and each is indexed once it has been left alone for a while.

    uvicorn app:app

`PUT /documents/{name}` saves a text and lets the index wait for two quiet seconds; a further change in that time pushes the run back,
and it is the newest text that is indexed. `GET /documents/{name}/progress` is what a page shows meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from timeball import NotFound, Timeball, current

QUIET = "2s"

tb = Timeball()
app = FastAPI(lifespan=tb.lifespan(worker=True, scheduler=True))

texts: dict[str, str] = {}
index: dict[str, set[str]] = defaultdict(set)


class Document(BaseModel):
    text: str


def key_of(name: str) -> str:
    return f"index:{name}"


@tb.handler(retries=2, timeout="1m")
async def index_document(name: str) -> int:
    """Add the words of a document to the index, a few at a time."""
    words = texts[name].lower().split()
    for number, word in enumerate(words, 1):
        index[word].add(name)
        current.progress(number / len(words), f"word {number} of {len(words)}")
        await asyncio.sleep(0)
    return len(words)


@app.put("/documents/{name}", status_code=202)
async def save(name: str, document: Document) -> dict[str, str]:
    texts[name] = document.text
    run = await index_document.options(key=key_of(name), delay=QUIET, if_exists="extend").aenqueue(name)
    return {"run": run.id}


@app.get("/documents/{name}/progress")
async def progress(name: str) -> dict[str, object]:
    try:
        run = await tb.aget_run(key=key_of(name))
    except NotFound:
        raise HTTPException(404, f"nothing was saved as {name}") from None
    info = await run.ainfo()
    return {"state": info.state, "progress": info.progress, "attempts": info.attempts}


@app.get("/search")
async def search(word: str) -> list[str]:
    return sorted(index[word.lower()])
