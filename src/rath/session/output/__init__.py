"""Typed answers: their schemas, how a run asks for them, and what is read of a model's text."""
