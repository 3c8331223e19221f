"""EngineThread: the inbox, the loop, the error fence, and the end of the engine's thread.

The thread imports torch; whoever creates it does not.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.messages import CancelLoad, Command, EngineStopped, Shutdown, StepEvents

if TYPE_CHECKING:
    from engine.core import Engine
    from engine.intake import Tokenised

log = logging.getLogger(__name__)

LAST_WAIT_S = 5.0  # for the thread's end, where the process ends first


class EngineThread:
    """Runs one Engine. `sink` is called on this thread, once per step; its last call carries
    EngineStopped."""

    def __init__(self, config: EngineConfig, sink: Callable[[StepEvents], None]) -> None:
        self._config = config
        self._sink = sink
        self._inbox: SimpleQueue[Command | Tokenised] = SimpleQueue()
        self._ending = False
        # One item for each CancelLoad in the inbox. While there is one, every load gives up: those
        # that come out of the inbox before it are the very ones that were asked for before it.
        self._cancels: SimpleQueue[None] = SimpleQueue()
        # A daemon: a load that hangs in the system must not keep a closed application alive.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        # A daemon thread that comes back from compiled code while the interpreter ends is unwound
        # by force, which aborts the process: so it ends before, whoever forgot to close it.
        atexit.register(self._end_with_process)
        self._thread.start()

    def _end_with_process(self) -> None:
        if self.is_alive:
            self.send(Shutdown())
            self.join(LAST_WAIT_S)

    def send(self, command: Command) -> None:
        if isinstance(command, Shutdown):
            self._ending = True
        elif isinstance(command, CancelLoad):
            self._cancels.put(None)
        self._inbox.put(command)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the thread; True when it has ended."""
        self._thread.join(timeout_s)
        if not self.is_alive:
            atexit.unregister(self._end_with_process)
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        reason = ""
        engine: Engine | None = None
        try:
            from engine.core import Engine

            engine = Engine(
                self._config,
                self._inbox.put,
                self._sink,
                ending=lambda: self._ending,
                load_cancelled=lambda: not self._cancels.empty(),
            )
            self._loop(engine)
        except ConfigError as error:
            reason = str(error)
        except Exception as error:  # the fence: nothing else in engine/ catches broadly
            log.exception("the engine stopped")
            reason = f"An error inside the engine ended it ({type(error).__name__}: {error})."
        finally:
            if engine is not None:
                engine.close()
            self._sink(StepEvents((EngineStopped(reason),)))

    def _loop(self, engine: Engine) -> None:
        while True:
            for command in self._drain(block=engine.is_idle):
                if isinstance(command, Shutdown):
                    return
                if isinstance(command, CancelLoad):
                    self._cancels.get_nowait()
                else:
                    engine.handle(command)
            if not engine.is_idle:
                engine.step()
            engine.flush()

    def _drain(self, block: bool) -> list[Command | Tokenised]:
        """What has arrived; waits for something when the engine is idle, and never polls."""
        commands = [self._inbox.get()] if block else []
        while True:
            try:
                commands.append(self._inbox.get_nowait())
            except Empty:
                return commands
