"""The embedded provider: GGUF models served inside the process."""
