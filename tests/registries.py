"""A schema registry for tests, with Confluent's REST API, and Avro's own library for Java."""

from __future__ import annotations

import base64
import json
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Schema = str | dict[str, Any] | list[Any]


def wire(schema_id: int, payload: bytes) -> bytes:
    """A value as Confluent's serializers write it."""
    return struct.pack(">bI", 0, schema_id) + payload


def varint(value: int) -> bytes:
    """Protobuf's number of variable length."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


class SchemaRegistry:
    """Schemas by id and by subject; what goes wrong is an attribute.

    ``login``: the header that each request needs. ``status``: the answer to all requests instead.
    ``hangs``: they get none. ``asked``: requests by path.
    """

    def __init__(self, login: str = "") -> None:
        self.login = login
        self.status = 0
        self.hangs = False
        self.asked: Counter[str] = Counter()
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}

    def add(
        self,
        subject: str,
        schema: Schema,
        kind: str = "AVRO",
        references: tuple[tuple[str, str, int], ...] = (),
    ) -> int:
        """Register the next version of ``subject``; its id.

        ``references``: name, subject, version.
        """
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = len(self._schemas) + 1
        document: dict[str, Any] = {"schema": text}
        if kind != "AVRO":
            document["schemaType"] = kind
        if references:
            document["references"] = [
                dict(zip(("name", "subject", "version"), one, strict=True)) for one in references
            ]
        self._schemas[found] = document
        self._subjects.setdefault(subject, []).append(found)
        return found

    def answer(self, path: str, authorization: str) -> tuple[int, Any]:
        """Status and document."""
        self.asked[path] += 1
        if self.status:
            return self.status, {"error_code": self.status, "message": "as the test wants it"}
        if self.login and authorization != self.login:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = [unquote(one) for one in path.strip("/").split("/")]
        if parts == ["schemas", "types"]:
            return 200, ["AVRO", "JSON", "PROTOBUF"]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self._schemas:
            return 200, self._schemas[int(parts[2])]
        if parts[0] == "subjects" and parts[2] == "versions":
            ids = self._subjects.get(parts[1], [])
            version = len(ids) if parts[3] == "latest" else int(parts[3])
            if 1 <= version <= len(ids):
                found = ids[version - 1]
                more = {"subject": parts[1], "version": version, "id": found}
                return 200, {**self._schemas[found], **more}
            return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def serving(
    registry: SchemaRegistry,
    certificate: Path | None = None,
    port: int = 0,
    clients: Path | None = None,
) -> Iterator[str]:
    """The address of ``registry``.

    ``certificate``: a PEM file with key and chain, for https. ``clients``: one with the authority
    of the certificate that each client needs.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            while registry.hangs and not ended.is_set():
                time.sleep(0.05)
            login = self.headers.get("Authorization", "")
            status, document = registry.answer(urlsplit(self.path).path, login)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    ended = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients go away
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        scheme = "http" if certificate is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()


def basic(user: str, password: str) -> str:
    """The header of a login."""
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


class Avro:
    """Avro's library for Java: what other producers and consumers use. ``jvm``: with its jar."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    def schema(self, schema: Schema) -> Any:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        return self._jvm.org.apache.avro.Schema.Parser().parse(text)

    def written(self, schema: Schema, text: str) -> bytes:
        """The record whose form in Avro's own JSON is ``text``."""
        parsed = self.schema(schema)
        factory = self._jvm.org.apache.avro.io.DecoderFactory.get()
        datum = self._jvm.org.apache.avro.generic.GenericDatumReader(parsed).read(
            None, factory.jsonDecoder(parsed, text)
        )
        return self._bytes(parsed, datum)

    def read(self, schema: Schema, data: bytes) -> str:
        """The record in Avro's own JSON."""
        parsed = self.schema(schema)
        factory = self._jvm.org.apache.avro.io.DecoderFactory.get()
        datum = self._jvm.org.apache.avro.generic.GenericDatumReader(parsed).read(
            None, factory.binaryDecoder(data, None)
        )
        made = self._jvm.java.io.ByteArrayOutputStream()
        encoder = self._jvm.org.apache.avro.io.EncoderFactory.get().jsonEncoder(parsed, made)
        self._jvm.org.apache.avro.generic.GenericDatumWriter(parsed).write(datum, encoder)
        encoder.flush()
        return bytes(made.toByteArray()).decode()

    def random(self, schema: Schema, count: int, seed: int) -> list[bytes]:
        """Records with random contents."""
        parsed = self.schema(schema)
        made = self._jvm.org.apache.avro.util.RandomData(parsed, count, seed).iterator()
        return [self._bytes(parsed, made.next()) for _ in range(count)]

    def _bytes(self, parsed: Any, datum: Any) -> bytes:
        made = self._jvm.java.io.ByteArrayOutputStream()
        encoder = self._jvm.org.apache.avro.io.EncoderFactory.get().binaryEncoder(made, None)
        self._jvm.org.apache.avro.generic.GenericDatumWriter(parsed).write(datum, encoder)
        encoder.flush()
        return bytes(made.toByteArray())
