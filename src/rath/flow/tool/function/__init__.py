"""Tools made of typed functions, methods and classes; loads pydantic."""

from __future__ import annotations

from rath.flow.tool.function.decorator import tool
from rath.flow.tool.function.function_tool import FunctionTool, ObjectTool

__all__ = ["FunctionTool", "ObjectTool", "tool"]
