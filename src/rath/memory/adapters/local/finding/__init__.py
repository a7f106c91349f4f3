"""Which documents fit a query best."""
