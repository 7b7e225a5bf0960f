"""As much of Kubernetes' API as `helm install --dry-run=server` asks: kinds, no schema, and Secrets of a namespace."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
GROUPS = {
    "v1": {"secrets": "Secret", "services": "Service", "configmaps": "ConfigMap", "serviceaccounts": "ServiceAccount"},
    "apps/v1": {"deployments": "Deployment", "statefulsets": "StatefulSet"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
}
SCHEMA = b"\x0a\x032.0"  # an empty OpenAPI 2.0, as Protocol Buffers
NOT_FOUND = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}


class KubernetesApi:
    """An API server with these Secrets: the objects, by their names."""

    def __init__(self, secrets: dict[str, Json]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/openapi/v2":
                    self.reply(200, SCHEMA, "application/x-protobuf")
                else:
                    found = answer(path, secrets)
                    self.reply(200 if found is not NOT_FOUND else 404, json.dumps(found).encode(), "application/json")

            def reply(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def kubeconfig(self) -> str:
        """The configuration of a client, as JSON, which is YAML."""
        named = {
            "clusters": {"cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}},
            "contexts": {"context": {"cluster": "it", "user": "it"}},
            "users": {"user": {"token": "it"}},
        }
        lists = {kind: [{"name": "it", **content}] for kind, content in named.items()}
        return json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "it", **lists})

    def close(self) -> None:
        """Stop it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(path: str, secrets: dict[str, Json]) -> Json:
    """What a GET returns."""
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        versions = {
            group: {"groupVersion": group, "version": group.partition("/")[2]} for group in GROUPS if "/" in group
        }
        groups = [
            {"name": group.partition("/")[0], "versions": [version], "preferredVersion": version}
            for group, version in versions.items()
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    group, _, name = path.removeprefix("/apis/").removeprefix("/api/"), *path.rpartition("/")[1:]
    if group in GROUPS:
        resources = [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]}
            for name, kind in GROUPS[group].items()
        ]
        return {"kind": "APIResourceList", "groupVersion": group, "resources": resources}
    if name == "secrets":
        return {"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []}  # of releases: none
    return secrets.get(name, NOT_FOUND) if "/secrets/" in path else NOT_FOUND
