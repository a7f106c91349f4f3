"""Entries of the record as the page shows them."""
