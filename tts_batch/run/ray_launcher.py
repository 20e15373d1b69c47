"""`--launcher ray`: workers as actors of a Ray cluster, one for each GPU, or for each node of a cluster without any.

Ray places the actors and ends them; rows and progress go over a connection of our own from each actor to this process,
so that an actor is to the pool what a worker of this machine is.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO

from tts_batch.errors import CannotContinueError, UsageError
from tts_batch.run.devices import Device
from tts_batch.worker.actor import WorkerActor, keep_alive

TOKEN_BYTES = 32
HANDSHAKE_S = 10.0
POLL_S = 0.5  # between two questions about an actor
LOST_S = 5.0  # until the cluster knows that a node is gone
MAX_CLIP_PROCESSES = 8
_COPY_BYTES = 256 * 1024


class RayWorker:
    """An actor, as `subprocess.Popen` shows a process."""

    def __init__(self, actor: Any, ended: Any, token: bytes) -> None:
        self.actor, self.token = actor, token
        self.pid = actor._actor_id.hex()
        self.error = ""
        self._status: int | None = None
        self._ended, self._asked_s = ended, 0.0

    def poll(self) -> int | None:
        """Return how it ended: 0, or -9; None while it runs. The cluster is asked twice a second at most."""
        now_s = time.monotonic()
        if self._status is None and now_s - self._asked_s >= POLL_S:
            self._asked_s = now_s
            self._ask(0)
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; one that the cluster still takes for alive has lost its connection, and is killed."""
        if self._status is None:
            self._ask(LOST_S if timeout is None else max(timeout, LOST_S))
        if self._status is None:
            self._status, self.error = -9, "its connection ended"
        return self._status

    def _ask(self, timeout_s: float) -> None:
        import ray

        done, _ = ray.wait([self._ended], timeout=timeout_s)
        if done:
            try:
                ray.get(self._ended)
                self._status = 0
            except Exception as error:  # ray's own, or what the actor raised
                self._status, self.error = -9, " ".join(str(error).split())[:300]


class RayLauncher:
    """Starts actors in a cluster, and connects each of them to this process."""

    def __init__(self, address: str | None, device: str, placement: str, url: str | None) -> None:
        """Raises UsageError without Ray, and when there is no cluster at `address`. None: Ray's own default."""
        try:
            import ray
        except ImportError:
            raise UsageError("--launcher ray needs Ray: pip install 'tts-batch[ray]'.") from None
        if (address or os.environ.get("RAY_ADDRESS", "")).startswith("ray://"):
            raise UsageError(
                "--ray-address ray://… is a client from outside, which workers cannot connect to: run the command on a "
                "node of the cluster, as with `ray job submit`, and give HOST:PORT or leave the option out."
            )
        self._ray: Any = ray
        self._started_ray = not ray.is_initialized()
        if self._started_ray:
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
            except ConnectionError as error:
                raise UsageError(f"There is no Ray cluster at {address}: {error}") from None
        gpus = self._per_node("GPU")
        self._kind = ("cuda" if any(gpus) else "cpu") if device == "auto" else device
        self._gpus_each = 0 if self._kind == "cpu" else 2 if placement == "split" else 1
        if self._gpus_each and not self.num_slots:
            self.close()
            raise UsageError(f"--device {device}, but no node of the Ray cluster has {self._gpus_each} free to use.")
        self._url = url
        host = self._ray.util.get_node_ip_address()
        self._listener = socket.create_server((host, 0), backlog=128)
        self._address = (host, self._listener.getsockname()[1])
        self._waiting: dict[bytes, socket.socket] = {}
        threading.Thread(target=self._accept, name="ray-workers", daemon=True).start()

    @property
    def devices(self) -> list[Device]:
        """One for each worker that there is room for."""
        return [Device(self._kind)] * max(1, self.num_slots)

    @property
    def num_slots(self) -> int:
        """How many workers the nodes that are alive have room for."""
        if not self._gpus_each:
            return len(self._per_node("CPU"))
        return sum(int(gpus // self._gpus_each) for gpus in self._per_node("GPU"))

    def _per_node(self, resource: str) -> list[float]:
        nodes = (node["Resources"] for node in self._ray.nodes() if node["Alive"])
        return [node[resource] for node in nodes if node.get(resource, 0) > 0]

    def start(self, device: Device, log: BinaryIO) -> tuple[socket.socket, RayWorker]:
        ours, theirs = socket.socketpair()
        token = secrets.token_bytes(TOKEN_BYTES)
        self._waiting[token] = theirs
        actor_class = self._ray.remote(max_restarts=0, max_task_retries=0)(WorkerActor)
        actor = actor_class.options(
            num_cpus=0 if self._gpus_each else 1, num_gpus=self._gpus_each, scheduling_strategy="SPREAD"
        ).remote()
        per_node = max([1, *(int(gpus) for gpus in self._per_node("GPU"))])
        ended = actor.run.remote(self._address, token, os.getcwd(), self._url, max(1, MAX_CLIP_PROCESSES // per_node))
        worker = RayWorker(actor, ended, token)
        log.write(f"Ray actor {worker.pid}: `ray logs actor --id {worker.pid}` has what it wrote.\n".encode())
        return ours, worker

    def kill(self, worker: Any) -> None:
        """End an actor; its connection ends with it."""
        with suppress(Exception):  # it is dead, or the cluster is
            self._ray.kill(worker.actor, no_restart=True)
        if (theirs := self._waiting.pop(worker.token, None)) is not None:
            theirs.close()

    def how_lost(self, worker: Any) -> str:
        text: str = worker.error
        return text if "node" in text.lower() or "connection" in text.lower() else ""

    def close(self) -> None:
        """Leave the cluster; no actor of this process outlives that."""
        with suppress(AttributeError):
            self._listener.close()
        if self._started_ray:
            self._ray.shutdown()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:  # it was closed
                return
            threading.Thread(target=self._connect, args=(peer,), name="ray-worker", daemon=True).start()

    def _connect(self, peer: socket.socket) -> None:
        """Join an actor's connection with the end that the pool holds. Who does not know a token is not listened to."""
        theirs = None
        with suppress(OSError):
            peer.settimeout(HANDSHAKE_S)
            token = peer.recv(TOKEN_BYTES, socket.MSG_WAITALL)
            theirs = self._waiting.pop(token, None)
        if theirs is None:
            peer.close()
            return
        peer.settimeout(None)
        keep_alive(peer)
        back = threading.Thread(target=_copy, args=(theirs, peer), name="ray-worker-back", daemon=True)
        back.start()
        _copy(peer, theirs)
        back.join()
        peer.close()
        theirs.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one of both ends; end both then."""
    with suppress(OSError):
        while data := source.recv(_COPY_BYTES):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def open_launcher(address: str | None, device: str, placement: str, url: str | None = None) -> RayLauncher:
    """Return a launcher for the cluster at `address`; `url`: of a run folder in an object store.

    Raises UsageError and CannotContinueError.
    """
    try:
        return RayLauncher(address, device, placement, url)
    except (RuntimeError, subprocess.SubprocessError) as error:
        raise CannotContinueError(f"Ray cannot be used: {error}") from error
