"""Who may talk to the page: only what the page itself opened, whatever its name is made to point to."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

POLICY_VIOLATION = 1008
"""The close code of a websocket that may not be opened."""


class SameOrigin:
    """Requests and websockets whose ``Origin`` is another host than the one asked get no answer.

    A browser sends ``Origin`` with every websocket, and lets any page open one to any host: the check is the server's.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] in ("http", "websocket") and not _same(scope):
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": POLICY_VIOLATION})
            else:
                await PlainTextResponse("another origin", status_code=403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _same(scope: Scope) -> bool:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
