"""A document and its pages."""

from django.db import models


class Document(models.Model):
    owner = models.CharField(max_length=100)
    text = models.TextField()
    state = models.CharField(max_length=20, default="waiting")
    words = models.PositiveIntegerField(null=True)


class Message(models.Model):
    """What the owner of a document is told."""

    owner = models.CharField(max_length=100)
    text = models.TextField()
