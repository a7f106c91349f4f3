"""Kernel: values, registries, text and files; imports nothing of rath but errors."""
