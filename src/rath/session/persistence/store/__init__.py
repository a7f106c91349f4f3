"""Where logs of sessions are kept: files by default, other places by their URL."""
