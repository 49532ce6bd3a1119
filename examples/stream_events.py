"""Write events from a socket to a dataset while another program reads the dataset.

The example has three parts, which run at the same time. A thread sends events over a socket of this machine,
as a message broker would. A second process receives the events and writes them with `dask_tfrecord.Writer`,
which commits every two seconds. The main process reads each version of the dataset.

The main process also kills the second process and starts it again. The second process continues at the event
after the last commit, because the position in the stream is committed together with the rows. In the end,
each event is in the dataset exactly once.

Run it with ``python examples/stream_events.py [NEW_DIRECTORY]``. It takes about ten seconds.
"""

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dask_tfrecord

EVENTS = 5_000
EVENTS_PER_SECOND = 1_000
SCHEMA = {"number": "int64", "user": "string", "action": "string"}
OFFSET = "source.offset"


def send_events(server: socket.socket) -> None:
    """Send events to each client. A client first sends the number of its first event."""
    while True:
        connection, _ = server.accept()
        with connection:
            first = int(connection.makefile().readline())
            batch = EVENTS_PER_SECOND // 10
            try:
                for start in range(first, EVENTS, batch):
                    numbers = range(start, min(start + batch, EVENTS))
                    events = ({"number": n, "user": f"user{n % 7}", "action": "click"} for n in numbers)
                    connection.sendall("".join(f"{json.dumps(event)}\n" for event in events).encode())
                    time.sleep(0.1)
            except ConnectionError:
                print("source: the client is gone")


def receive_events(directory: str, port: int) -> None:
    """Write all events after the last committed event, and commit every two seconds."""
    with dask_tfrecord.Writer(directory, SCHEMA, commit_every="2 s") as writer:
        offset = int(writer.metadata.get(OFFSET, 0))
        print(f"writer: continue at event {offset}")
        with socket.create_connection(("127.0.0.1", port)) as source:
            source.sendall(f"{offset}\n".encode())
            source.settimeout(0.5)
            incomplete = b""
            while True:
                try:
                    data = source.recv(1 << 16)
                except TimeoutError:
                    writer.write([])  # commits the last events if two seconds are over
                    continue
                if not data:
                    break
                *lines, incomplete = (incomplete + data).split(b"\n")
                if lines:
                    offset += len(lines)
                    writer.write(list(map(json.loads, lines)), custom_metadata={OFFSET: str(offset)})


def read_until(directory: str, events: int, process: "subprocess.Popen[bytes]") -> None:
    """Read each new version until a version has some number of events, or until the process ends."""
    version = 0
    while True:
        has_ended = process.poll() is not None
        if dask_tfrecord.exists(directory):
            dataset = dask_tfrecord.open_dataset(directory)
            if dataset.version not in (None, version):
                version = dataset.version
                count = len(dask_tfrecord.read_tfrecord(directory, version=version))
                print(f"reader: version {version} has {count} events")
                if count != int(dataset.metadata[OFFSET]):
                    raise RuntimeError("a version has other events than its metadata says")
                if count >= events:
                    return
        if has_ended:
            return
        time.sleep(0.2)


def main() -> None:
    """Kill the process that writes after its first commit, start it again, and check the rows."""
    directory = sys.argv[1] if len(sys.argv) > 1 else str(Path(tempfile.mkdtemp()) / "events")
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=send_events, args=[server], daemon=True).start()
        command = [sys.executable, __file__, directory, str(server.getsockname()[1])]
        for events in (1, EVENTS):
            with subprocess.Popen(command) as process:
                read_until(directory, events, process)
                if events < EVENTS:
                    time.sleep(0.5)  # the writer takes more events, which are not committed
                    process.kill()
                    print("main: killed the writer")
                elif process.wait():
                    raise RuntimeError("the writer failed")

    numbers = dask_tfrecord.read_tfrecord(directory)["number"].compute().tolist()
    print("each event is in the dataset once, in order:", numbers == list(range(EVENTS)))
    if numbers != list(range(EVENTS)):
        raise RuntimeError("events are missing or doubled")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        receive_events(sys.argv[1], int(sys.argv[2]))
    else:
        main()
