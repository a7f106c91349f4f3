"""Hooks of runs: what they get and give, how they are asked, and what is noted of it."""

from rath.session.hooks.values import (
    AfterAnswer,
    AfterToolHook,
    BeforeAnswer,
    BeforeToolHook,
    Deny,
    LoopHooks,
    ModelAnswer,
    ModelHook,
    ModelTurn,
    ToolResultText,
)

__all__ = [
    "AfterAnswer",
    "AfterToolHook",
    "BeforeAnswer",
    "BeforeToolHook",
    "Deny",
    "LoopHooks",
    "ModelAnswer",
    "ModelHook",
    "ModelTurn",
    "ToolResultText",
]
