"""The vectors of a local store: made of its documents by an embedding model, and compared."""
