"""The turns of a conversation, as the Messages API wants them."""
