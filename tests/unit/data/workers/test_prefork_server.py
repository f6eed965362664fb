"""Python processes from the prefork server: Spark sees of them what it sees of fresh ones."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sparkmirror.data.spark.session import _VERSION_QUESTION, _python_launcher
from sparkmirror.data.workers import prefork_client, prefork_server
from sparkmirror.data.workers.prefork_server import end_prefork_server, start_prefork_server
from tests.unit.config_files import without_root

_TALK = """
import json, os, sys
line = sys.stdin.readline()
print(json.dumps([line, sys.argv[1:], os.environ.get("TOLD"), os.getcwd(), os.getpid()]))
print("aside", file=sys.stderr)
sys.exit(7)
"""
_WAIT = """
import os, sys
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
# Which of pandas is loaded: at first, after an array, after a conversion to it.
_ARRAYS = """
import json, sys
loaded = ["pandas" in sys.modules]
import pyarrow
array = pyarrow.array([1, 2])
loaded.append("pandas" in sys.modules)
values = array.to_pandas()
loaded.append("pandas" in sys.modules)
kind = type(values).__module__.partition(".")[0]
print(json.dumps([loaded, kind, pyarrow.array(values * 2).to_pylist()]))
"""

_DEAF_GROUP = """
import os, signal
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.getpgid(0) != os.getpid():
    os.setpgid(0, 0)
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
while True:
    signal.pause()
"""

# A prefork server that cannot fork.
_CHILDLESS = """
import ctypes, os, resource, socket, sys
from pathlib import Path
from sparkmirror.data.workers import prefork_client
from sparkmirror.data.workers.prefork_server import PreforkServer
door = socket.socket(socket.AF_UNIX)
door.bind(str(Path(sys.argv[1]) / prefork_client.SOCKET_NAME))
door.listen(8)
nursery = PreforkServer(door, sys.stdin.fileno())
if os.getuid() == 0:  # no limit holds root: a namespace whose first process has ended does
    if ctypes.CDLL(None).unshare(0x20000000):
        sys.exit("no namespace")
    first = os.fork()
    if first == 0:
        os._exit(0)
    os.waitpid(first, 0)
else:
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
print("open", flush=True)
nursery.serve()
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Modules that only ``PYTHONPATH`` leads to."""
    directory = tmp_path_factory.mktemp("modules")
    for name, text in (
        ("talking_fork", _TALK),
        ("waiting_fork", _WAIT),
        ("array_fork", _ARRAYS),
    ):
        (directory / f"{name}.py").write_text(text)
    return directory


@pytest.fixture(scope="module")
def prefork_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("nursery")
    with (directory / "log").open("ab") as log:
        process = start_prefork_server(directory, log)
    yield directory
    assert process.stdin is not None
    process.stdin.close()
    process.wait(60)  # it is killed sooner than a busy machine ends a Python
    end_prefork_server(process)
    assert process.returncode == 0, (directory / "log").read_text()


def _knock(
    prefork_dir: Path, modules: Path, *arguments: str, cwd: Path, told: str = ""
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", prefork_client.__file__, str(prefork_dir), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(modules), "TOLD": told},
    )


def test_streams_environment_directory_arguments_and_exit_code(
    prefork_dir: Path, modules: Path, tmp_path: Path
) -> None:
    asked = _knock(
        prefork_dir, modules, "-m", "talking_fork", "a", "b c", cwd=tmp_path, told="x\udcff"
    )
    out, err = asked.communicate("line\n", 60)
    line, arguments, told, directory, pid = json.loads(out)
    assert (line, arguments, told, directory) == ("line\n", ["a", "b c"], "x\udcff", str(tmp_path))
    assert pid != asked.pid
    assert (err, asked.returncode) == ("aside\n", 7)


@pytest.mark.parametrize("pandas", [False, True])
def test_pandas_is_loaded_only_for_who_may_need_it(
    modules: Path, tmp_path: Path, pandas: bool
) -> None:
    """Without it, pyarrow's arrays do not import it; its conversions still do."""
    with (tmp_path / "log").open("ab") as log:
        process = start_prefork_server(tmp_path, log, pandas=pandas)
    try:
        asked = _knock(tmp_path, modules, "-m", "array_fork", cwd=tmp_path)
        out, err = asked.communicate(timeout=60)
        assert json.loads(out) == [[pandas, pandas, True], "pandas", [2, 4]], err
    finally:
        end_prefork_server(process)


