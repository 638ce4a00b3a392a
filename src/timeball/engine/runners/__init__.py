"""Ways to run a handler: on the event loop, in a thread, in a child process that can be killed."""
