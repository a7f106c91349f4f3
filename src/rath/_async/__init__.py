"""The only package that owns an event loop, a thread or a task."""
