"""Agents, workflows and what they are made of: layers from one session to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rath.flow.agent import Agent
    from rath.flow.agent_param import AgentParam
    from rath.flow.compile import CompiledWorkflow, ResourceManifest
    from rath.flow.compressor import Compressor
    from rath.flow.container import Merge, Sequential, WorkflowDict, WorkflowList
    from rath.flow.empty import EmptyWorkflow
    from rath.flow.hooks import CallRequest, Deny, HookHandle, ModelTurn, ToolResultText
    from rath.flow.selector import Selector
    from rath.flow.workflow import Workflow
    from rath.jobs.data_parallel import DataParallel
    from rath.jobs.engine import Rate
    from rath.jobs.job import map  # documented as flow.map
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
            "container": ("Merge", "Sequential", "WorkflowDict", "WorkflowList"),
            "empty": ("EmptyWorkflow",),
            "hooks": ("CallRequest", "Deny", "HookHandle", "ModelTurn", "ToolResultText"),
            "selector": ("Selector",),
            "workflow": ("Workflow",),
            "rath.jobs.data_parallel": ("DataParallel",),
            "rath.jobs.engine": ("Rate",),
            "rath.jobs.job": ("map",),
            "rath.llm": ("Provider",),
        },
    )  # fmt: skip

__all__ = [
    "Agent",
    "AgentParam",
    "CallRequest",
    "CompiledWorkflow",
    "Compressor",
    "DataParallel",
    "Deny",
    "EmptyWorkflow",
    "HookHandle",
    "Merge",
    "ModelTurn",
    "Provider",
    "Rate",
    "ResourceManifest",
    "Selector",
    "Sequential",
    "ToolResultText",
    "Workflow",
    "WorkflowDict",
    "WorkflowList",
    "map",
]
