"""An index of the sessions of a store: derived from their logs, and made again when it is lost."""