def test_a_fork_shows_what_it_runs(prefork_dir: Path, modules: Path, tmp_path: Path) -> None:
    asked = _knock(prefork_dir, modules, "-m", "waiting_fork", "more", cwd=tmp_path)
    try:
        assert asked.stdout is not None
        fork = psutil.Process(int(asked.stdout.readline()))
        assert fork.cmdline()[:4] == [sys.executable, "-m", "waiting_fork", "more"]
    finally:
        asked.communicate("\n", 60)
    assert asked.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_who_kills_what_it_started_kills_the_fork(
    prefork_dir: Path, modules: Path, tmp_path: Path, number: signal.Signals
) -> None:
    asked = _knock(prefork_dir, modules, "-m", "waiting_fork", cwd=tmp_path)
    assert asked.stdout is not None
    fork = psutil.Process(int(asked.stdout.readline()))
    _wait_until_it_catches(asked.pid, signal.SIGTERM)
    asked.send_signal(number)
    assert psutil.wait_procs([fork], timeout=60)[1] == []
    asked.communicate(timeout=60)
    assert asked.returncode in (128 + signal.SIGTERM, -signal.SIGKILL)


def test_a_stop_that_reaches_all_processes_ends_neither_the_server_nor_a_daemon(
    tmp_path: Path, modules: Path
) -> None:
    """The driver drains with them: it ends the one, Spark the other, by closing its input."""
    with (tmp_path / "log").open("ab") as log:
        server = start_prefork_server(tmp_path, log)
    try:
        planner = "pyspark.sql.worker.create_data_source"
        module = "sparkmirror.data.workers.daemon"
        asked = _knock(tmp_path, modules, "-m", module, planner, cwd=tmp_path)
        assert asked.stdout is not None
        (port,) = struct.unpack(">i", asked.stdout.buffer.read(4))
        _wait_until_it_catches(asked.pid, signal.SIGTERM)
        processes = [psutil.Process(server.pid), *psutil.Process(server.pid).children()]
        assert len(processes) == 2
        for process in (*processes, asked):
            process.send_signal(signal.SIGTERM)
        other = _knock(tmp_path, modules, "-m", "talking_fork", cwd=tmp_path)
        assert json.loads(other.communicate("line\n", 60)[0])[4] != other.pid, "it is a fork"
        with socket.create_connection(("127.0.0.1", port), 60) as peer:
            assert len(peer.recv(4, socket.MSG_WAITALL)) == 4, "the process id of a worker"
        asked.communicate("", 60)
        assert psutil.wait_procs(processes[1:], timeout=60)[1] == []
    finally:
        end_prefork_server(server)
    assert server.returncode == 0


def test_with_its_client_a_daemon_that_listens_to_no_signal_is_killed(
    prefork_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "deaf_group.py").write_text(_DEAF_GROUP)
    asked = _knock(prefork_dir, tmp_path, "-m", "deaf_group", cwd=tmp_path)
    assert asked.stdout is not None
    started = [psutil.Process(int(pid)) for pid in asked.stdout.readline().split()]
    asked.kill()
    asked.communicate(timeout=60)
    assert psutil.wait_procs(started, timeout=60)[1] == []


def _wait_until_it_catches(client: int, number: int) -> None:
    """A fork may run before its client knows its process id: SIGTERM would end the client alone."""
    deadline = time.monotonic() + 60
    while not _catches(client, number):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _catches(process: int, number: int) -> bool:
    status = Path(f"/proc/{process}/status").read_text("utf-8")
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def test_a_reader_sees_the_end_of_a_fork_that_was_killed(
    prefork_dir: Path, modules: Path, tmp_path: Path
) -> None:
    asked = _knock(prefork_dir, modules, "-m", "waiting_fork", cwd=tmp_path)
    assert asked.stdout is not None
    os.kill(int(asked.stdout.readline()), signal.SIGKILL)
    assert asked.communicate(timeout=60)[0] == ""
    assert asked.returncode == 128 + signal.SIGKILL


def test_where_nobody_opens_it_is_the_python_that_was_asked_for(
    modules: Path, tmp_path: Path
) -> None:
    asked = _knock(tmp_path / "no-nursery", modules, "-m", "talking_fork", cwd=tmp_path)
    out, err = asked.communicate("line\n", 60)
    assert json.loads(out)[4] == asked.pid
    assert (err, asked.returncode) == ("aside\n", 7)


