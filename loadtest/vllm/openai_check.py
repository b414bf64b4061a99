#!/usr/bin/env python3
"""The `openai` package from PyPI, unmodified, against kinference (or one vLLM server with --direct).

usage: openai_check.py --base-url http://127.0.0.1:8080/v1 [--model NAME]
                       [--admin HOST:PORT | --engine HOST:PORT ...] [--direct]

Prints one line for each check and exits with 1 if one failed. The engines' addresses are needed to
see that a request whose client has gone is gone there too; with --admin they come from /endpoints.
"""
import argparse
import re
import sys
import threading
import time

import openai

from client import fetch, metric

GONE_S_MAX = 3.0          # from the client's leaving to the engines' running count back at zero
CLIENT_TIMEOUT_S = 1.0
LONG_TOKENS = 4000        # an answer that takes far longer than CLIENT_TIMEOUT_S
PROMPT = [{"role": "user", "content": "Say hello to the lighthouse."}]


class Wrong(Exception):
    """A check that failed; the message says what was seen."""


def need(condition, seen):
    if not condition:
        raise Wrong(seen)


def expect(error, call):
    """Runs `call`, which must raise exactly `error`; returns what was raised."""
    try:
        result = call()
    except openai.OpenAIError as e:
        need(type(e) is error, f"{type(e).__name__} in place of {error.__name__}: {e}")
        return e
    raise Wrong(f"no error: {result}")


class Check:
    """The checks, each a method; its docstring is the printed name, its result what was seen."""

    def __init__(self, args):
        self.client = openai.OpenAI(base_url=args.base_url, api_key="unused", max_retries=0, timeout=120)
        self.model = args.model or self.client.models.list().data[0].id
        self.engines = args.engine
        self.direct = args.direct

    def models(self):
        """models.list and models.retrieve"""
        ids = [m.id for m in self.client.models.list()]
        need(self.model in ids, f"{self.model} is not in {ids}")
        if not self.direct:      # vLLM has no /v1/models/{id}
            need(self.client.models.retrieve(self.model).id == self.model, "another id")
        return f"{len(ids)} names"

    def chat(self):
        """chat.completions.create"""
        answer = self.client.chat.completions.create(model=self.model, messages=PROMPT, max_tokens=8, temperature=0)
        choice = answer.choices[0]
        need(choice.message.role == "assistant" and choice.message.content, f"{choice}")
        need(choice.finish_reason in ("stop", "length"), f"finish_reason {choice.finish_reason}")
        need(answer.model == self.model, f"model {answer.model}")
        need(answer.usage and answer.usage.completion_tokens > 0, f"usage {answer.usage}")
        self.text = choice.message.content
        return f"{answer.usage.completion_tokens} tokens"

    def chat_streamed(self):
        """chat.completions.create, streamed, says the same"""
        text, chunks, finish = "", 0, None
        for chunk in self.client.chat.completions.create(model=self.model, messages=PROMPT, max_tokens=8,
                                                         temperature=0, stream=True):
            need(chunk.usage is None and chunk.choices, "a usage chunk that was not asked for")
            need(chunk.model == self.model, f"model {chunk.model}")
            chunks += 1
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        need(text == self.text, "another text than unstreamed")
        need(finish in ("stop", "length"), f"finish_reason {finish}")
        return f"{chunks} chunks"

    def chat_streamed_usage(self):
        """chat.completions.create, streamed, with usage"""
        chunks = list(self.client.chat.completions.create(
            model=self.model, messages=PROMPT, max_tokens=8, stream=True, stream_options={"include_usage": True}))
        need(chunks[-1].usage and not chunks[-1].choices, "the last chunk is not the usage")
        need(chunks[-1].usage.completion_tokens > 0, f"usage {chunks[-1].usage}")
        return f"{chunks[-1].usage.prompt_tokens} + {chunks[-1].usage.completion_tokens} tokens"

    def completions(self):
        """completions.create, plain and streamed"""
        ask = {"model": self.model, "prompt": "The lighthouse", "max_tokens": 8, "temperature": 0}
        plain = self.client.completions.create(**ask)
        need(plain.choices[0].text and plain.model == self.model, f"{plain}")
        streamed = "".join(c.choices[0].text for c in self.client.completions.create(**ask, stream=True))
        need(streamed == plain.choices[0].text, "streamed and plain differ")
        return f"{plain.usage.completion_tokens} tokens"

    def embeddings_error(self):
        """embeddings.create on a model without embeddings is a status error of its class"""
        try:
            self.client.embeddings.create(model=self.model, input="x")
        except openai.APIStatusError as e:
            classes = {400: openai.BadRequestError, 404: openai.NotFoundError}
            need(type(e) is classes.get(e.status_code), f"{type(e).__name__} for {e.status_code}")
            return f"{type(e).__name__} {e.status_code}"
        raise Wrong("no error")

    def wrong_model(self):
        """a wrong model is openai.NotFoundError with a code"""
        for stream in (False, True):
            e = expect(openai.NotFoundError, lambda: self.client.chat.completions.create(
                model="no-such-model", messages=PROMPT, stream=stream))
            need(e.code if self.direct else e.code == "model_not_found", f"code {e.code!r}")
            need(isinstance(e.body, dict) and e.body.get("message"), f"body {e.body!r}")
        return f"code {e.code}"

    def bad_request(self):
        """a request the engine refuses is openai.BadRequestError"""
        e = expect(openai.BadRequestError, lambda: self.client.chat.completions.create(
            model=self.model, messages=PROMPT, max_tokens=-1))
        return f"{e.status_code}"

    def client_timeout(self):
        """the client's time-out is openai.APITimeoutError, and the engine stops working"""
        with Running(self.engines) as running:
            expect(openai.APITimeoutError, lambda: self.client.with_options(timeout=CLIENT_TIMEOUT_S)
                   .chat.completions.create(model=self.model, messages=PROMPT, max_tokens=LONG_TOKENS,
                                            extra_body={"ignore_eos": True}))
            return running.back_to_zero()

    def closed_stream(self):
        """closing a stream early stops the engine"""
        with Running(self.engines) as running:
            stream = self.client.chat.completions.create(model=self.model, messages=PROMPT, stream=True,
                                                         max_tokens=LONG_TOKENS, extra_body={"ignore_eos": True})
            for chunks, _ in enumerate(stream, 1):
                if chunks >= 5 and running.seen:
                    break
            stream.close()
            return running.back_to_zero()


