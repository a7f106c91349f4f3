"""Runs of the loop: rounds of model calls and tool calls, their budget, and what they tell."""
