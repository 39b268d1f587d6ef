"""Fetches files from other machines on threads of its own: a bucket that hangs delays nothing else."""

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from onebert_server.versions.directory import Directory
from onebert_server.versions.residency.load_queue import LoadQueue
from onebert_server.versions.version import State, Version
from onebert_store.registry.registry import Registry

# Files in progress: being fetched, or fetched and not taken yet. Each may have the largest size of a delta file.
AT_ONCE = 4


class Fetches:
    """Gives the loader's thread the files of versions once they are here; only that thread calls the methods.

    `queue` gets each version whose file has come.
    """

    def __init__(self, registry: Registry, directory: Directory, queue: LoadQueue) -> None:
        self._threads = ThreadPoolExecutor(AT_ONCE, "onebert-fetcher")
        self._registry = registry
        self._directory = directory
        self._queue = queue
        self._waiting = LoadQueue()
        self._files: dict[Version, Future[bytes]] = {}

    def take(self, version: Version, principal: str) -> bytes | None:
        """Returns a version's file if it has come or lies on this machine; otherwise has it fetched and returns None.

        With a principal it is fetched in that principal's turn, and only while somebody wants it; without one, always.
        """
        if version not in self._files:
            data = self._registry.read_local(version.entry)
            if data is None:
                self._waiting.put(version, principal)
                self._begin()
            return data
        if not self._files[version].done():
            return None
        file = self._files.pop(version)
        self._begin()
        return file.result()

    def arrived(self, seconds: float = 0.0) -> Mapping[Version, str]:
        """Returns versions whose fetch has ended, until they are taken; waits so many seconds for the first one."""
        wait(self._files.values(), seconds, FIRST_COMPLETED)
        return {version: "" for version, file in self._files.items() if file.done()}

    def give_up(self) -> list[Version]:
        """Drops the fetches that still wait, and returns their versions; nobody loads them any more."""
        return [version for version in self._waiting.clear() if self._directory.give_up_unwanted(version)]

    def close(self) -> list[Version]:
        """Waits for running fetches, and returns, once, each version that still has to be loaded."""
        self._threads.shutdown(cancel_futures=True)
        return [*self._waiting.clear(), *(version for version in self._files if version.state is State.LOADING)]

    def _begin(self) -> None:
        while len(self._files) < AT_ONCE and (taken := self._waiting.take(1)):
            [(version, principal)] = taken.items()
            if version not in self._files and not (principal and self._directory.give_up_unwanted(version)):
                self._fetch(version)

    def _fetch(self, version: Version) -> None:
        file = self._files[version] = self._threads.submit(self._registry.read, version.entry)
        file.add_done_callback(lambda _: self._queue.put(version, ""))
