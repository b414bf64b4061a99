"""The check of what is known of the servers' caches: two servers with small caches and KV events.

One publishes where the gateway connects to it, the other connects to the gateway. Documents are asked
about again and again, more than fit into both caches, so that blocks are evicted all the time. Each
answer says how many of its prompt's tokens were cached; the access log says how many were expected.
"""
import json
import random
import statistics
import time

from client import Client, fetch
from load import Exchange, chat_body, in_threads, prose
from report import ms, quantile
from stack import Engine, Failed, Gateway, GATEWAY_START_S_MAX, MODEL, POLL_S, SERVER_START_S_MAX, free_ports

REQUESTS = 300
DOCUMENTS = 24
DOCUMENT_WORDS = (300, 900)   # about a token each
QUESTION_WORDS = (5, 60)
CONCURRENCY = 3
BLOCKS = 200                  # of each server's cache
BLOCK_TOKENS = 32
MODEL_TOKENS_MAX = 4096
ERROR_OF_PROMPT_MAX = 0.10    # where prompts are known by their bytes
ERROR_BLOCKS_MAX = 1.0        # where they are known by their tokens
KNOWN_S_MAX = 5.0


def run(report, args, stack, keys):
    """`keys`: "bytes" or "tokens", how the gateway knows prompts."""
    engines, events = start_engines(stack)
    tokenizer = stack.venv.resolve() / "models" / MODEL if keys == "tokens" else None
    gateway = Gateway(stack, args.kinference, engines, [worker_set_fields(e, tokenizer) for e in events])
    if tokenizer:
        wait_until_told_by_tokens(gateway)
    exchanges = load(gateway.address, args.seed)
    broken = [x for x in exchanges if not x.answer.whole()]
    report.check(f"{len(exchanges)} requests answered", not broken, f"{len(exchanges) - len(broken)} whole answers")
    log = gateway.access_log.of([x.answer.request_id for x in exchanges])
    judge_estimates(report, exchanges, log, keys)
    judge_streams(report, gateway)
    gateway.process.stop()
    for engine in engines:
        engine.process.stop()


def start_engines(stack):
    """Two ready servers, and where each publishes."""
    api, replay, ports = free_ports(2), free_ports(2), free_ports(2)
    engines = [Engine(f"127.0.0.1:{port}", core=i) for i, port in enumerate(api)]
    events = [
        {"port": ports[0], "replayPort": replay[0], "endpoint": f"tcp://[::ffff:127.0.0.1]:{ports[0]}"},
        {"listen": f"127.0.0.1:{ports[1]}", "replayPort": replay[1], "endpoint": f"tcp://127.0.0.1:{ports[1]}"},
    ]
    for engine, event in zip(engines, events, strict=True):
        replay_endpoint = f"tcp://[::ffff:127.0.0.1]:{event['replayPort']}"
        stack.start_engine(engine, ["--num-gpu-blocks-override", BLOCKS, "--max-model-len", MODEL_TOKENS_MAX],
                           {"KV_EVENTS": event.pop("endpoint"), "KV_REPLAY": replay_endpoint})
    for engine in engines:
        engine.process.wait_ready(engine.address, "/health", SERVER_START_S_MAX)
    return engines, events


def worker_set_fields(events, tokenizer):
    """Further lines of a worker set's spec."""
    lines = f"  kvEvents: {json.dumps(events)}\n"
    return lines + (f'  tokenizer: {{ file: "{tokenizer}" }}\n' if tokenizer else "")


def wait_until_told_by_tokens(gateway):
    limit = time.monotonic() + GATEWAY_START_S_MAX
    while time.monotonic() < limit:
        status, body = fetch(gateway.admin, "/endpoints")
        if status == 200 and all(t["promptsBy"] == "tokens" for t in json.loads(body)["tokenizers"]):
            return
        time.sleep(POLL_S)
    raise Failed("the tokenizers are not in force")


