"""Budgets of the design, measured beside the same work written by hand."""
