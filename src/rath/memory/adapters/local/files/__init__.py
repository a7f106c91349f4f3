"""The files of a store: never half written, never waited for, and what is told about them."""
