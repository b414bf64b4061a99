"""The checks, one function each: what is asked of the gateway, and how it is seen.

Each function runs its own load, and writes rows into the report. A function that needs the gateway
takes it as an argument; `conversations` works on a bare server too.
"""
import statistics
import time

from client import Client, metric
from load import Steady, chat_body, in_threads, long_answer, prose, run_conversations
from report import ms, quantile
from stack import ALIAS, MODEL, SERVER_START_S_MAX, redirect_policy

CONCURRENCY = 3
STAYED_MIN = 0.9             # share of later turns on the server of the turn before
TTFT_FALL_MAX = 0.5          # later turns' p50 over first turns' p50
IN_FORCE_S_MAX = 1.0
REFUSED_S_MAX = 5.0
USED_AGAIN_S_MAX = 60.0
STREAM_TOKENS = 64
REPEATS = 2                  # how often a differing answer is asked for again
VARIATION_MAX = 10           # more differing answers than this are not put down to the server


# --- conversations ----------------------------------------------------------------------------

def conversations(report, address, seed, count, turns):
    """Holds the conversations and reports the client's view of them."""
    started = time.monotonic()
    held = run_conversations(address, seed, count, turns, CONCURRENCY)
    took = time.monotonic() - started
    exchanges = [x for c in held for x in c.exchanges]
    broken = [x for x in exchanges if not x.answer.whole()]
    streamed = sum(x.answer.streamed for x in exchanges)
    report.check(f"{len(exchanges)} chat requests answered ({streamed} streamed)", not broken,
                 f"{len(exchanges) - len(broken)} whole answers in {took:.0f} s" + listed(broken))
    shown = [x for x in exchanges if x.answer.streamed and "stream_options" not in x.body and x.answer.usage]
    report.check("usage in a stream only when asked for", not shown, f"{len(shown)} streams showed it unasked")
    renamed = [x for x in exchanges if x.answer.model != MODEL]
    report.check("answers name the model asked for", not renamed, f"{len(renamed)} name another")
    first, later = ttfts(exchanges, first=True), ttfts(exchanges, first=False)
    report.figure("TTFT of first turns p50 / p90", f"{ms(quantile(first, .5))} / {ms(quantile(first, .9))}"
                  f" ({len(first)} streams)")
    report.figure("TTFT of later turns p50 / p90", f"{ms(quantile(later, .5))} / {ms(quantile(later, .9))}"
                  f" ({len(later)} streams)")
    if first and later:
        ratio = quantile(later, .5) / quantile(first, .5)
        report.check("TTFT falls after the first turn", ratio <= TTFT_FALL_MAX,
                     f"later p50 is {ratio:.2f} of the first (at most {TTFT_FALL_MAX})")
    return held


def ttfts(exchanges, first):
    return [x.answer.ttft_s for x in exchanges if x.answer.ttft_s is not None and (x.turn == 1) == first]


def listed(exchanges, most=3):
    """The first few bad exchanges, for a row of the table."""
    return "".join(f"; {x.answer.brief()}" for x in exchanges[:most])


def same_as_direct(report, held, engine_of, engines):
    """Asks a server itself for every answer again, and compares all but ids and clocks."""
    exchanges = [x for c in held for x in c.exchanges if x.answer.whole()]
    by_engine = {e.address: [x for x in exchanges if engine_of(x.answer) == e.address] for e in engines}
    by_engine[engines[0].address] += [x for x in exchanges if engine_of(x.answer) not in by_engine]
    differ = []

    def repeat(address):
        client = Client(address)
        for x in by_engine[address]:
            if essence(client.ask("/v1/chat/completions", x.body)) != essence(x.answer):
                differ.append(x)
        client.close()
    in_threads([lambda a=e.address: repeat(a) for e in engines])
    unstable = [x for x in differ[:VARIATION_MAX] if is_own_variation(x, engines)]
    wrong = [x for x in differ if x not in unstable]
    report.check("bodies equal to the server's own", exchanges and not wrong,
                 f"{len(exchanges) - len(differ)} of {len(exchanges)} equal, {len(unstable)} vary on the server"
                 f" itself, {len(wrong)} differ" + listed(wrong))


