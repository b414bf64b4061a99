#!/usr/bin/env python3
"""Tests of the checks themselves: a check that cannot fail proves nothing.

usage: python3 test_checks.py        (standard library only, a few seconds, loopback only)
"""
import contextlib
import io
import json
import socket
import tempfile
import threading
import unittest
from pathlib import Path
from types import SimpleNamespace

import checks
from client import Answer, Client, EventReader
from load import Exchange
from report import Report, quantile
from stack import AccessLog, Engine, positions

ASK = {"model": "m", "stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(text="", finish=None):
    choice = {"delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}).encode() + b"\n\n"


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def answer_to(reply, body=ASK):
    """What the client makes of a server that answers with exactly these bytes and closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        conn, _ = listener.accept()
        with conn:
            seen = b""
            while not seen.endswith(b"}"):
                seen += conn.recv(65536)
            conn.sendall(reply)
    server = threading.Thread(target=serve)
    server.start()
    client = Client(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=10)
    answer = client.ask("/v1/chat/completions", body, "id")
    client.close()
    server.join()
    listener.close()
    return answer


def outcome(function, *args):
    """name -> "pass" or "FAIL" of the rows that a check writes."""
    report = Report()
    with contextlib.redirect_stdout(io.StringIO()):
        function(report, *args)
    return {r["name"]: r["result"] for r in report.rows}


class Reading(unittest.TestCase):
    def test_events_split_at_any_byte_are_the_same_events(self):
        whole = b"data: one\n\ndata:two\r\n\r\n: comment\n\ndata: a\ndata: b\n\n"
        for cut in range(len(whole) + 1):
            reader = EventReader()
            got = reader.feed(whole[:cut]) + reader.feed(whole[cut:])
            self.assertEqual(got, [b"one", b"two", b"a\nb"], f"cut at {cut}")
            self.assertFalse(reader.unfinished())

    def test_a_whole_stream_is_whole(self):
        a = answer_to(HEAD + chunk(event()) + chunk(event("hé")) + chunk(event("y", "stop"))
                      + chunk(b"data: [DONE]\n\n") + END)
        self.assertTrue(a.whole(), a.brief())
        self.assertEqual((a.text, a.events, a.finish_reason), ("héy", 3, "stop"))
        self.assertGreaterEqual(a.ttft_s, a.head_s - a.sent_s)

    def test_a_stream_without_done_is_not_whole(self):
        self.assertFalse(answer_to(HEAD + chunk(event("a", "stop")) + END).whole())

    def test_a_stream_cut_off_is_a_fault(self):
        for cut in (b"", b"5\r\nda", chunk(event("a")), chunk(event("a", "stop")) + chunk(b"data: [DONE]\n\n")):
            a = answer_to(HEAD + cut)
            self.assertIsNotNone(a.fault, cut)
            self.assertFalse(a.whole())
            self.assertTrue(a.begun())

    def test_an_error_event_is_kept_and_what_follows_it_is_noticed(self):
        error = chunk(b'data: {"error":{"message":"gone"}}\n\n')
        a = answer_to(HEAD + chunk(event("a")) + error + END)
        self.assertEqual((a.error, a.done, a.after_done), ({"message": "gone"}, False, False))
        a = answer_to(HEAD + chunk(event("a")) + error + chunk(b"data: [DONE]\n\n") + END)
        self.assertTrue(a.after_done)
        self.assertFalse(a.whole())

    def test_an_answer_before_any_byte_lost_is_a_fault_without_status(self):
        a = answer_to(b"")
        self.assertIsNone(a.status)
        self.assertFalse(a.begun())

    def test_a_plain_answer_in_place_of_a_stream_is_a_fault(self):
        body = b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}'
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
        self.assertFalse(answer_to(head + body).whole())
        self.assertTrue(answer_to(head + body, {"model": "m"}).whole())


class Judging(unittest.TestCase):
    victim = Engine("127.0.0.1:1")

    def exchange(self, **fields):
        usual = {"status": 200, "head_s": 1.0, "ended_s": 3.0, "headers": {"x-kinference-endpoint": "127.0.0.1:1"}}
        return Exchange({}, Answer("r", True, 0.5, **{**usual, **fields}))

    def kill(self, *exchanges):
        return list(outcome(checks.judge_kill, exchanges, {}, self.victim, 2.0, 1).values())[:2]

    def test_a_stream_that_tells_of_the_kill_is_right(self):
        told = self.exchange(error={"message": "gone"})
        whole = self.exchange(finish_reason="stop", done=True, headers={})
        self.assertEqual(self.kill(told, whole), ["pass", "pass"])

    def test_a_kill_that_hurts_nobody_proves_nothing(self):
        self.assertEqual(self.kill(self.exchange(finish_reason="stop", done=True)), ["FAIL", "FAIL"])

    def test_a_silent_end_and_an_invented_done_are_wrong(self):
        self.assertEqual(self.kill(self.exchange(fault="cut")), ["pass", "FAIL"])
        self.assertEqual(self.kill(self.exchange(error={"m": 1}, done=True)), ["pass", "FAIL"])

    def test_nothing_else_may_be_hurt(self):
        told = self.exchange(error={"message": "gone"})
        elsewhere = self.exchange(error={"m": 1}, headers={"x-kinference-endpoint": "127.0.0.1:2"})
        unbegun = self.exchange(status=None, fault="reset", error={"m": 1})
        earlier = self.exchange(error={"m": 1}, ended_s=1.5)
        for other in (elsewhere, unbegun, earlier):
            self.assertEqual(self.kill(told, other)[0], "FAIL", other.answer.brief())

    def test_a_rule_of_the_old_file_after_a_second_is_late(self):
        engines = [Engine("a:1"), Engine("b:2")]

        def judged(late_by):
            rows = [(9.9, "left"), (10.0 + late_by, "left"), (12.0, "right"), (14.0, "right"), (16.0, "left")]
            exchanges = []
            for sent, side in rows:
                headers = {"x-kinference-rule": f"house-to-{side}",
                           "x-kinference-endpoint": engines[side == "right"].address}
                exchanges.append(Exchange({}, Answer("r", True, sent, headers=headers)))
            gateway = SimpleNamespace(access_log=SimpleNamespace(of=lambda ids: {}))
            steps = [(10.0, "house-to-right"), (13.0, "house-to-right"), (15.0, "house-to-left")]
            return set(outcome(checks.judge_rules, gateway, engines, exchanges, steps).values())
        self.assertEqual(judged(0.5), {"pass"})
        self.assertEqual(judged(1.5), {"pass", "FAIL"})

    def test_ids_and_clocks_are_no_difference_but_a_letter_is(self):
        def of(**fields):
            body = {"id": "1", "created": 1, "model": "m", "choices": [{"text": "x"}], **fields}
            return checks.essence(Answer("r", False, 0.0, body=body, usage={"prompt_tokens": 1}))
        self.assertEqual(of(), of(id="2", created=2))
        self.assertNotEqual(of(), of(choices=[{"text": "y"}]))


class Finding(unittest.TestCase):
    def test_places_are_found_at_any_depth(self):
        value = {"refused": [{"span": {"file": "a/policy.yaml", "line": 3, "column": 7}}, {"file": "b.yaml", "line": 1}]}
        self.assertEqual(list(positions(value, "policy.yaml")), [(3, 7)])

    def test_a_half_written_line_is_left_for_later(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            path.write_text('{"request_id":"a","rule":"x"}\n{"request_id":"b","ru')
            self.assertEqual(AccessLog(path).of(["a", "b"], limit_s=0), {"a": {"request_id": "a", "rule": "x"}})

    def test_quantiles_of_nothing_and_of_some(self):
        self.assertIsNone(quantile([], .5))
        self.assertEqual([quantile([3, 1, 2], q) for q in (0, .5, .9)], [1, 2, 3])


if __name__ == "__main__":
    unittest.main()
