"""Download a model from the hub: all its known files, checked and from one commit, or none."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

from rl_infonce.checks import check_count
from rl_infonce.files.durable import new_folder, replace_json, sync
from rl_infonce.hub.client import HubError, answered, api, check_repo, patiently
from rl_infonce.hub.files import AGENT, ENCODER, MOST_BYTES, check_content
from rl_infonce.runs.run_directory import now

_BLOCK = 2**20
_SECONDS = 30.0  # to wait for the next byte
_COMMIT = re.compile(r"[0-9a-f]{40}")


class Pulled(NamedTuple):
    """A finished download: the number of bytes by name, and the files that were left out."""

    folder: Path
    commit: str
    files: dict[str, int]
    left_out: list[str]


class _Listed(NamedTuple):
    """A file as the hub lists it: its size, and its SHA-256 if LFS keeps it, or git's SHA-1."""

    n_bytes: int
    sha256: str | None
    git_sha1: str | None


def pull(
    repo: str, folder: Path, *, revision: str = "main", most_bytes: int = MOST_BYTES[ENCODER]
) -> Pulled:
    """Download what `push` uploaded into a new folder.

    The revision (a commit, tag or branch) is resolved to a commit once, and every file is from that
    commit. Files that `push` does not write are left out. Each file is compared with the size and
    digest that the hub lists and then opened as what it should be, without executing its content.
    The folder appears only after all checks, with a `pull.json` that says where the files are from.
    """
    check_repo(repo)
    check_count("most_bytes", most_bytes)
    if folder.exists():
        raise FileExistsError(
            f"Expected a new folder, got {folder}, which exists. Choose another one."
        )
    hub = api()
    commit, listed, left_out = _listing(hub, repo, revision)
    _check_sizes(repo, listed, most_bytes)
    with new_folder(folder) as partial:
        digests = {}
        for name, entry in listed.items():
            digests[name] = _download(hub, repo, commit, name, entry, partial / name)
            _check(repo, name, partial / name)
        record = {
            "repo": repo,
            "revision": revision,
            "commit": commit,
            "endpoint": hub.endpoint,
            "time": now(),
            "files": {n: {"bytes": listed[n].n_bytes, "sha256": digests[n]} for n in listed},
        }
        replace_json(partial / "pull.json", record)
    return Pulled(folder, commit, {n: e.n_bytes for n, e in listed.items()}, left_out)


def _listing(hub: Any, repo: str, revision: str) -> tuple[str, dict[str, _Listed], list[str]]:
    """Return the commit, the files that this package knows, and the names of the others."""
    url = f"{hub.endpoint}/api/models/{repo}/revision/{revision}"
    info = answered(url, lambda: hub.model_info(repo, revision=revision, files_metadata=True))
    commit = str(info.sha)
    if not _COMMIT.fullmatch(commit) or (_COMMIT.fullmatch(revision) and commit != revision):
        raise HubError(f"Expected the commit of {revision} from {url}, got {commit!r}.")
    siblings = {str(each.rfilename): each for each in info.siblings or []}
    listed = {n: _listed(url, siblings[n]) for n in MOST_BYTES if n in siblings}
    if not listed.keys() & {ENCODER, AGENT}:
        raise ValueError(
            f"Expected {repo} to hold {ENCODER} or {AGENT}, as `rl-infonce push` names them, got "
            f"{sorted(siblings)[:10]}."
        )
    return commit, listed, sorted(siblings.keys() - listed.keys())


def _listed(url: str, sibling: Any) -> _Listed:
    if type(sibling.size) is not int or sibling.size < 0:
        raise HubError(f"Expected the sizes of files from {url}, got {sibling.size!r}.")
    if sibling.lfs:  # git has only the pointer
        return _Listed(sibling.size, sibling.lfs.sha256, None)
    return _Listed(sibling.size, None, sibling.blob_id)


def _check_sizes(repo: str, listed: dict[str, _Listed], most_bytes: int) -> None:
    for name, entry in listed.items():
        if entry.n_bytes > MOST_BYTES[name]:
            raise ValueError(
                f"Expected {name} of {repo} to have at most {MOST_BYTES[name]:,} bytes, got "
                f"{entry.n_bytes:,}."
            )
    total = sum(entry.n_bytes for entry in listed.values())
    if total > most_bytes:
        raise ValueError(
            f"Expected {repo} to have at most {most_bytes:,} bytes, got {total:,}. To download "
            "all, raise --max-bytes."
        )


def _download(hub: Any, repo: str, commit: str, name: str, entry: _Listed, path: Path) -> str:
    """Write one file, never more than its size, and return its SHA-256 after comparing digests."""
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = f"{hub.endpoint}/{repo}/resolve/{commit}/{name}"
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}

    def ask() -> tuple[int, str, str]:
        n_bytes, digest = 0, hashlib.sha256()
        of_git = hashlib.sha1(b"blob %d\0" % entry.n_bytes, usedforsecurity=False)
        with (
            get_session().stream("GET", url, headers=headers, timeout=_SECONDS) as response,
            path.open("wb") as file,
        ):
            hf_raise_for_status(response)
            for block in response.iter_bytes(_BLOCK):
                n_bytes += len(block)
                if n_bytes > entry.n_bytes:
                    raise ValueError(f"Expected {entry.n_bytes:,} bytes from {url}, got more.")
                digest.update(block)
                of_git.update(block)
                file.write(block)
            sync(file)
        return n_bytes, digest.hexdigest(), of_git.hexdigest()

    n_bytes, found, sha1 = patiently(url, ask)
    if n_bytes != entry.n_bytes:
        _check(repo, name, path)  # an LFS pointer is also shorter, and has its own message
        raise HubError(f"Expected {entry.n_bytes:,} bytes from {url}, got {n_bytes:,}.")
    if entry.sha256 not in (None, found):
        raise HubError(f"Expected a file of SHA-256 {entry.sha256} from {url}, got {found}.")
    if entry.git_sha1 not in (None, sha1):
        raise HubError(f"Expected git's blob {entry.git_sha1} from {url}, got {sha1}.")
    return found


def _check(repo: str, name: str, path: Path) -> None:
    try:
        check_content(name, path)
    except ValueError as error:
        raise ValueError(f"{name} of {repo} cannot be used: {error}") from error
