"""Workflows as tools of other programs: a server of the Model Context Protocol."""

from __future__ import annotations

from rath.flow.serving.serve import ServeOptions, serve_mcp

__all__ = ["ServeOptions", "serve_mcp"]
