"""What goes from a store, and leaves no trace there."""
