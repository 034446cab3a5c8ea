"""A stand-in of the hub: the few addresses that pushing and pulling ask, on this machine."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "1" * 40


class StandIn(ThreadingHTTPServer):
    """Repositories in memory, and what is to go wrong.

    Attributes:
        repos: Name to files; a repository that is not in it does not exist.
        private: Whether every request needs the token "right".
        refusals: Pattern of a path -> (status, headers) of its next answers.
        sizes: File -> size that the listing claims.
        sent: File -> content sent instead of its own.
        cut: Files of which half is sent.
        is_lfs: Files that the listing gives a digest for.
        large: Files that are to be uploaded as objects of their own.
        objects: SHA-256 -> content of those that were.
        asked: (method, path) of all requests.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private = False
        self.refusals: dict[str, list[tuple[int, dict[str, str]]]] = {}
        self.sizes: dict[str, int] = {}
        self.sent: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.is_lfs: set[str] = set()
        self.large: set[str] = set()
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running() -> Iterator[StandIn]:
    with StandIn() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self._is_refused():
            return
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/api/models/(\w+/\w+)(?:/revision/(\w+))?", path):
            self._list(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/(\w+/\w+)/resolve/(\w+)/([\w.]+)", path):
            self._send_file(found[1], found[3])
        else:
            self._answer(404, {"error": f"not known to the stand-in: {path}"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._is_refused():
            return
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.repos.setdefault(name, {})
            self._answer(200, {"url": f"{self.server.url}/{name}", "id": name})
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"] in self.server.large else "regular",
                    "shouldIgnore": False,
                }
                for each in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif path.endswith(".git/info/lfs/objects/batch"):
            asked = json.loads(body)["objects"]
            places = [f"{self.server.url}/objects/{each['oid']}" for each in asked]
            objects = [
                {**each, "actions": {"upload": {"href": place}}}
                for each, place in zip(asked, places, strict=True)
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/(\w+/\w+)/commit/main", path):
            for line in map(json.loads, body.splitlines()):
                self._change(self.server.repos[found[1]], line["key"], line["value"])
            url = f"{self.server.url}/{found[1]}/commit/{COMMIT}"
            self._answer(200, {"commitUrl": url, "commitOid": COMMIT, "success": True})
        else:
            self._answer(404, {"error": f"not known to the stand-in: {path}"})

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self._is_refused():
            return
        digest = self.path.rpartition("/")[2]
        is_whole = hashlib.sha256(body).hexdigest() == digest
        if is_whole:
            self.server.objects[digest] = body
        self._answer(200 if is_whole else 400, {})

    def _change(self, files: dict[str, bytes], kind: str, value: Any) -> None:
        if kind == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "lfsFile":
            files[value["path"]] = self.server.objects[value["oid"]]
        elif kind == "deletedFile":
            del files[value["path"]]

    def _is_refused(self) -> bool:
        self.server.asked.append((self.command, self.path))
        for pattern, answers in self.server.refusals.items():
            if answers and re.search(pattern, self.path):
                status, headers = answers.pop(0)
                self._answer(status, {"error": "refused"}, headers)
                return True
        if self.server.private and self.headers.get("Authorization") != "Bearer right":
            self._answer(401, {"error": "Invalid username or password."})
            return True
        return False

    def _list(self, repo: str, revision: str) -> None:
        if repo not in self.server.repos or revision not in ("main", COMMIT):
            code = "RepoNotFound" if repo not in self.server.repos else "RevisionNotFound"
            self._answer(404, {"error": "not found"}, {"X-Error-Code": code})
            return
        siblings = []
        for name, content in self.server.repos[repo].items():
            size = self.server.sizes.get(name, len(content))
            entry: dict[str, Any] = {"rfilename": name, "size": size, "blobId": _blob_id(content)}
            if name in self.server.is_lfs:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": size, "pointerSize": 134}
            siblings.append(entry)
        self._answer(200, {"id": repo, "sha": COMMIT, "siblings": siblings})

    def _send_file(self, repo: str, name: str) -> None:
        content = self.server.sent.get(name, self.server.repos[repo].get(name))
        if content is None:
            self._answer(404, {"error": "no such file"}, {"X-Error-Code": "EntryNotFound"})
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if name in self.server.cut else content)

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _blob_id(content: bytes) -> str:
    """Return what `git hash-object` prints."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
