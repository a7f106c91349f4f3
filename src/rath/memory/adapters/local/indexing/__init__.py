"""The index beside the files: kept in step with them by all processes, and built again."""
