"""One OpenAI request over HTTP/1.1, timed where a client sits. Standard library only.

A failure of the network or of the answer's form is a result here (`Answer.fault`), never an
exception: the checks decide which failures a rule allows. Nothing is retried in this module, so a
request that the other side dropped is seen as dropped.

Times are seconds of the monotonic clock. TTFT runs from the moment before the first request byte is
handed to the kernel to the moment the first event with content is complete in this process.
"""
import http.client
import json
import select
import time
from dataclasses import dataclass, field

READ_BYTES_MAX = 64 * 1024
EVENT_BYTES_MAX = 1 << 20      # an event longer than this is a fault of the server
IDLE_REUSE_S = 4.0             # vLLM closes an idle connection after 5 s; below that it is ours to reuse


@dataclass
class Answer:
    """What came back for one request."""

    request_id: str
    streamed: bool
    sent_s: float
    status: int | None = None            # None: no status line came
    headers: dict = field(default_factory=dict)
    head_s: float | None = None          # when the status line and headers were complete
    ttft_s: float | None = None          # None unless streamed and some content (or an end) came
    ended_s: float = 0.0
    text: str = ""
    events: int = 0                      # SSE events with a choice in them
    model: str | None = None
    finish_reason: str | None = None
    usage: dict | None = None
    error: object = None                 # the "error" member of a JSON answer or of an SSE event
    done: bool = False                   # `data: [DONE]` came
    after_done: bool = False             # something came after [DONE] or after an error event
    body: dict | None = None             # the whole JSON of an answer that was not streamed
    fault: str | None = None             # what broke, in words; None: the exchange ended as HTTP says

    def whole(self):
        """True if this is a complete, well-formed success."""
        good = self.status == 200 and self.fault is None and self.error is None and not self.after_done
        return good and self.finish_reason is not None and (self.done or not self.streamed)

    def begun(self):
        """True if the client had a byte of a streamed answer, after which no retry is possible."""
        return self.streamed and self.status == 200

    def seconds(self):
        return self.ended_s - self.sent_s

    def brief(self):
        """One line for a report of what went wrong; no prompt and no answer text in it."""
        return (f"{self.request_id}: status={self.status} events={self.events} finish={self.finish_reason}"
                f" done={self.done} fault={self.fault} error={self.error}")


class EventReader:
    """Server-sent events out of bytes that may be split anywhere. Lines end in LF or CRLF."""

    def __init__(self):
        self._left = b""
        self._data = []

    def feed(self, piece):
        """The data of each event that `piece` completes."""
        self._left += piece
        if len(self._left) > EVENT_BYTES_MAX:
            raise ValueError("an event without end")
        *lines, self._left = self._left.split(b"\n")
        whole = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                whole.append(b"\n".join(self._data))
                self._data = []
        return whole

    def unfinished(self):
        return bool(self._left or self._data)


class Client:
    """Requests to one address, one at a time, over a connection that is kept while it is fresh."""

    def __init__(self, address, timeout_s=120.0):
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.timeout_s = timeout_s
        self._conn = None
        self._used_s = 0.0

    def close(self):
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def _reusable(self):
        """True if the kept connection is fresh and the other side has not closed it meanwhile."""
        readable, _, _ = select.select([self._conn.sock], [], [], 0)
        return not readable and time.monotonic() - self._used_s < IDLE_REUSE_S

    def ask(self, path, body, request_id="", watch=None):
        """POST `body` as JSON. `watch(answer)` is called at the head and at each event."""
        answer = Answer(request_id, bool(body.get("stream")), time.monotonic())
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if request_id:
            headers["X-Request-Id"] = request_id
        try:
            self._exchange(answer, path, data, headers, watch)
        except (OSError, http.client.HTTPException, ValueError) as e:
            answer.fault = f"{type(e).__name__}: {e}"
        answer.ended_s = self._used_s = time.monotonic()
        if answer.fault is not None or answer.error is not None:
            self.close()      # as the openai package does: a stream that failed is not read to its end
        return answer

    def _exchange(self, answer, path, data, headers, watch):
        if self._conn is not None and not self._reusable():
            self.close()
        if self._conn is None:
            self._conn = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
            self._conn.connect()
        answer.sent_s = time.monotonic()
        self._conn.request("POST", path, data, headers)
        response = self._conn.getresponse()
        answer.head_s = time.monotonic()
        answer.status = response.status
        answer.headers = {k.lower(): v for k, v in response.getheaders()}
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            if watch is not None:
                watch(answer)
            read_events(answer, response, watch)
        else:
            read_json(answer, response)
        if response.will_close:
            self.close()


def read_events(answer, response, watch):
    """Takes the streamed body into `answer`. http.client raises on a body that ends early."""
    reader = EventReader()
    while piece := response.read1(READ_BYTES_MAX):
        for data in reader.feed(piece):
            take_event(answer, data)
            if watch is not None:
                watch(answer)
    if reader.unfinished():
        answer.fault = "the stream ended inside an event"


def take_event(answer, data):
    """One event's data. Works for chat and for plain completions."""
    answer.after_done = answer.done or answer.error is not None
    if data == b"[DONE]":
        answer.done = True
        return
    event = json.loads(data)
    if not isinstance(event, dict):
        raise ValueError("an event that is not a JSON object")
    if event.get("error") is not None:
        answer.error = event["error"]
        return
    answer.model = event.get("model") or answer.model
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices") or []:
        answer.events += 1
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        answer.text += text
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        if answer.ttft_s is None and (text or answer.finish_reason):
            answer.ttft_s = time.monotonic() - answer.sent_s


def read_json(answer, response):
    """Takes a body that is not streamed into `answer`."""
    data = response.read()
    if answer.streamed and answer.status == 200:
        answer.fault = "asked for a stream, got " + answer.headers.get("content-type", "no content-type")
    body = json.loads(data)
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    answer.body = body
    answer.error = body.get("error")
    if answer.status != 200 and answer.error is None:
        answer.error = body
    answer.model = body.get("model")
    answer.usage = body.get("usage")
    for choice in body.get("choices") or []:
        answer.text += choice.get("text") or (choice.get("message") or {}).get("content") or ""
        answer.finish_reason = choice.get("finish_reason")


def fetch(address, path, timeout_s=5.0):
    """(status, body bytes) of a GET, or (None, b"") if nobody answers. `https://HOST:PORT` is asked over TLS."""
    host, port = address.removeprefix("https://").rsplit(":", 1)
    if address.startswith("https://"):
        conn = http.client.HTTPSConnection(host, int(port), timeout=timeout_s)
    else:
        conn = http.client.HTTPConnection(host, int(port), timeout=timeout_s)
    try:
        conn.request("GET", path)
        response = conn.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None, b""
    finally:
        conn.close()


def metric(address, name):
    """Sum over all label sets of one Prometheus sample name; None if it is not there."""
    status, body = fetch(address, "/metrics")
    if status != 200:
        return None
    values = [float(line.rsplit(None, 1)[1]) for line in body.decode().splitlines()
              if line.startswith((name + "{", name + " "))]
    return sum(values) if values else None
