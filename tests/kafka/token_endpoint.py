"""An OAuth token endpoint: unsecured tokens of a short life for one client's credentials."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sparkmirror.config.sasl import OAuthLogin
from sparkmirror.wire.oauth import unsecured_token
from tests.certificates import Certified

CLIENT_ID, CLIENT_SECRET = "mirror", "planted-token-secret-4242"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"


@dataclass
class TokenEndpoint:
    """``asked``: the forms that came, refused ones as well."""

    url: str = ""
    lifetime_s: float = 3
    asked: list[str] = field(default_factory=list)

    def properties(self, secret: str = CLIENT_SECRET, *options: str) -> dict[str, str]:
        """What a client's file says to get tokens here; ``options``: more of the JAAS entry."""
        words = (f'clientId="{CLIENT_ID}"', f'clientSecret="{secret}"', 'scope="kafka"', *options)
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.login.callback.handler.class": f"{_PACKAGE}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.url,
            "sasl.jaas.config": f"{_PACKAGE}.OAuthBearerLoginModule required {' '.join(words)};",
        }


@contextmanager
def token_endpoint(
    own: Certified | None = None, directory: Path | None = None
) -> Iterator[TokenEndpoint]:
    """``own``: the certificate of an https endpoint, for localhost; written to ``directory``."""
    found = TokenEndpoint()
    right = "Basic " + base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
            refused = self.headers["Authorization"] != right
            login = OAuthLogin(claims={"sub": "mirror"}, lifetime_s=found.lifetime_s)
            token = unsecured_token(login, time.time()).text
            body = {"error": "invalid_client"} if refused else {"access_token": token}
            self.send_response(401 if refused else 200)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up
    scheme = "http"
    if own is not None:
        assert directory is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(own.pem_file(directory / "endpoint.pem"))
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        scheme = "https"
    found.url = f"{scheme}://localhost:{server.server_port}/token"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
