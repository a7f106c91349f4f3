"""Other frameworks, each in an environment of its own, beside ours."""
