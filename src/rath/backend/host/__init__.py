"""Sandboxes whose workspace is a directory of this host."""
