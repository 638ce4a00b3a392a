"""A document is split into pages, the pages are read in parallel, and what was read is joined.

Each step and the rows that it writes are one transaction: if it is rolled back, nothing of the next step is enqueued.
"""

from django.db import transaction

from documents.models import Document, Message
from timeball.contrib.django import tb

PAGE = "\f"


def upload(owner: str, text: str) -> Document:
    """Save a document and have it read; both or none."""
    with transaction.atomic():
        document = Document.objects.create(owner=owner, text=text)
        split.options(on_failure=tell_owner.call(document.pk, "could not be split")).enqueue(document.pk)
    return document


@tb.handler(queue="documents", retries=2)
def split(document: int) -> int:
    """One call for each page, all of them at once, and one that joins what they found."""
    pages = Document.objects.get(pk=document).text.split(PAGE)
    with transaction.atomic():
        Document.objects.filter(pk=document).update(state="reading")
        reading = tb.group([read_page.call(document, number) for number in range(len(pages))])
        reading.then(join.call(document, tb.results)).on_failure(
            tell_owner.call(document, "has a page that cannot be read")
        ).enqueue()
    return len(pages)


@tb.handler(queue="documents", retries=0)
def read_page(document: int, number: int) -> int:
    page = Document.objects.get(pk=document).text.split(PAGE)[number]
    if not page.strip():
        raise ValueError(f"page {number + 1} is empty")
    return len(page.split())


@tb.handler(queue="documents")
def join(document: int, words: list[int]) -> None:
    Document.objects.filter(pk=document).update(state="read", words=sum(words))


@tb.handler(queue="documents")
def tell_owner(document: int, what: str) -> None:
    with transaction.atomic():
        failed = Document.objects.select_for_update().get(pk=document)
        failed.state = "failed"
        failed.save(update_fields=["state"])
        Message.objects.create(owner=failed.owner, text=f"Your document {document} {what}.")