class Running:
    """Watches the engines' own count of running requests from a thread."""

    def __init__(self, engines):
        need(engines, "no engine address is known: give --engine or --admin")
        self.engines = engines
        self.seen = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def now(self):
        return sum(metric(e, "vllm:num_requests_running") or 0 for e in self.engines)

    def _watch(self):
        while not self._stop.wait(0.03):
            self.seen = max(self.seen, self.now())

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()

    def back_to_zero(self):
        left = time.monotonic()
        need(self.seen >= 1, "the request was never seen running")
        while self.now() > 0:
            need(time.monotonic() - left < GONE_S_MAX, f"still running after {GONE_S_MAX} s")
            time.sleep(0.01)
        return f"no longer running {1e3 * (time.monotonic() - left):.0f} ms after the client left"


CHECKS = (Check.models, Check.chat, Check.chat_streamed, Check.chat_streamed_usage, Check.completions,
          Check.embeddings_error, Check.wrong_model, Check.bad_request, Check.client_timeout, Check.closed_stream)


def engines_of(admin):
    """Addresses in the gateway's /endpoints."""
    status, body = fetch(admin, "/endpoints")
    if status != 200:
        raise SystemExit(f"no /endpoints at {admin}")
    return sorted(set(re.findall(r"\b\d+\.\d+\.\d+\.\d+:\d+\b", body.decode())) - {admin})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base-url", required=True)
    p.add_argument("--model", help="default: the first that models.list names")
    p.add_argument("--engine", action="append", default=[], metavar="HOST:PORT")
    p.add_argument("--admin", metavar="HOST:PORT", help="the gateway's admin address")
    p.add_argument("--direct", action="store_true", help="the base URL is a vLLM server's own")
    args = p.parse_args()
    if args.admin and not args.engine:
        args.engine = engines_of(args.admin)
    check, failed = Check(args), 0
    for run in CHECKS:
        try:
            print(f"PASS {run.__doc__}: {run(check)}", flush=True)
        except (Wrong, openai.OpenAIError) as e:
            failed += 1
            print(f"FAIL {run.__doc__}: {type(e).__name__}: {e}", flush=True)
    print(f"openai {openai.__version__}, model {check.model}: {len(CHECKS) - failed} of {len(CHECKS)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
