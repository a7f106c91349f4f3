"""Files of sessions: changes, diffs, merges, workspaces."""
