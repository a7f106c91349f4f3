"""Calls of models and tools: requests, results, open calls, decisions."""
