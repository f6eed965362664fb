"""A Python process with all modules loaded, from which Spark's Python processes are forked.

Spark starts half a dozen of them one after another before the first record: a planner, a daemon
for the slots, and short-lived ones that only load the data source. Each would import PySpark and
Arrow again, which takes a CPU second or two. So the driver starts this process first, and it loads
these modules while the JVM loads its classes. What Spark then starts is `prefork_client`. It hands
over its standard streams, its environment and its arguments, and waits in the place of the fork
until that ends.

``python -P -u -m sparkmirror.data.workers.prefork_server DESCRIPTOR JVM PANDAS ROOM`` listens on
the socket that it inherits. When its standard input is closed, which the driver holds, it kills the
JVM and all forks that still run, and ends, also while it still loads modules. In an orderly end
none of them does. A driver that is killed leaves them to nobody else: Spark would take its time to
end, and they would write meanwhile.
``JVM`` is the JVM's process id, or 0 for a JVM that the driver did not start. ``PANDAS`` is 1 if
forks may need it, else 0: loading it would be a third of this process's work.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn

from sparkmirror.data.workers import daemon, prefork_client
from sparkmirror.data.workers.prefork_client import Request
from sparkmirror.errors import Defect

__all__ = ["PreforkServer", "end_prefork_server", "start_prefork_server"]

# What Spark's planning processes import, besides what slots need. Modules that are run with -m are
# left out.
_PLANNING = (
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.commit_data_source_write",
    "sparkmirror.data.coordination.planner_report",
    "sparkmirror.data.coordination.control_reader",
)
_DAEMON = "sparkmirror.data.workers.daemon"
_REQUEST_BYTES_MAX = 16 << 20
_REQUEST_S_MAX = 10.0
_END_S = 1.0
_WAITING_MAX = 64
# `ps` shows what a fork runs, in as many bytes as this process has for its arguments.
_ROOM = "." * 64


def start_prefork_server(
    directory: Path, log: BinaryIO, jvm: int = 0, *, pandas: bool = True
) -> subprocess.Popen[bytes]:
    """Start a server that is reached in ``directory``, to which only this user has access.

    ``log`` gets its output. A client that connects waits until everything is loaded.
    ``jvm``: a child of this process that leads a process group, and that the server kills when this
    process ends without having done so. ``pandas``: load it, too, for code that is not ours.
    `end_prefork_server` ends the server.
    """
    environment = {
        # Spark sets these for its Python processes, and both are read when modules are loaded.
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        **os.environ,
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(directory / prefork_client.SOCKET_NAME))
        listener.listen(_WAITING_MAX)
        number = listener.fileno()
        return subprocess.Popen(  # noqa: S603  (an argument list, no shell)
            [
                sys.executable,
                "-P",
                "-u",
                "-m",
                "sparkmirror.data.workers.prefork_server",
                str(number),
                str(jvm),
                str(int(pandas)),
                _ROOM,
            ],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=environment,
            pass_fds=(number,),
            # The terminal's Ctrl+C must reach only the driver.
            start_new_session=True,
        )


def end_prefork_server(process: subprocess.Popen[bytes]) -> None:
    """End the server, and wait until it has ended."""
    if process.stdin is None:
        raise Defect("the process has no pipe to read from")
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class PreforkServer:
    """Forks on request and reports how each fork ended. One thread; ``listener`` is bound.

    ``lifeline``: a descriptor that is readable when the driver has ended. ``jvm``: what is killed
    then, besides the forks; None if nothing is.
    """

    def __init__(self, listener: socket.socket, lifeline: int, jvm: _Group | None = None) -> None:
        self._listener = listener
        self._lifeline = lifeline
        self._jvm = jvm
        self._forks: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        for end in (self._wake, self._woken):
            end.setblocking(False)

    def serve(self) -> None:
        """Serve until the lifeline ends, then kill what runs.

        Returns only in this process; a fork exits instead.
        """
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A stop that reaches all processes is for the driver, which drains with this one's forks.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for file in (self._listener, self._woken, self._lifeline):
            self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._lifeline:
                    self._kill_all()
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    with contextlib.suppress(BlockingIOError):
                        self._woken.recv(4096)
                    self._reap()
                elif isinstance(key.fileobj, socket.socket):
                    self._hung_up(key.fileobj)

    def _accept(self) -> None:
        peer, _ = self._listener.accept()
        try:
            peer.settimeout(_REQUEST_S_MAX)
            if prefork_client.owner(peer) != os.geteuid():
                raise PermissionError("the client is another user's")
            streams, request = _receive(peer)
            try:
                pid = os.fork()
                if pid == 0:
                    self._run_fork(peer, streams, request)
            finally:
                for stream in streams:
                    os.close(stream)
            self._forks[pid] = peer
            self._selector.register(peer, selectors.EVENT_READ)
            peer.sendall(struct.pack(">i", pid))
        except (OSError, ValueError, struct.error):
            traceback.print_exc()
            if peer not in self._forks.values():
                peer.close()

    def _run_fork(self, peer: socket.socket, streams: Sequence[int], request: Request) -> NoReturn:
        """In a fork: run the request. Whatever happens, the fork never returns to `serve`."""
        try:
            self._close_inherited(peer)
            _live(streams, request)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _close_inherited(self, peer: socket.socket) -> None:
        """In a fork: close everything of this process; only its modules stay."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listener, self._wake, self._woken, peer, *self._forks.values()):
            each.close()
        if self._jvm is not None:
            self._jvm.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            peer = self._forks.pop(pid, None)
            if peer is not None:
                self._selector.unregister(peer)
                with contextlib.suppress(OSError):
                    peer.sendall(struct.pack(">i", os.waitstatus_to_exitcode(status)))
                peer.close()

    def _kill_all(self) -> None:
        """Kill the JVM, with the clients that it started, then the forks with theirs."""
        if self._jvm is not None:
            self._jvm.kill()
        for pid in self._forks:  # not reaped yet: no other process has one of these ids
            _kill_with_group(pid)

    def _hung_up(self, peer: socket.socket) -> None:
        """The client of a fork was killed: end the fork as well."""
        pid = next((pid for pid, known in self._forks.items() if known is peer), None)
        if pid is None:
            return  # the fork was reaped in the same round
        self._selector.unregister(peer)
        del self._forks[pid]
        peer.close()
        _kill_with_group(pid)


