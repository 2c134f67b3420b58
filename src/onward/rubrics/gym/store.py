"""Content store of a workflow's files: each content once, under its SHA-256, in a folder or in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from onward.files import make_folder, write_whole
from onward.rubrics.gym.parts import Resource, WorkflowError

MIME_TYPES = {
    "csv": "text/csv",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "md": "text/markdown",
    "json": "application/json",
    "py": "text/x-python",
}
"""File ending → MIME type: the formats of a workflow's files."""


def mime_type(name: str) -> str:
    """Returns the MIME type of a file by its name. Raises WorkflowError for an ending that no check reads."""
    ending = name.rpartition(".")[2].lower()
    if ending not in MIME_TYPES:
        known = ", ".join(f".{one}" for one in MIME_TYPES)
        raise WorkflowError(f"The file {name!r} has an unknown ending: use one of {known}.")
    return MIME_TYPES[ending]


class ResourceStore:
    """Contents by digest. ``folder`` None keeps them in memory, which training uses.

    Invariants: a stored content never changes; a content that is stored twice takes room once.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._memory: dict[str, bytes] = {}
        if folder is not None:
            make_folder(folder / "objects")

    def put(
        self, name: str, content: bytes, *, role: str = "output", made_by: str | None = None, about: str = ""
    ) -> Resource:
        """Stores ``content`` and returns the resource ``name`` that refers to it."""
        kind = mime_type(name)
        digest = hashlib.sha256(content).hexdigest()
        if self.folder is None:
            self._memory[digest] = content
        elif not (path := self._path(digest)).exists():
            make_folder(path.parent)
            write_whole(path, content, once=True)
        return Resource.model_validate({
            "name": name, "digest": digest, "mime_type": kind, "size": len(content),
            "role": role, "made_by": made_by, "description": about,
        })  # fmt: skip

    def get(self, resource: Resource) -> bytes:
        """Returns the content of ``resource``. Raises WorkflowError if it is missing or was changed."""
        if self.folder is None:
            content = self._memory.get(resource.digest)
        else:
            path = self._path(resource.digest)
            content = path.read_bytes() if path.is_file() else None
        if content is None:
            raise WorkflowError(
                f"The store has no content for the file {resource.name!r} ({resource.digest[:12]}): "
                "open the store that the workflow was run with."
            )
        if hashlib.sha256(content).hexdigest() != resource.digest:
            raise WorkflowError(
                f"The stored file {resource.name!r} was changed after it was written: run the workflow again."
            )
        return content

    def export(self, resources: dict[str, Resource], folder: Path) -> None:
        """Writes ``resources`` under their names into ``folder``, for a person to open. Raises WorkflowError
        for a name that would lie outside of it."""
        make_folder(folder)
        for name, resource in resources.items():
            if PurePosixPath(name).name != name or name.startswith("."):
                raise WorkflowError(f"The file name {name!r} is not a plain name: give one without folders.")
            write_whole(folder / name, self.get(resource))

    def _path(self, digest: str) -> Path:
        if self.folder is None:
            raise WorkflowError("The store lies in memory and has no folder: open it with a folder.")
        return self.folder / "objects" / digest[:2] / digest
