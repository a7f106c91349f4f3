"""The registry of stores under its documented path."""

from rath.session.log.store import StoreFactory, default_store, open_store, stores

__all__ = ["StoreFactory", "default_store", "open_store", "stores"]
