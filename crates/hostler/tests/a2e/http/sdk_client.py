"""A client that follows the transport rules of the public Python SDK, and a walk through the protocol with it.

    sdk_client.py URL [AUTH_TOKEN]

What it takes over from the SDK is what makes a host hard to use from it:
- the stream is read in blocks of 512 bytes, decoded by the charset that the answer names (Latin-1 without one), and split
  where Python's str.splitlines splits, which is at more than newlines; what is no JSON after `data: ` is skipped;
- a message whose req_id is that of a call under way is its answer, whatever its type; all others go to handlers of their
  type, and an event whose `data` is no object is dropped;
- the stream is opened again at once after its end, and after 1, 2, 4 .. 30 s when that fails;
- a POST is sent up to three times, 1 s apart, as long as it is answered with 4xx or 5xx.

Only the standard library is used. Exit status 0: every step went as it should.
"""

import http.client
import json
import sys
import threading
import time
import urllib.parse
import uuid

BLOCK = 512
ATTEMPTS = 3
PATIENCE = 60.0


class Failed(Exception):
    """A step that did not go as it should."""


class Client:
    """One session of a host."""

    def __init__(self, url):
        self.address = urllib.parse.urlsplit(url)
        self.calls = {}
        self.handlers = {}
        self.closed = False
        self.streams = 0
        self.session_id = json.loads(self.request("POST", "/session"))["session_id"]
        self.reader = threading.Thread(target=self.listen, daemon=True)
        self.reader.start()

    def connection(self):
        return http.client.HTTPConnection(self.address.hostname, self.address.port, timeout=PATIENCE)

    def request(self, method, path, body=None):
        headers = {"X-Session-Id": self.session_id} if path == "/send" else {}
        for attempt in range(ATTEMPTS):
            connection = self.connection()
            try:
                connection.request(method, path, body=body, headers=headers)
                answer = connection.getresponse()
                content = answer.read()
            finally:
                connection.close()
            if answer.status < 400:
                return content
            if attempt + 1 < ATTEMPTS:
                time.sleep(1)
        raise Failed(f"{method} {path}: {answer.status} {content!r}")

    def listen(self):
        pause = 0
        while not self.closed:
            try:
                self.listen_once()
                pause = 0
            except (OSError, http.client.HTTPException):
                pause = min(max(1, 2 * pause), 30)
            if not self.closed:
                time.sleep(pause)

    def listen_once(self):
        connection = self.connection()
        try:
            connection.request("GET", "/stream", headers={"X-Session-Id": self.session_id})
            answer = connection.getresponse()
            if answer.status == 404:
                self.closed = True
            if answer.status != 200:
                raise OSError(f"GET /stream: {answer.status}")
            if answer.headers.get("Transfer-Encoding") != "chunked":
                raise Failed("the stream is not chunked: a reader of blocks would wait for full ones")
            self.streams += 1
            encoding = answer.headers.get_content_charset() or "latin-1"
            pending = b""
            while block := answer.read1(BLOCK):
                pending += block
                # A character that a block has cut stays for the next one.
                whole = pending.rfind(b"\n") + 1
                for line in pending[:whole].decode(encoding, "replace").splitlines():
                    if line.startswith("data: "):
                        self.take(line[len("data: "):])
                pending = pending[whole:]
        finally:
            connection.close()

    def take(self, text):
        try:
            message = json.loads(text)
        except ValueError:
            return
        call = self.calls.pop(message.get("req_id"), None)
        if call is not None:
            call["answer"] = message
            call["done"].set()
        elif message["type"] != "proc/read/event" or isinstance(message["data"], dict):
            for handler in self.handlers.get(message["type"], []):
                handler(message)

    def send(self, kind, **fields):
        message = {"type": kind, "id": str(uuid.uuid4()), "version": "1.0", "ts": time.time(), **fields}
        self.request("POST", "/send", json.dumps(message).encode())
        return message["id"]

    def call(self, kind, **fields):
        message = {"type": kind, "id": str(uuid.uuid4()), "version": "1.0", "ts": time.time(), **fields}
        call = {"done": threading.Event(), "answer": None}
        self.calls[message["id"]] = call
        self.request("POST", "/send", json.dumps(message).encode())
        if not call["done"].wait(PATIENCE):
            raise Failed(f"no answer to {kind}")
        answer = call["answer"]
        if answer["type"] == "error":
            raise Failed(f"{kind}: {answer['code']}: {answer['message']}")
        return answer


