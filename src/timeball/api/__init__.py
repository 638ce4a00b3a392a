"""The HTTP API: reads a request, makes one call on Commands or Queries, and shapes the response."""
