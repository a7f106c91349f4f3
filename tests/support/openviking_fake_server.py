"""A program that starts as OpenViking's server does, for tests of how that is started and ended.

Where its `--config` holds {"fake": {"fails": text}}, it says that text and ends.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status: Any = {"status": "ok", "result": {"uri": "viking://user/alice"}}
        body = json.dumps(status).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        sys.stderr.write(f"asked {self.headers.get('x-api-key')}\n")


def main() -> None:
    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
    does = config.get("fake", {})
    if "fails" in does:
        sys.exit(does["fails"])
    Path(config["storage"]["workspace"], "pid").write_text(str(os.getpid()))
    HTTPServer(("127.0.0.1", config["server"]["port"]), _Handler).serve_forever()


if __name__ == "__main__":
    main()
