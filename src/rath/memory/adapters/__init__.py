"""The memory backends that come with rath."""