def test_nonsense_at_the_door_ends_nothing(
    prefork_dir: Path, modules: Path, tmp_path: Path
) -> None:
    for data in (b"", b"\0", b"\xff\xff\xff\xff", b"\0\0\0\2{}"):
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(prefork_dir / prefork_client.SOCKET_NAME))
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
    asked = _knock(prefork_dir, modules, "-m", "talking_fork", cwd=tmp_path)
    asked.communicate("line\n", 60)
    assert asked.returncode == 7


def test_forks_outlive_a_nursery_that_is_killed_and_who_stands_for_them_waits(
    modules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the prefork server import anything from the directory that it is started in."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('from the current directory')")
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "log").open("ab") as log:
        process = start_prefork_server(tmp_path, log)
    asked = _knock(tmp_path, modules, "-m", "waiting_fork", cwd=tmp_path)
    assert asked.stdout is not None
    fork = psutil.Process(int(asked.stdout.readline()))
    process.kill()
    end_prefork_server(process)
    assert process.returncode == -signal.SIGKILL
    assert fork.is_running()
    assert asked.poll() is None
    asked.communicate("\n", 60)
    assert psutil.wait_procs([fork], timeout=60)[1] == []


def test_with_the_driver_all_that_it_had_started_is_killed(modules: Path, tmp_path: Path) -> None:
    """Forks that lead a group with workers, as Spark's daemon does, and the JVM with its clients.

    None of them would end by itself, and none listens to a signal that can be refused.
    """
    (tmp_path / "deaf_group.py").write_text(_DEAF_GROUP)
    jvm = subprocess.Popen(
        [sys.executable, "-c", _DEAF_GROUP], stdout=subprocess.PIPE, text=True, process_group=0
    )
    started: list[psutil.Process] = []
    try:
        with (tmp_path / "log").open("ab") as log:
            server = start_prefork_server(tmp_path, log, jvm.pid)
        asked = [
            _knock(tmp_path, directory, "-m", module, cwd=tmp_path)
            for directory, module in ((tmp_path, "deaf_group"), (modules, "waiting_fork"))
        ]
        for output in (jvm.stdout, *(one.stdout for one in asked)):
            assert output is not None
            started += [psutil.Process(int(pid)) for pid in output.readline().split()]
        assert len(started) == 5
        assert server.stdin is not None
        server.stdin.close()  # as the kernel does with the pipes of a process that is killed
        assert psutil.wait_procs(started, timeout=10)[1] == []
        assert server.wait(10) == 0
        for one in (jvm, *asked):
            one.communicate(timeout=10)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(jvm.pid, signal.SIGKILL)
        for left in started:
            with contextlib.suppress(psutil.NoSuchProcess):
                left.kill()


def test_a_driver_killed_while_modules_load_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading never ends here, and the JVM listens to no signal that can be refused."""
    begun = tmp_path / "begun"
    (tmp_path / "pandas.py").write_text(
        f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jvm = subprocess.Popen(
        [sys.executable, "-c", _DEAF_GROUP], stdout=subprocess.PIPE, text=True, process_group=0
    )
    try:
        assert jvm.stdout is not None
        started = [psutil.Process(int(pid)) for pid in jvm.stdout.readline().split()]
        assert len(started) == 2
        with (tmp_path / "log").open("ab") as log:
            server = start_prefork_server(tmp_path, log, jvm.pid)
        try:
            deadline = time.monotonic() + 60
            while not begun.exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert server.stdin is not None
            server.stdin.close()  # as the kernel does with the pipes of a process that is killed
            assert psutil.wait_procs(started, timeout=10)[1] == []
            assert server.wait(10) == 0
        finally:
            server.kill()
            server.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(jvm.pid, signal.SIGKILL)
        jvm.communicate(timeout=10)


def test_a_fork_and_its_client_that_end_together_end_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both are killed by one command: the fork is reaped before its client's end is looked at."""
    ended = iter([(4711, 9), (0, 0)])
    monkeypatch.setattr(prefork_server.os, "waitpid", lambda *_: next(ended))
    door, (peer, client) = socket.socket(socket.AF_UNIX), socket.socketpair()
    server = prefork_server.PreforkServer(door, 0)
    try:
        server._forks[4711] = peer
        server._selector.register(peer, selectors.EVENT_READ)
        server._reap()
        server._hung_up(peer)
        assert server._forks == {}
        assert client.recv(4) == b"\xff\xff\xff\xf7"  # by signal 9
    finally:
        server._selector.close()
        for each in (door, peer, client, server._wake, server._woken):
            each.close()


