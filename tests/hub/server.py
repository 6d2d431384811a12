"""A hub on the loopback interface, for the real `kernels` and `huggingface_hub`: the requests that they make, answered
from branches of files in memory. One kernel, an organisation that is trusted or not, and downloads that go wrong.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
BLOBS = (".so",)  # kept apart from git, as large files are: named by their SHA-256


class Branch:
    """A commit of files; `sent` is what becomes of a file's content on its way to the client."""

    def __init__(self, name: str, files: dict[str, bytes], sent: Callable[[str, bytes], bytes] | None = None):
        self.name, self.files = name, files
        self.sent = sent or (lambda path, content: content)
        listing = "".join(f"{path} {etag(path, content)}\n" for path, content in sorted(files.items()))
        self.commit = hashlib.sha1(f"{name}\n{listing}".encode()).hexdigest()

    def entries(self, folder: str, recursive: bool) -> list[dict]:
        """The hub's listing of a folder: what lies in it, or under it."""
        start = f"{folder}/" if folder else ""
        below = {path[len(start) :]: path for path in self.files if path.startswith(start)}
        folders = {start + name[:end] for name in below for end, letter in enumerate(name) if letter == "/"}
        if not recursive:
            below = {name: path for name, path in below.items() if "/" not in name}
            folders = {path for path in folders if "/" not in path[len(start) :]}
        directories = [{"type": "directory", "path": path, "oid": self.commit} for path in sorted(folders)]
        return directories + [file_entry(path, self.files[path]) for path in sorted(below.values())]


def file_entry(path: str, content: bytes) -> dict:
    entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha(content)}
    if path.endswith(BLOBS):
        entry["lfs"] = {"oid": etag(path, content), "size": len(content), "pointerSize": 134}
    return entry


def git_sha(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if path.endswith(BLOBS) else git_sha(content)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files under a folder, by their paths from it."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


class Hub:
    """Serves from `with` on. `requests` are those answered so far, "GET /api/...", without queries."""

    def __init__(self, repo: str, *branches: Branch, trusted: bool = False):
        self.repo, self.branches, self.trusted = repo, {branch.name: branch for branch in branches}, trusted
        self.requests: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                url = urlsplit(self.path)
                hub.requests.append(f"{self.command} {unquote(url.path)}")
                status, headers, body = hub.answer(self.command, url.path, "recursive=true" in url.query.lower())
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Hub:
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method: str, path: str, recursive: bool) -> Answer:
        organisation = self.repo.partition("/")[0]
        if path == f"/api/organizations/{organisation}/overview":
            named = {"name": organisation, "fullname": organisation, "avatarUrl": ""}
            return found({**named, "trustedKernelPublisher": self.trusted})
        if path == f"/api/kernels/{self.repo}/refs":
            heads = [
                {"name": branch.name, "ref": f"refs/heads/{branch.name}", "targetCommit": branch.commit}
                for branch in self.branches.values()
            ]
            return found({"branches": heads, "tags": [], "converts": []})
        for start in (f"/api/kernels/{self.repo}/", f"/kernels/{self.repo}/"):
            if path.startswith(start):
                verb, revision, *names = map(unquote, path[len(start) :].split("/"))
                branch = self.find(revision)
                if branch is None:
                    return missing("Revision", revision)
                return self.answer_of(branch, method, verb, "/".join(names), recursive)
        return missing("Repo", path)

    def answer_of(self, branch: Branch, method: str, verb: str, path: str, recursive: bool) -> Answer:
        commit = {"X-Repo-Commit": branch.commit}
        if verb == "revision":
            return found({"id": self.repo, "sha": branch.commit}, commit)
        if verb == "tree" and (entries := branch.entries(path, recursive)):
            return found(entries, commit)
        if verb == "resolve" and (content := branch.files.get(path)) is not None:
            body = content if method == "HEAD" else branch.sent(path, content)
            return 200, {**commit, "ETag": f'"{etag(path, content)}"'}, body
        return missing("Entry", path, commit)

    def find(self, revision: str) -> Branch | None:
        """By commit, name, or full name of the reference."""
        for branch in self.branches.values():
            if revision in (branch.commit, branch.name, f"refs/heads/{branch.name}"):
                return branch
        return None


def found(content: dict | list, headers: dict[str, str] | None = None) -> Answer:
    return 200, {**(headers or {}), "Content-Type": "application/json"}, json.dumps(content).encode()


def missing(what: str, name: str, headers: dict[str, str] | None = None) -> Answer:
    """The code that the client tells the kinds of 404 by."""
    return 404, {**(headers or {}), "X-Error-Code": f"{what}NotFound"}, f"{what} not found: {name}".encode()
