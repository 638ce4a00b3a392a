"""`python manage.py test`: every task runs at once, in the transaction of the test."""

from django.db import transaction
from django.test import TestCase

from documents.models import Document, Message
from documents.tasks import upload
from timeball.contrib.django import tb


class UploadTest(TestCase):
    def setUp(self) -> None:
        self.enterContext(tb.inline())

    def test_a_document_is_split_read_and_joined(self) -> None:
        document = upload("ada", "one two\fthree\ffour five six")

        document.refresh_from_db()
        self.assertEqual((document.state, document.words), ("read", 6))

    def test_the_owner_is_told_of_a_page_that_cannot_be_read(self) -> None:
        document = upload("ada", "one two\f \fthree")

        document.refresh_from_db()
        self.assertEqual(document.state, "failed")
        (message,) = Message.objects.all()
        self.assertEqual(message.text, f"Your document {document.pk} has a page that cannot be read.")

    def test_what_is_rolled_back_was_never_uploaded(self) -> None:
        try:
            with transaction.atomic():
                upload("ada", "one")
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

        self.assertFalse(Document.objects.exists())