@pytest.mark.parametrize("opens", [True, False])
def test_nothing_is_imported_from_the_current_directory(
    opens: bool, prefork_dir: Path, modules: Path, tmp_path: Path
) -> None:
    (tmp_path / "planted.py").write_text("print('planted')")
    door = prefork_dir if opens else tmp_path / "no-nursery"
    asked = _knock(door, modules, "-m", "planted", cwd=tmp_path)
    out, err = asked.communicate("", 60)
    assert (out, asked.returncode) == ("", 1)
    assert "No module named" in err
    assert "planted" in err


def test_the_launcher_imports_nothing_from_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text("print('planted')")
    launcher = _python_launcher(tmp_path, tmp_path)
    for arguments in (["-m", "planted"], ["-c", "import planted"]):
        done = subprocess.run(
            [launcher, *arguments],
            check=False,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.stdout, done.returncode) == ("", 1)
        assert "No module named" in done.stderr


def test_the_launcher_answers_the_version_question_as_python_does(tmp_path: Path) -> None:
    """Without a Python: none could start with this path."""
    launcher = _python_launcher(tmp_path, tmp_path)
    done = subprocess.run(
        [launcher, "-c", _VERSION_QUESTION],
        check=True,
        env={"PYTHONHOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    python = subprocess.run(
        [sys.executable, "-c", _VERSION_QUESTION], check=True, capture_output=True, text=True
    )
    assert done.stdout == python.stdout


def test_another_users_door_is_told_nothing(modules: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can listen as somebody else")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / prefork_client.SOCKET_NAME))
        with without_root():
            door.listen(1)
        asked = _knock(tmp_path, modules, "-m", "talking_fork", cwd=tmp_path, told="a secret")
        peer, _ = door.accept()
        with peer:
            peer.settimeout(60)
            assert peer.recv(1) == b""
        out, _ = asked.communicate("line\n", 60)
    assert json.loads(out)[4] == asked.pid, "it is the Python that was asked for"


def test_a_fork_that_cannot_be_made_keeps_nothing_open(modules: Path, tmp_path: Path) -> None:
    childless = subprocess.Popen(
        [sys.executable, "-c", _CHILDLESS, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert childless.stdout is not None
    try:
        if childless.stdout.readline() != b"open\n":
            pytest.skip("forks of a process of root's can only be kept back in a namespace")
        before = psutil.Process(childless.pid).num_fds()
        asked = _knock(tmp_path, modules, "-m", "talking_fork", cwd=tmp_path)
        # Whoever reads from it sees the end, since the prefork server has closed its copies.
        out, _ = asked.communicate("line\n", 60)
        assert json.loads(out)[4] == asked.pid, "it is the Python that was asked for"
        assert psutil.Process(childless.pid).num_fds() == before
    finally:
        childless.communicate(timeout=60)


def test_modules_are_loaded_without_a_look_for_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: dict[str, bool] = {}

    def load(name: str) -> None:
        collects[name] = gc.isenabled()

    frozen: list[int] = []
    monkeypatch.setattr(prefork_server.importlib, "import_module", load)
    monkeypatch.setattr(prefork_server.gc, "freeze", lambda: frozen.append(len(collects)))
    prefork_server._load(pandas=True)
    assert len(collects) > 5
    assert not any(collects.values())
    assert frozen == [len(collects)]
    assert gc.isenabled()  # in forks, too


def test_without_descriptors_of_processes_workers_are_forked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with a Python that was built for a Linux older than 5.3."""
    served: list[bool] = []
    monkeypatch.delattr(os, "pidfd_open")
    monkeypatch.setattr(prefork_server, "_load", lambda *, pandas: None)
    monkeypatch.setattr(prefork_server.PreforkServer, "serve", lambda _: served.append(True))
    lifeline, held = os.pipe()
    ours, theirs = socket.socketpair()
    with os.fdopen(held, "wb"), os.fdopen(lifeline) as stdin, ours, theirs:
        monkeypatch.setattr(sys, "stdin", stdin)
        prefork_server._main(theirs, os.getppid(), pandas=False)
    assert served == [True]
