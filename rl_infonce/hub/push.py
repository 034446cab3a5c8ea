"""Upload a bundle to the hub, in one commit."""

from __future__ import annotations

from rl_infonce.hub.bundle import Bundle
from rl_infonce.hub.card import model_card
from rl_infonce.hub.client import answered, api, check_repo, library
from rl_infonce.hub.files import CARD, MOST_BYTES


def files_to_push(repo: str, bundle: Bundle) -> dict[str, bytes]:
    """Return a bundle's files and its model card, all of a size that `pull` takes."""
    files = {**bundle.files, CARD: model_card(repo, bundle).encode()}
    for name, content in files.items():
        if len(content) > MOST_BYTES[name]:
            raise ValueError(
                f"Expected {name} to have at most {MOST_BYTES[name]:,} bytes, the most that pull "
                f"takes, got {len(content):,}. Leave out what makes it large, such as scores or "
                "the provenance of the encoder."
            )
    return files


def push(repo: str, bundle: Bundle, *, private: bool = False) -> str:
    """Upload a bundle with its model card and return the address of the commit.

    The repository is made if there is none; `private` leaves an existing one as it is. One commit
    replaces files of the same names and removes those of an earlier push that the bundle lacks, as
    they are about another model; earlier commits keep them.
    """
    check_repo(repo)
    files = files_to_push(repo, bundle)
    hub, operations = api(), library()
    url = f"{hub.endpoint}/{repo}"
    answered(url, lambda: hub.create_repo(repo, private=private, exist_ok=True))
    there = {each.rfilename for each in answered(url, lambda: hub.model_info(repo)).siblings or ()}
    stale = (there & MOST_BYTES.keys()) - {*files}
    changes = [operations.CommitOperationAdd(name, content) for name, content in files.items()]
    changes += [operations.CommitOperationDelete(name) for name in stale]
    words = "Push with rl_infonce"
    commit = answered(url, lambda: hub.create_commit(repo, changes, commit_message=words))
    return str(commit.commit_url)