class Events:
    """What push handlers have been given, by process."""

    def __init__(self, client):
        self.changed = threading.Condition()
        self.by_process = {}
        client.handlers.setdefault("proc/read/event", []).append(self.take)

    def take(self, event):
        with self.changed:
            self.by_process.setdefault(event["proc_id"], []).append(event)
            self.changed.notify_all()

    def of(self, proc_id):
        return self.by_process.get(proc_id, [])

    def text(self, proc_id, stream="stdout"):
        own = [event for event in self.of(proc_id) if event["stream_type"] == stream]
        return "".join(event["data"].get("text", "") for event in own)

    def wait(self, what, fact):
        with self.changed:
            if not self.changed.wait_for(fact, PATIENCE):
                raise Failed(f"not seen: {what}; there is {self.by_process}")

    def end(self, proc_id):
        def has_ended():
            own = self.of(proc_id)
            return bool(own) and "text" not in own[-1]["data"]

        self.wait(f"the end of {proc_id}", has_ended)
        return self.of(proc_id)[-1]


def expect(what, found, wanted):
    if found != wanted:
        raise Failed(f"{what}: {found!r} is not {wanted!r}")
    print(f"ok {what}")


def walk(url, token):
    client = Client(url)
    events = Events(client)
    hands = client.call("handshake/req", agent_id="sdk", agent_caps=["proc"], auth_token=token)
    expect("the handshake is good", (hands["ok"], hands["reason"]), (True, ""))
    expect("its session is the one of POST /session", hands["session_id"], client.session_id)
    expect("proc is accepted", [cap["capability"] for cap in hands["accepted_caps"]], ["proc"])
    expect("ping is answered", client.call("ping")["type"], "pong")

    echo = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"
    spawned = client.call("proc/spawn/req", cmd=["python3", "-c", echo], timeout=100000)
    expect("a program starts", spawned["ok"], True)
    proc_id = spawned["proc_id"]
    written = client.call("proc/write/req", proc_id=proc_id, data="hello\n")
    expect("a write is taken", (written["ok"], written["pid"]), (True, spawned["pid"]))
    events.wait("the echo", lambda: events.text(proc_id) == "HELLO\n")
    expect("its echo comes as an event with an empty req_id", events.of(proc_id)[0]["req_id"], "")
    lines = "gr\u00fc\u00df \u2028 \u2029 \u0085 \U0001f980\n"
    client.call("proc/write/req", proc_id=proc_id, data=lines, eof=True)
    expect("the end of stdin ends it", events.end(proc_id)["data"], {"code": 0})
    expect("no character is lost on the way", events.text(proc_id), "HELLO\n" + lines.strip().upper() + "\n")
    expect("its status is known", client.call("proc/status/req", proc_id=proc_id)["status"], "completed")

    many = client.call("proc/spawn/req", cmd=["python3", "-c", "for n in range(20000): print(n, 'x' * 60)"])
    events.end(many["proc_id"])
    numbers = [int(line.split()[0]) for line in events.text(many["proc_id"]).splitlines()]
    expect("20,000 lines come in order", numbers == list(range(20000)), True)

    sleeper = client.call("proc/spawn/req", cmd=["python3", "-c", "import time\nprint('up', flush=True)\ntime.sleep(600)"])
    events.wait("that it is up", lambda: events.text(sleeper["proc_id"]) == "up\n")
    killed = client.call("proc/kill/req", proc_id=sleeper["proc_id"], signal="SIGTERM")
    expect("a kill is answered", (killed["ok"], killed["state"]), (True, "killed"))
    expect("its last event says so", events.end(sleeper["proc_id"])["stream_type"], "killed")
    refused = client.call("proc/spawn/req", cmd=["perl"])
    expect("what is not allowed is refused", (refused["ok"], refused["proc_id"]), (False, ""))
    before = client.streams
    client.send("shutdown", timeout=1)
    client.closed = True
    client.reader.join(PATIENCE)
    expect("the stream ends with the session", (client.reader.is_alive(), client.streams), (False, before))


def main():
    try:
        walk(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
    except Failed as failure:
        sys.exit(f"failed: {failure}")


main()