def load(address, seed):
    """Questions about documents, some of them more often than others."""
    rnd = random.Random(seed)
    documents = [prose(f"{seed} document {n}", rnd.randint(*DOCUMENT_WORDS)) for n in range(DOCUMENTS)]
    weights = [1 / (n + 1) ** 0.7 for n in range(DOCUMENTS)]
    chosen = rnd.choices(range(DOCUMENTS), weights, k=REQUESTS)
    bodies = []
    for n, document in enumerate(chosen):
        question = prose(f"{seed} question {n}", rnd.randint(*QUESTION_WORDS))
        messages = [{"role": "system", "content": documents[document]}, {"role": "user", "content": question}]
        bodies.append(chat_body(messages, 4 + n % 29, stream=True, stream_options={"include_usage": True}))
    exchanges, waiting = [], list(enumerate(bodies))[::-1]

    def work():
        client = Client(address)
        while waiting:
            try:
                n, body = waiting.pop()
            except IndexError:
                break
            exchanges.append(Exchange(body, client.ask("/v1/chat/completions", body, f"kv-{n:04}")))
        client.close()
    in_threads([work] * CONCURRENCY)
    return exchanges


def judge_estimates(report, exchanges, log, keys):
    """Expected against cached, and predicted against actual TTFT."""
    rows, times = [], []
    for x in exchanges:
        line, usage = log.get(x.answer.request_id, {}), x.answer.usage or {}
        if line.get("overlap_tokens") is None or not usage:
            continue
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        rows.append((line["overlap_tokens"], cached, usage["prompt_tokens"]))
        if line.get("predicted_ttft_ms") and line.get("ttft_ms"):
            times.append((line["predicted_ttft_ms"], line["ttft_ms"]))
    if not report.check("expected and cached tokens are known", len(rows) == len(exchanges), f"{len(rows)} of them"):
        return
    of_prompt = statistics.mean(abs(e - c) / p for e, c, p in rows)
    blocks = statistics.mean(abs(e - c) / BLOCK_TOKENS for e, c, _ in rows)
    share = sum(c for _, c, _ in rows) / sum(p for _, _, p in rows)
    bias = sum(e - c for e, c, _ in rows) / sum(p for _, _, p in rows)
    seen = (f"mean error {100 * of_prompt:.1f} % of the prompt, {blocks:.2f} blocks; bias {100 * bias:+.1f} %;"
            f" {100 * share:.0f} % of the prompts' tokens were cached")
    if keys == "bytes":
        report.check("overlap by bytes against cached tokens", of_prompt <= ERROR_OF_PROMPT_MAX,
                     f"{seen} (at most {100 * ERROR_OF_PROMPT_MAX:.0f} %)")
    else:
        report.check("overlap by tokens against cached tokens", blocks <= ERROR_BLOCKS_MAX,
                     f"{seen} (at most {ERROR_BLOCKS_MAX:.0f} block)")
    exact = sum(e == c for e, c, _ in rows)
    report.figure("estimates that were exact", f"{exact} of {len(rows)}")
    if times:
        late = times[len(times) // 4:]
        error = statistics.median(abs(p - a) / a for p, a in late)
        report.figure("predicted / actual TTFT, medians after the first quarter",
                      f"{ms(quantile([p for p, _ in late], .5) / 1e3)} / {ms(quantile([a for _, a in late], .5) / 1e3)};"
                      f" median error {100 * error:.0f} %")


def judge_streams(report, gateway):
    """What the gateway says of both streams when all is told."""
    limit = time.monotonic() + KNOWN_S_MAX
    while True:
        status, body = fetch(gateway.admin, "/endpoints")
        told = [e["kvEvents"] or {} for e in json.loads(body)["endpoints"]] if status == 200 else []
        live = len(told) == 2 and all(t.get("state") == "live" for t in told)
        if live or time.monotonic() > limit:
            break
        time.sleep(0.1)
    seen = "; ".join(f"{t.get('state')}, {t.get('blocks')} blocks, {t.get('messages')} messages,"
                     f" {t.get('messagesLost')} lost, {t.get('blocksRemoved')} removed" for t in told)
    report.check("every block of both caches is known", live and all(t["messagesLost"] == 0 for t in told), seen)
    report.check("blocks were evicted, and no cache holds more than it can",
                 live and all(0 < t["blocks"] <= BLOCKS and t["blocksRemoved"] > 0 for t in told), seen)
