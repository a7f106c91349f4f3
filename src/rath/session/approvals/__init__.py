"""What waits for somebody: calls that must be allowed, questions of tools, runs held up by them."""
