"""The object store: checkpoints, datasets and archives, as whole files under a key.

A local folder has its own writer, because obstore's local store never calls fsync. It writes to a temporary
file, fsyncs, links or renames the file into place, and fsyncs the folder. Everything else goes through
obstore. ``create_only`` is the commit of a training job: of many writers exactly one wins.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import secrets
import stat
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any, Protocol

from onward.errors import ConfigError, ConflictError, NotFoundError, ObjectError, ObjectRefusedError
from onward.files import is_disk_failure, sync_folder

_SEGMENT = re.compile(r"[A-Za-z0-9._=:@+-]{1,255}")
_DRAFT = ".draft-"
_BLOCK = 1 << 20
_LOOK_UPS = 16
_AWAY = frozenset({
    errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
    errno.EMFILE, errno.ENFILE, errno.ENOMEM,
})  # fmt: skip
"""Errors of a folder that is on another machine which does not answer, or of a process at its limits."""
_REFUSED_STATUS = re.compile(r"status code: 4(?!08|29)\d\d")
"""An HTTP answer that says no; 408 and 429 mean later."""
_URL = re.compile(r"(s3|gs|az|abfss?|https?)://", re.IGNORECASE)


def check_key(key: str) -> str:
    """Returns ``key`` if it is ``segment/segment/…`` of plain characters; else raises ObjectError. No empty
    segment, no ``.`` or ``..``, no leading or trailing slash: a key never leaves the store."""
    parts = key.split("/")
    good = len(key) <= 900 and all(
        _SEGMENT.fullmatch(part) and part not in (".", "..") and not part.startswith(_DRAFT) for part in parts
    )
    if not good:
        raise ObjectRefusedError(
            f"Object key {key[:80]!r} is not usable: give segments of letters, digits and ._=:@+- "
            "joined by single slashes."
        )
    return key


class _Store(Protocol):
    async def put(self, key: str, data: bytes | Path, create_only: bool) -> None: ...
    def stream(self, key: str) -> AsyncIterator[bytes]: ...
    async def list(self, prefix: str) -> list[str]: ...
    async def exists(self, key: str) -> bool: ...
    async def delete(self, key: str) -> None: ...


class Objects:
    """Whole objects by key, in a local folder or a bucket."""

    def __init__(self, store: _Store, where: str) -> None:
        self._store = store
        self.where = where

    @classmethod
    def open(cls, url_or_path: str | Path, **options: Any) -> Objects:
        """Opens a folder (created if missing), or ``s3://bucket/prefix/``, ``gs://…``, ``az://…``.

        ``options`` are obstore's (``endpoint``, ``access_key_id`` …); the usual environment variables
        (``AWS_*`` …) are read too. Raises ConfigError for an address that it cannot use.
        """
        text = str(url_or_path)
        if _URL.match(text):
            return cls(_BucketStore(text, options), text)
        if "://" in text and not text.startswith("file://"):
            raise ConfigError(f"Object store {text!r} is unknown: give a folder, s3://, gs:// or az://.")
        return cls(_FolderStore(Path(text.removeprefix("file://"))), text)

    async def put(self, key: str, data: bytes | Path, *, create_only: bool = False) -> None:
        """Stores bytes, or the content of a file, durably under ``key``. Raises ConflictError if
        ``create_only`` and the key exists; ObjectError."""
        await self._store.put(check_key(key), data, create_only)

    async def get(self, key: str) -> bytes:
        """Returns the bytes under ``key``. Raises NotFoundError, ObjectError."""
        return b"".join([part async for part in self._store.stream(check_key(key))])

    async def get_file(self, key: str, path: Path) -> None:
        """Writes the object to ``path``, which appears complete and durable or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = _draft(path)
        try:
            with draft.open("xb") as file:
                async for part in self._store.stream(check_key(key)):
                    await asyncio.to_thread(file.write, part)
                await asyncio.to_thread(_flush, file)
            draft.replace(path)
            await asyncio.to_thread(sync_folder, path.parent)
        finally:
            draft.unlink(missing_ok=True)

    async def list(self, prefix: str = "") -> list[str]:
        """Keys at or below ``prefix`` (whole segments: ``jobs/1`` does not match ``jobs/12``), sorted."""
        prefix = prefix.rstrip("/")
        return await self._store.list(check_key(prefix) if prefix else "")

    async def exists(self, key: str) -> bool:
        """Returns whether ``key`` exists. Raises ObjectError if that is unknown."""
        return await self._store.exists(check_key(key))

    async def find_existing(self, keys: Iterable[str]) -> set[str]:
        """Returns those of ``keys`` that exist; a few are looked up at once. Raises ObjectError."""
        places = asyncio.Semaphore(_LOOK_UPS)

        async def look_up(key: str) -> bool:
            async with places:
                return await self.exists(key)

        names = sorted(set(keys))
        found = await asyncio.gather(*map(look_up, names))
        return {name for name, exists in zip(names, found, strict=True) if exists}

    async def delete(self, key: str) -> None:
        """Removes ``key``. A missing key is no error. Raises ObjectError."""
        await self._store.delete(check_key(key))


