"""The requests: conversations with growing history, and a steady load in the background.

All prompts are made from the run's seed: two runs of one seed send the same bytes, and runs of
different seeds share no cached prefix on servers that go on running.
"""
import itertools
import queue
import random
import threading
from dataclasses import dataclass

from client import Answer, Client
from stack import MODEL

SAMPLING_SEED = 7
FIRST_TURN_WORDS = 9000      # about a token each; with the history the body grows past 64 KiB
TURN_WORDS = 20
FAULT_PAUSE_S = 0.1          # between a failed request and the next, so that a dead server is not hammered
WORDS = """river garden engine letter window market summer paper island doctor ladder forest bridge
copper silver winter harbor candle mirror village signal planet mountain teacher orange basket ticket
station ocean kitchen tunnel thunder blanket pencil stone bottle castle farmer hammer jacket needle
pillow rocket saddle temple valley wagon yellow anchor branch circle dragon feather guitar honey""".split()


def prose(seed, words):
    """`words` words that depend on `seed` from the first one on."""
    rnd = random.Random(seed)
    return " ".join(rnd.choice(WORDS) for _ in range(words))


def chat_body(messages, max_tokens, **fields):
    return {"model": MODEL, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "seed": SAMPLING_SEED, **fields}


@dataclass
class Exchange:
    """One request and its answer."""

    body: dict
    answer: Answer
    turn: int = 1


class Conversation:
    """A chat whose every turn sends all that was said before."""

    def __init__(self, seed, number):
        self.number = number
        self.seed = f"{seed} conversation {number}"
        first = f"{prose(self.seed, FIRST_TURN_WORDS)}. Answer as briefly as you can."
        self.messages = [{"role": "system", "content": first}]
        self.exchanges = []

    def take_turn(self, client):
        turn = len(self.exchanges) + 1
        self.messages.append({"role": "user", "content": prose(f"{self.seed} turn {turn}", TURN_WORDS)})
        kind = self.number + turn
        body = chat_body(list(self.messages), 8 + kind % 9)
        if kind % 2 == 0:
            body["stream"] = True
        if kind % 4 == 0:
            body["stream_options"] = {"include_usage": True}
        answer = client.ask("/v1/chat/completions", body, f"conversation-{self.number:02}-turn-{turn:02}")
        self.messages.append({"role": "assistant", "content": answer.text})
        self.exchanges.append(Exchange(body, answer, turn))


def run_conversations(address, seed, count, turns, concurrency):
    """Holds `count` conversations turn about, `concurrency` requests at a time."""
    conversations = [Conversation(seed, n) for n in range(count)]
    waiting = queue.SimpleQueue()
    for conversation in conversations:
        waiting.put(conversation)

    def work():
        client = Client(address)
        while True:
            try:
                conversation = waiting.get_nowait()
            except queue.Empty:
                break
            conversation.take_turn(client)
            if len(conversation.exchanges) < turns:
                waiting.put(conversation)
        client.close()
    in_threads([work] * concurrency)
    return conversations


def in_threads(functions):
    """Runs all at once and returns when all have returned."""
    threads = [threading.Thread(target=f, daemon=True) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def long_answer(seed, streamed, tokens):
    """Bodies for the steady load: prompts that no server has seen, answers of exactly `tokens`."""
    def body(key):
        messages = [{"role": "user", "content": prose(f"{seed} {key}", 150)}]
        fields = {"stream": True} if streamed else {}
        return chat_body(messages, tokens, ignore_eos=True, **fields)
    return body


class Steady:
    """Requests one after the other on each of some threads, until stopped."""

    def __init__(self, address, name, bodies, pause_s=0.0):
        self.exchanges = []
        self.live = {}            # request id -> the Answer as far as it came
        self._stop = threading.Event()
        self._pause_s = pause_s
        self._threads = [threading.Thread(target=self._work, args=(address, f"{name}-{n}", body), daemon=True)
                         for n, body in enumerate(bodies)]
        for t in self._threads:
            t.start()

    def _work(self, address, name, make_body):
        client = Client(address)
        for n in itertools.count():
            if self._stop.is_set():
                break
            request_id = f"{name}-{n:04}"
            body = make_body(request_id)
            answer = client.ask("/v1/chat/completions", body, request_id,
                                lambda a, key=request_id: self.live.__setitem__(key, a))
            self.live.pop(request_id, None)
            self.exchanges.append(Exchange(body, answer))
            self._stop.wait(self._pause_s if answer.whole() else FAULT_PAUSE_S)
        client.close()

    def streams(self):
        """The streamed answers that are under way at this moment."""
        return [a for a in list(self.live.values()) if a.begun()]

    def stop(self):
        """Lets the requests under way end; returns every exchange."""
        self._stop.set()
        for t in self._threads:
            t.join()
        return self.exchanges
