"""What a model makes of an archived transcript: notes that say which rows they come from."""
