"""The programs on LangGraph, with its SQLite checkpoints."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from benchmarks.by_hand.add_tool import SYSTEM
from benchmarks.peers.program import MODEL, Ask, Place, add, run_program


@asynccontextmanager
async def _open_agent(place: Place) -> AsyncGenerator[Ask]:
    tools = [tool(add)]
    model = ChatOpenAI(model=MODEL, base_url=place.url, api_key="x").bind_tools(tools)

    async def call_model(state: Any) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([SystemMessage(SYSTEM), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    async with AsyncExitStack() as stack:
        saver = None
        if place.folder is not None:
            path = str(place.folder / "checkpoints.sqlite3")
            saver = await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(path))
        agent = graph.compile(checkpointer=saver)
        threads = itertools.count()

        async def ask(question: str) -> str:
            config = {
                "configurable": {"thread_id": str(next(threads))},
                "recursion_limit": 2 * place.rounds + 10,
            }
            state = await agent.ainvoke({"messages": [("user", question)]}, config)
            return str(state["messages"][-1].content)

        yield ask


if __name__ == "__main__":
    run_program(_open_agent)