def essence(answer):
    """An answer without what differs between any two runs: ids, clocks, and what was cached."""
    def plain(usage):
        return {k: v for k, v in (usage or {}).items() if k != "prompt_tokens_details"}
    if answer.body is not None:
        body = {k: v for k, v in answer.body.items() if k not in ("id", "created")}
        return {**body, "usage": plain(answer.usage)}
    return {"text": answer.text, "finish_reason": answer.finish_reason, "usage": plain(answer.usage),
            "model": answer.model, "status": answer.status, "done": answer.done}


def is_own_variation(exchange, engines):
    """True if some server gives this very answer when asked again: arithmetic in bfloat16 depends on
    how requests were batched and on where the cached part ends, and a near-tie may turn."""
    for engine in engines * REPEATS:
        client = Client(engine.address)
        again = client.ask("/v1/chat/completions", exchange.body)
        client.close()
        if essence(again) == essence(exchange.answer):
            return True
    return False


def placement_and_prediction(report, held, endpoint_of, log):
    """Where the turns went, and how near the predictions were."""
    pairs = [(a.answer, b.answer) for c in held for a, b in zip(c.exchanges, c.exchanges[1:])]
    known = [(endpoint_of(a), endpoint_of(b)) for a, b in pairs]
    known = [(a, b) for a, b in known if a and b]
    share = sum(a == b for a, b in known) / len(known) if known else 0.0
    report.check("later turns stay on the conversation's server", share >= STAYED_MIN,
                 f"{100 * share:.1f} % of {len(known)} (at least {100 * STAYED_MIN:.0f} %)")
    starts = [endpoint_of(c.exchanges[0].answer) for c in held]
    counts = sorted((starts.count(e) for e in set(starts) if e), reverse=True)
    report.check("both servers are used", len(counts) > 1, "conversations begun on each: " + str(counts))
    ids = [x.answer.request_id for c in held for x in c.exchanges]
    report.check("one access log line for each request", all(i in log for i in ids),
                 f"{sum(i in log for i in ids)} of {len(ids)}")
    predictions(report, held, log)


