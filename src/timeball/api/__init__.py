"""The HTTP API: reads a request, makes one call on Commands or Insights, shapes the answer."""