class _FolderStore:
    def __init__(self, root: Path) -> None:
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"Object folder {root} cannot be used: {error.strerror}.") from None
        self._root = root.resolve()

    async def put(self, key: str, data: bytes | Path, create_only: bool) -> None:
        try:
            created = await asyncio.to_thread(self._write, self._root / key, data, create_only)
        except OSError as error:
            raise self._failure(error, f"Object {key} cannot be written", writes=True) from error
        if not created:
            raise ConflictError(f"Object {key} exists already and was to be created only.")

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        try:
            with (self._root / key).open("rb") as file:
                while part := await asyncio.to_thread(file.read, _BLOCK):
                    yield part
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise NotFoundError(f"Object {key} does not exist in {self._root}.") from None
        except OSError as error:
            raise self._failure(error, f"Object {key} cannot be read") from error

    async def list(self, prefix: str) -> list[str]:
        try:
            return await asyncio.to_thread(self._walk, prefix)
        except OSError as error:
            raise self._failure(error, f"Objects under {prefix!r} cannot be listed") from error

    async def exists(self, key: str) -> bool:
        try:
            return stat.S_ISREG((self._root / key).stat().st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._failure(error, f"Object {key} cannot be looked up") from error

    async def delete(self, key: str) -> None:
        try:
            (self._root / key).unlink()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return
        except OSError as error:
            raise self._failure(error, f"Object {key} cannot be deleted") from error

    def _failure(self, error: OSError, what: str, *, writes: bool = False) -> ObjectError:
        """Returns the error to raise. An error of reading (EIO) may mean a single object: it is a refusal."""
        is_one_object = error.errno == errno.EIO and not writes
        away = error.errno in _AWAY or (is_disk_failure(error, self._root) and not is_one_object)
        return (ObjectError if away else ObjectRefusedError)(f"{what}: {error.strerror}.")

    def _write(self, target: Path, data: bytes | Path, create_only: bool) -> bool:
        """Returns whether it was written; False if ``create_only`` and the object exists."""
        self._make_folders(target.parent)
        draft = _draft(target)
        try:
            with draft.open("xb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        while part := source.read(_BLOCK):
                            file.write(part)
                else:
                    file.write(data)
                _flush(file)
            if create_only:
                try:
                    os.link(draft, target)
                except FileExistsError:
                    return False
            else:
                draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(target.parent)
        return True

    def _make_folders(self, folder: Path) -> None:
        """Works like mkdir -p; the entry of each new folder is durable too."""
        missing: list[Path] = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            sync_folder(new.parent)

    def _walk(self, prefix: str) -> list[str]:
        start = self._root / prefix
        if start.is_file():
            return [prefix]
        found = (path for path in start.rglob("*") if path.is_file() and not path.name.startswith(_DRAFT))
        return sorted(path.relative_to(self._root).as_posix() for path in found)


class _BucketStore:
    def __init__(self, url: str, options: dict[str, Any]) -> None:
        import obstore
        from obstore import exceptions
        from obstore.store import from_url

        make: Any = from_url
        self._obstore: Any = obstore
        self._errors: Any = exceptions
        if url.lower().startswith("s3://"):
            # Off by default; without it create-only puts are refused.
            options = {"conditional_put": "etag", **options}
        endpoint = str(options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", ""))
        plain = {"client_options": {"allow_http": True}} if endpoint.startswith("http://") else {}
        try:
            self._store: Any = make(url, config=options, **plain)
        except exceptions.BaseError as error:
            raise ConfigError(f"Object store {url} cannot be used: {_first_line(error)}.") from None

    async def put(self, key: str, data: bytes | Path, create_only: bool) -> None:
        extra = {"mode": "create", "use_multipart": False} if create_only else {}
        try:
            await self._obstore.put_async(self._store, key, data, **extra)
        except self._errors.AlreadyExistsError:
            raise ConflictError(f"Object {key} exists already and was to be created only.") from None
        except (self._errors.BaseError, OSError) as error:
            raise self._failure(error, f"Object {key} cannot be written") from error

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        try:
            found = await self._obstore.get_async(self._store, key)
            async for part in found.stream(min_chunk_size=_BLOCK):
                yield bytes(part)
        except (self._errors.NotFoundError, FileNotFoundError):
            raise NotFoundError(f"Object {key} does not exist.") from None
        except self._errors.BaseError as error:
            raise self._failure(error, f"Object {key} cannot be read") from error

    async def list(self, prefix: str) -> list[str]:
        keys: list[str] = []
        try:
            async for page in self._obstore.list(self._store, prefix or None):
                keys += [item["path"] for item in page]
        except self._errors.BaseError as error:
            raise self._failure(error, f"Objects under {prefix!r} cannot be listed") from error
        if prefix and not keys and await self.exists(prefix):
            keys = [prefix]
        return sorted(keys)

    async def exists(self, key: str) -> bool:
        try:
            await self._obstore.head_async(self._store, key)
        except (self._errors.NotFoundError, FileNotFoundError):
            return False
        except self._errors.BaseError as error:
            raise self._failure(error, f"Object {key} cannot be looked up") from error
        return True

    async def delete(self, key: str) -> None:
        try:
            await self._obstore.delete_async(self._store, key)
        except (self._errors.NotFoundError, FileNotFoundError):
            return
        except self._errors.BaseError as error:
            raise self._failure(error, f"Object {key} cannot be deleted") from error

    def _failure(self, error: Exception, what: str) -> ObjectError:
        """Returns the error to raise: a refusal if the store answered and repeating cannot help."""
        kinds, line = self._errors, _first_line(error)
        never = (
            kinds.PermissionDeniedError, kinds.UnauthenticatedError, kinds.InvalidPathError,
            kinds.NotSupportedError, kinds.PreconditionError,
        )  # fmt: skip
        refused = isinstance(error, never) or _REFUSED_STATUS.search(str(error)) is not None
        return (ObjectRefusedError if refused else ObjectError)(f"{what}: {line}.")


def _draft(target: Path) -> Path:
    return target.with_name(f"{_DRAFT}{secrets.token_hex(8)}")


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _first_line(error: BaseException) -> str:
    return (
        str(error).strip().splitlines()[0][:300].rstrip(".") if str(error).strip() else type(error).__name__
    )
