"""Agents, workflows and what they are made of: layers from one session to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.flow.agent import Agent
    from rath.flow.agent_param import AgentParam
    from rath.flow.compile import CompiledWorkflow, ResourceManifest
    from rath.flow.compressor import Compressor
    from rath.flow.container import Sequential, WorkflowDict, WorkflowList
    from rath.flow.empty import EmptyWorkflow
    from rath.flow.hooks import CallRequest, Deny, HookHandle, ModelTurn, ToolResultText
    from rath.flow.selector import Selector
    from rath.flow.workflow import Workflow
    from rath.llm import Provider
else:
    from rath._core.lazy_imports import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "agent": ("Agent",),
            "agent_param": ("AgentParam",),
            "compile": ("CompiledWorkflow", "ResourceManifest"),
            "compressor": ("Compressor",),
            "container": ("Sequential", "WorkflowDict", "WorkflowList"),
            "empty": ("EmptyWorkflow",),
            "hooks": ("CallRequest", "Deny", "HookHandle", "ModelTurn", "ToolResultText"),
            "selector": ("Selector",),
            "workflow": ("Workflow",),
            "rath.llm": ("Provider",),
        },
    )  # fmt: skip

__all__ = [
    "Agent",
    "AgentParam",
    "CallRequest",
    "CompiledWorkflow",
    "Compressor",
    "Deny",
    "EmptyWorkflow",
    "HookHandle",
    "ModelTurn",
    "Provider",
    "ResourceManifest",
    "Selector",
    "Sequential",
    "ToolResultText",
    "Workflow",
    "WorkflowDict",
    "WorkflowList",
]
