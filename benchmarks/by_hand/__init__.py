"""The references: each program as a good engineer writes it without a framework."""