class _Group:
    """A process that leads a group, and that is no child of this one."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        # Later the process id may be another process's. A descriptor never is.
        self._descriptor = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill it and its group, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, 0)  # whether it is there
            _kill_with_group(self._pid)

    def close(self) -> None:
        """Forget it."""
        os.close(self._descriptor)


def _kill_with_group(pid: int) -> None:
    """Kill a process; if it leads a group, as Spark's daemon does, with all workers in there."""
    with contextlib.suppress(ProcessLookupError):
        leads = os.getpgid(pid) == pid
        (os.killpg if leads else os.kill)(pid, signal.SIGKILL)


def _receive(peer: socket.socket) -> tuple[list[int], Request]:
    head, streams, _, _ = socket.recv_fds(peer, 4, 3)
    try:
        size = struct.unpack(">I", head)[0]
        if len(streams) != 3 or size > _REQUEST_BYTES_MAX:
            raise ValueError(f"a request of {size} bytes with {len(streams)} streams")
        data = bytearray()
        while len(data) < size:
            part = peer.recv(size - len(data))
            if not part:
                raise ValueError("an incomplete request")
            data += part
        return streams, Request.decode(bytes(data))
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def _live(streams: Sequence[int], request: Request) -> None:
    """In a fork: run what the request names; never returns."""
    code = 1
    try:
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.chdir(request.directory)
        arguments, environment = request.arguments, request.environment
        os.environ.clear()
        os.environ.update(environment)
        _show_as([sys.executable, *arguments])
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        code = _run(arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _run(arguments: Sequence[str]) -> int:
    """``-m MODULE ARGUMENTS``, as the interpreter runs it."""
    _, module, *rest = arguments
    sys.argv[:] = [module, *rest]
    if module == _DAEMON:
        # As for the server. Spark also closes its input to end it. A handler would be replaced by
        # PySpark's, which ends all workers.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        daemon.main(pandas=False)  # it is loaded, or hidden
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _show_as(arguments: Iterable[str]) -> None:
    """Let ``ps`` show what a fork runs, as far as there is room."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
        if 0 < start < end:
            text = b"\0".join(os.fsencode(each) for each in arguments)[: end - start - 1]
            ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _load(*, pandas: bool) -> None:
    """Import what forks need. They share these objects, and never look for garbage in them."""
    gc.disable()  # modules stay
    for name in (*daemon.PRELOADED, *_PLANNING):
        importlib.import_module(name)
    if pandas:
        importlib.import_module(daemon.PANDAS)
    else:
        _hide_pandas()
    gc.collect()
    gc.freeze()
    gc.enable()


class _WithoutPandas:
    """An entry of ``sys.meta_path``: there is no pandas."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == daemon.PANDAS:
            raise ModuleNotFoundError(name=name)


def _hide_pandas() -> None:
    """Let pyarrow look for pandas now and find none.

    Otherwise it would import pandas for the first array of each fork, to see whether the values
    are a series. Whoever imports pandas later, pyarrow's own conversions included, gets it.
    """
    pyarrow = importlib.import_module("pyarrow")
    without = _WithoutPandas()
    sys.meta_path.insert(0, without)
    try:
        pyarrow.array([0])
    finally:
        sys.meta_path.remove(without)


@contextlib.contextmanager
def _ending_with(lifeline: int, jvm: _Group | None) -> Iterator[None]:
    """Meanwhile, when the driver ends: kill the JVM, which has no forks yet, and this process.

    By a thread, as loading takes seconds. It has ended before the first fork.
    """
    over, loaded = os.pipe()

    def watch() -> None:
        with selectors.DefaultSelector() as selector:
            for descriptor in (lifeline, over):
                selector.register(descriptor, selectors.EVENT_READ)
            if lifeline in [key.fd for key, _ in selector.select()]:
                if jvm is not None:
                    jvm.kill()
                os._exit(0)

    thread = threading.Thread(target=watch, name="driver")
    thread.start()
    try:
        yield
    finally:
        os.close(loaded)
        thread.join()
        os.close(over)


def _main(listener: socket.socket, jvm: int, *, pandas: bool) -> None:
    group = None
    # It has ended already, or Linux is older than 5.3, or Python was built for such a one: then the
    # JVM takes its own time, once its standard input has ended with the driver.
    with contextlib.suppress(OSError, AttributeError):
        group = _Group(jvm) if jvm else None
    lifeline = sys.stdin.fileno()
    with _ending_with(lifeline, group):
        daemon.prefer_installed_pyspark()
        _load(pandas=pandas)
    PreforkServer(listener, lifeline, group).serve()


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), pandas=sys.argv[3] == "1")
