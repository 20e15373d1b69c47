"""The worker as an actor of a Ray cluster: it connects to the parent and serves it as the worker program does."""

from __future__ import annotations

import logging
import os
import socket
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tts_batch.engine.errors import EngineError
from tts_batch.ipc.messages import AssignRows, FromWorker, NoMoreRows, OpenEngine, StopWorker, ToWorker
from tts_batch.ipc.transport import Channel
from tts_batch.plan.models import find_checkpoint
from tts_batch.store.storage import temporary_copy
from tts_batch.worker.program import end_with_parent, fail, serve

CONNECT_S = 30.0
KEEPALIVE_S, KEEPALIVE_TRIES = 10, 3  # a machine that goes without a word is missed after some 40 s


def keep_alive(peer: socket.socket) -> None:
    """Let a connection end when its other machine is gone."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_TRIES),
    ):
        peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class WorkerActor:
    """One worker. `ray.remote` makes an actor class of it; `run` returns when the parent has no more rows."""

    def run(self, address: tuple[str, int], token: bytes, folder: str, url: str | None, max_clip_processes: int) -> int:
        """Serve the parent at `address`, who knows the actor by `token`.

        `folder` is the parent's working folder, `url` that of a run folder in an object store.
        """
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        if os.path.isdir(folder):
            os.chdir(folder)
            sys.path.insert(0, folder)
        peer = socket.create_connection(address, CONNECT_S)
        keep_alive(peer)
        peer.sendall(token)
        channel = Channel[FromWorker, ToWorker](
            peer, (OpenEngine, AssignRows, NoMoreRows, StopWorker), shares_memory=False
        )
        opening = channel.receive()
        if not isinstance(opening, OpenEngine):
            return 0
        end_with_parent(channel)
        with ExitStack() as stack:
            try:
                if url is not None:
                    copy = stack.enter_context(temporary_copy(url))
                    opening = replace(opening, out=copy, segments=replace(opening.segments, journal=copy / "journal"))
                cores = len(os.sched_getaffinity(0))
                opening = replace(opening, max_clip_processes=max(1, min(max_clip_processes, cores // 2)))
                serve(channel, _with_local_model(opening))
            except Exception as error:
                fail(channel, error)
        return 0


def _with_local_model(opening: OpenEngine) -> OpenEngine:
    """Find the checkpoint on this machine, where it is not at the path that it has on the parent's."""
    if not opening.out.is_dir():
        raise EngineError(
            f"{opening.out} is not on {socket.gethostname()}: give an --out that every node sees, or an object store."
        )
    config, labels = opening.engine_config, opening.labels
    if not config.model or Path(config.model).exists() or labels.model is None:
        return opening
    task = opening.task or "custom_voice"
    found = find_checkpoint(labels.model, labels.model_revision, task)
    return replace(opening, engine_config=replace(config, model=str(found.path)))
