"""The error of session files, under its documented name."""

from rath.errors import PersistenceError as PersistenceError
