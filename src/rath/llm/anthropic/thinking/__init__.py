"""What the thinking of a call means for the rest of its request."""
