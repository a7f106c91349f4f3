"""Logs of sessions: the store over its drivers, blobs, bundles and retention."""
