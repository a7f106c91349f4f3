"""An MCP server on pipes, by hand: tools and answers stand in a JSON file, read at each request.

    {"tools": [...], "answers": {TOOL: RESULT}, "page": 2}

`page` is how many tools one page of the list has. A call without an answer is answered with its
arguments. The server knows neither prompts nor resources.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

INFO = {"name": "scripted", "version": "1.0"}


def answer(method: str, params: Mapping[str, Any], script: Mapping[str, Any]) -> Any:
    """Return the result of a request, None for one that it does not know."""
    match method:
        case "initialize":
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "tools/list":
            begin = int(params.get("cursor") or 0)
            end = begin + int(script.get("page", 100))
            tools = script["tools"]
            more = {"nextCursor": str(end)} if end < len(tools) else {}
            return {"tools": tools[begin:end], **more}
        case "tools/call":
            sent = [{"type": "text", "text": json.dumps(params["arguments"])}]
            return script["answers"].get(params["name"], {"content": sent})
        case _:
            return None


def main(path: Path) -> None:
    """Answer what comes in on stdin until it ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked:
            continue
        found = answer(asked["method"], asked.get("params", {}), json.loads(path.read_text()))
        said = (
            {"error": {"code": -32601, "message": "Method not found"}}
            if found is None
            else {"result": found}
        )
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
