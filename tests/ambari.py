"""An HTTP server that answers as Ambari does."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECRET = "planted-ambari-secret"
BASE = "/api/v1/clusters/kafka%20one"


def component(service: str, name: str, hosts: list[str], state: str = "STARTED") -> dict[str, Any]:
    """An answer in the shape of Ambari 2.7."""
    href = f"http://ambari:8080{BASE}/services/{service}/components/{name}"
    return {
        "href": href,
        "ServiceComponentInfo": {
            "cluster_name": "kafka one", "component_name": name, "service_name": service
        },
        "host_components": [
            {
                "href": f"http://ambari:8080{BASE}/hosts/{host}/host_components/{name}",
                "HostRoles": {
                    "cluster_name": "kafka one", "component_name": name, "host_name": host,
                    "state": state,
                },
            }
            for host in hosts
        ],
    }  # fmt: skip


def settings(properties: dict[str, str], env: str = "") -> dict[str, Any]:
    """``env``: kafka-env, the script that starts a broker."""
    other = {"Config": {"cluster_name": "kafka one"}, "type": "kafka-env",
             "properties": {"content": env, "kafka_user": "kafka"}}  # fmt: skip
    kafka = {"Config": {"cluster_name": "kafka one"}, "type": "kafka-broker",
             "tag": "version2", "properties": properties}  # fmt: skip
    return {"items": [{"service_name": "KAFKA", "configurations": [other, kafka]}]}


def hosts(ips: dict[str, str]) -> dict[str, Any]:
    """An answer with the hosts' addresses."""
    return {
        "items": [
            {"Hosts": {"cluster_name": "kafka one", "host_name": host, "ip": ip}}
            for host, ip in ips.items()
        ]
    }


HOSTS = f"{BASE}/hosts"
BROKERS = f"{BASE}/services/KAFKA/components/KAFKA_BROKER"
KEEPERS = f"{BASE}/services/ZOOKEEPER/components/ZOOKEEPER_SERVER"
SETTINGS = f"{BASE}/configurations/service_config_versions"


class Ambari:
    def __init__(self) -> None:
        self.answers: dict[str, Any] = {
            BROKERS: component(
                "KAFKA", "KAFKA_BROKER", ["wn1-kafka.internal", "wn0-kafka.internal"]
            ),
            KEEPERS: component("ZOOKEEPER", "ZOOKEEPER_SERVER", ["zk2.internal", "zk0.internal"]),
        }
        self.redirect = ""
        self.seen: list[str] = []
        self.url = ""


@contextmanager
def serve(ambari: Ambari, context: ssl.SSLContext | None = None) -> Iterator[Ambari]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            ambari.seen.append(f"{self.command} {self.path}")
            wanted = "Basic " + base64.b64encode(f"admin:{SECRET}".encode()).decode()
            path = self.path.partition("?")[0]
            body = b"{}"
            if ambari.redirect:
                self.send_response(302)
                self.send_header("Location", ambari.redirect + self.path)
            elif self.headers.get("Authorization") != wanted:
                self.send_response(403)
            elif path not in ambari.answers:
                self.send_response(404)
            else:
                self.send_response(200)
                answer = ambari.answers[path]
                body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    ambari.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield ambari
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
