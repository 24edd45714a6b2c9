"""An HTTP server for tests that says nothing of clients that go away, as those do that have waited long enough."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """See ``ThreadingHTTPServer``."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """WindowCallbacks of by the trace, unless the client is gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
