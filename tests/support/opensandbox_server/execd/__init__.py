"""The daemon inside each sandbox of the test server: it alone touches what a client names."""
