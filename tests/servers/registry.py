"""A schema registry on the loopback, with the part of Confluent's REST interface that clients use to read and register.

Owns: ``FakeRegistry``. Not tested against here: the registry's own checks of compatibility.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.quiet_server import QuietServer

USER, PASSWORD = "reader", "quite:secret"


@dataclass
class FakeRegistry:
    """``schemas``: by id from 1. ``status``: answered to every request where it is set. ``asked``: the paths."""

    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    status: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def options(self) -> dict[str, Any]:
        """What its client needs; it asks once."""
        return {"basic.auth.user.info": f"{USER}:{PASSWORD}", "max.retries": 0}

    def add(self, subject: str, schema: Any, kind: str = "AVRO", references: Any = ()) -> int:
        """Register a schema; a text, or what is written as JSON. Returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        found = {"schema": text, "schemaType": kind, "references": list(references)}
        if found not in self.schemas:
            self.schemas.append(found)
        number = self.schemas.index(found) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        self.asked.append(path)
        if self.status:
            return self.status, {"error_code": self.status, "message": "as planned"}
        parts = [unquote(part) for part in path.partition("?")[0].strip("/").split("/")]
        if parts[:2] == ["schemas", "ids"]:
            number = int(parts[2])
            if number > len(self.schemas):
                return 404, {"error_code": 40403, "message": "Schema not found"}
            found = self.schemas[number - 1]
            if "format=serialized" in path and found["schema"].startswith("syntax"):
                return 200, {**found, "schema": serialized(found["schema"])}
            return 200, found
        if parts[0] == "subjects" and method == "GET":
            versions = self.subjects.get(parts[1], [])
            if int(parts[3]) > len(versions):
                return 404, {"error_code": 40402, "message": "Version not found"}
            number = versions[int(parts[3]) - 1]
            return 200, {
                "subject": parts[1],
                "version": int(parts[3]),
                "id": number,
                **self.schemas[number - 1],
            }
        if parts[0] == "subjects":
            number = self.add(
                parts[1], body["schema"], body.get("schemaType", "AVRO"), body.get("references", ())
            )
            version = self.subjects[parts[1]].index(number) + 1
            return 200, {"subject": parts[1], "version": version, "id": number, **self.schemas[number - 1]}
        return 404, {"error_code": 404, "message": f"no {path}"}


def serialized(text: str) -> str:
    """The descriptor of one flat message in .proto text, as a registry compiles it."""
    from google.protobuf import descriptor_pb2

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(syntax="proto3")
    file.dependency.extend(re.findall(r'import "(.*?)";', text))
    (name,) = re.findall(r"message (\w+) \{", text)
    message = file.message_type.add(name=name)
    for label, type_, called, number in re.findall(r"(optional|repeated) ([\w.]+) (\w+) = (\d+);", text):
        one = message.field.add(
            name=called, number=int(number), label=kind.Label.Value(f"LABEL_{label.upper()}")
        )
        if "." in type_:
            one.type, one.type_name = kind.TYPE_MESSAGE, f".{type_}"
        else:
            one.type = kind.Type.Value(f"TYPE_{type_.upper()}")
        if label == "optional":
            one.proto3_optional, one.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{called}")
    return base64.b64encode(file.SerializeToString()).decode()


@contextlib.contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """A running registry."""
    registry = FakeRegistry()
    login = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length) or b"null")
            path = urlsplit(self.path)
            status, found = 401, {"error_code": 401, "message": "Unauthorized"}
            if self.headers.get("Authorization") == login:
                status, found = registry.answer(self.command, f"{path.path}?{path.query}", body)
            text = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