def predictions(report, held, log):
    """The access log's predicted against its actual TTFT, and its actual against the client's."""
    rows = []
    for x in sorted((x for c in held for x in c.exchanges), key=lambda x: x.answer.sent_s):
        line = log.get(x.answer.request_id, {})
        if x.answer.streamed and line.get("predicted_ttft_ms") and line.get("ttft_ms"):
            rows.append((x.turn == 1, line["predicted_ttft_ms"], line["ttft_ms"], 1e3 * x.answer.ttft_s))
    streams = sum(x.answer.streamed for c in held for x in c.exchanges)
    report.check("predicted and actual TTFT are logged for streams", len(rows) == streams, f"{len(rows)} of {streams}")
    for name, part in (("first turns", [r for r in rows if r[0]]), ("later turns", [r for r in rows if not r[0]]),
                       ("the second half", rows[len(rows) // 2:])):
        if part:
            error = statistics.median(abs(p - a) / a for _, p, a, _ in part)
            report.figure(f"predicted / actual TTFT, median of {name}",
                          f"{statistics.median(p for _, p, _, _ in part):.0f} /"
                          f" {statistics.median(a for _, _, a, _ in part):.0f} ms;"
                          f" median error {100 * error:.0f} % ({len(part)} streams)")
    if rows:
        apart = statistics.median(c - a for _, _, a, c in rows)
        report.check("the logged TTFT is what the client saw", abs(apart) < 20,
                     f"client minus log, median {apart:.1f} ms (within 20)")


def cached_share(report, held):
    """What the engines say they reused, from the answers' own usage."""
    later = [x.answer.usage for c in held for x in c.exchanges[1:] if x.answer.usage]
    tokens = sum(u["prompt_tokens"] for u in later)
    cached = sum((u.get("prompt_tokens_details") or {}).get("cached_tokens") or 0 for u in later)
    if tokens:
        report.figure("prompt tokens of later turns that were cached", f"{100 * cached / tokens:.1f} % (engines' count)")


# --- a server dies ----------------------------------------------------------------------------

def server_dies(report, stack, gateway, engines, seed):
    """SIGKILL to one of two servers under load, then its return."""
    load = Steady(gateway.address, "kill",
                  [long_answer(seed, True, STREAM_TOKENS)] * 4 + [long_answer(seed, False, 32)] * 2)
    victim, on_it = pick_victim(load, gateway, engines)
    killed_s = victim.process.kill()
    time.sleep(6)
    exchanges = load.stop()
    log = gateway.access_log.of([x.answer.request_id for x in exchanges])
    judge_kill(report, exchanges, log, victim, killed_s, on_it)
    back_again(report, stack, gateway, victim, seed)


def pick_victim(load, gateway, engines):
    """The server with most streams in their middle, and how many those are; waits until there is one."""
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        middle = [a for a in load.streams() if 3 <= a.events <= STREAM_TOKENS // 2]
        if any("x-kinference-endpoint" in a.headers for a in middle):
            on = {e: sum(a.headers.get("x-kinference-endpoint") == e.address for a in middle) for e in engines}
        else:
            running = {e: metric(e.address, "vllm:num_requests_running") or 0 for e in engines}
            on = {e: running[e] if len(middle) >= 3 else 0 for e in engines}
        victim = max(engines, key=lambda e: on[e])
        if on[victim] >= 1:
            return victim, int(on[victim])
        time.sleep(0.02)
    return engines[0], 0


def judge_kill(report, exchanges, log, victim, killed_s, on_it):
    """Only streams that had begun on the victim may be hurt, and those must say so in the stream."""
    def where(answer):
        return answer.headers.get("x-kinference-endpoint") or log.get(answer.request_id, {}).get("endpoint")
    hurt = [x for x in exchanges if not x.answer.whole()]
    other = [x for x in hurt if not (x.answer.begun() and where(x.answer) == victim.address
                                     and x.answer.head_s < killed_s < x.answer.ended_s)]
    after = [x for x in exchanges if x.answer.sent_s > killed_s]
    across = [x for x in exchanges if x.answer.sent_s < killed_s < x.answer.ended_s]
    report.check("a kill hurts only streams begun on that server", not other and hurt,
                 f"{len(hurt)} hurt ({on_it} seen in their middle); {len(across)} were under way,"
                 f" {len(after)} came after; {len(other)} others hurt" + listed(other))
    badly = [x for x in hurt if x.answer.error is None or x.answer.done or x.answer.after_done]
    report.check("each hurt stream ends in an error event, without [DONE]", hurt and not badly,
                 f"{len(hurt) - len(badly)} of {len(hurt)}" + listed(badly))
    waits = [x.answer.ended_s - killed_s for x in hurt]
    report.figure("a hurt stream hears of it after", f"{ms(max(waits, default=None))} at most")
    rescued = [x for x in across if x.answer.whole() and log.get(x.answer.request_id, {}).get("retries")]
    report.figure("requests on it without a byte sent, answered elsewhere", len(rescued))
    outcomes = sorted({str(log.get(x.answer.request_id, {}).get("outcome")) for x in hurt})
    report.figure("their outcome in the access log", ", ".join(outcomes))


def back_again(report, stack, gateway, victim, seed):
    """Starts the killed server again under a light load, and waits until it is sent requests."""
    light = Steady(gateway.address, "back", [long_answer(seed, True, 8), long_answer(seed, False, 8)], pause_s=1.0)
    stack.start_engine(victim)
    victim.process.wait_ready(victim.address, "/health", SERVER_START_S_MAX)
    ready_s = time.monotonic()
    used = 0
    while not used and time.monotonic() - ready_s < USED_AGAIN_S_MAX:
        time.sleep(0.1)
        used = metric(victim.address, "vllm:request_success_total") or 0
    took = time.monotonic() - ready_s
    exchanges = light.stop()
    broken = [x for x in exchanges if not x.answer.whole()]
    report.check("the server is used again when it is back", bool(used), f"first answer {took:.1f} s after it was ready")
    report.check("nothing failed while it was away", not broken, f"{len(exchanges)} requests" + listed(broken))


# --- a policy changes -------------------------------------------------------------------------

def policy_changes(report, gateway, engines):
    """Changes, breaks and repairs the policy file under load."""
    def body(streamed):
        fields = {"stream": True} if streamed else {}
        return lambda key: chat_body([{"role": "user", "content": prose(key, 20)}], 8, **fields) | {"model": ALIAS}
    load = Steady(gateway.address, "policy", [body(True), body(False), body(True)])
    good, changed = redirect_policy("house-to-left", "left"), redirect_policy("house-to-right", "right")
    time.sleep(2)
    steps = [(gateway.write_policy(changed), "house-to-right")]
    time.sleep(3)
    for name, text, is_place in broken_forms(changed):
        known = gateway.refusals()
        steps.append((gateway.overwrite_policy(text), "house-to-right"))
        wait_refusal(report, gateway, name, is_place, known)
    steps.append((gateway.overwrite_policy(good), "house-to-left"))
    time.sleep(3)
    exchanges = load.stop()
    broken = [x for x in exchanges if not x.answer.whole()]
    report.check("no request fails while the policy changes", not broken, f"{len(exchanges)} requests" + listed(broken))
    renamed = [x for x in exchanges if x.answer.whole() and x.answer.model != ALIAS]
    report.check("the answer names the alias asked for", not renamed, f"{len(renamed)} name another")
    judge_rules(report, gateway, engines, exchanges, steps)


def broken_forms(text):
    """(what is wrong, the broken file, whether a line and column are its place)."""
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "consider:" in line)
    typo = [*lines[:at], lines[at].replace("consider:", "considr:"), *lines[at + 1:]]
    column = lines[at].index("consider") + 1
    yield "a misspelt field", "\n".join(typo) + "\n", lambda line, col: (line, col) == (at + 1, column)
    # An unclosed bracket shows at the end of the file, which is its last line or the one after.
    yield "a half-written file", "\n".join(lines)[:-12], lambda line, col: line in (len(lines), len(lines) + 1)


def wait_refusal(report, gateway, name, is_place, known):
    """Waits until the broken file is refused with its place, then leaves it broken for a while."""
    started = time.monotonic()
    exact, seen = False, set()
    while not exact and time.monotonic() - started < REFUSED_S_MAX:
        time.sleep(0.05)
        seen = gateway.refusals() - known
        exact = any(is_place(*place) for place in seen)
    report.check(f"{name} is refused with its place", exact,
                 f"line:column {', '.join(f'{a}:{b}' for a, b in sorted(seen)) or 'none'} named after"
                 f" {time.monotonic() - started:.2f} s")
    time.sleep(1.5)


def judge_rules(report, gateway, engines, exchanges, steps):
    """Every request sent a second after a change must be decided by the rule then in the file."""
    log = gateway.access_log.of([x.answer.request_id for x in exchanges])
    addresses = {"house-to-left": engines[0].address, "house-to-right": engines[1].address}
    rules, strays, unknown = [], [], 0
    for x in exchanges:
        line = log.get(x.answer.request_id, {})
        rule = str(x.answer.headers.get("x-kinference-rule") or line.get("rule") or "").split("/")[-1]
        endpoint = x.answer.headers.get("x-kinference-endpoint") or line.get("endpoint")
        unknown += rule not in addresses
        rules.append((x.answer.sent_s, rule))
        if endpoint != addresses.get(rule):
            strays.append(x)
    report.check("each request names the rule that decided it", not unknown, f"{len(rules) - unknown} of {len(rules)}")
    report.check("the rule's server answers", not strays, f"{len(rules) - len(strays)} of {len(rules)}")
    expected = "house-to-left"
    ends = [at for at, _ in steps[1:]] + [float("inf")]
    for (at, rule), end in zip(steps, ends, strict=True):
        if rule == expected:
            continue
        late = [sent - at for sent, r in rules if at < sent < end and r != rule]
        new = [sent for sent, r in rules if at < sent < end and r == rule]
        report.check(f"{rule} in force within a second", new and max(late, default=0) < IN_FORCE_S_MAX,
                     f"last request by the old rule {ms(max(late, default=0))} after the change; {len(new)} by the new")
        expected = rule
    held = [r for sent, r in rules if steps[1][0] < sent < steps[-1][0]]
    report.check("the last good policy stays while the file is broken", held and set(held) == {"house-to-right"},
                 f"{len(held)} requests, all by house-to-right" if set(held) == {"house-to-right"} else sorted(set(held)))
