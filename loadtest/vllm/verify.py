#!/usr/bin/env python3
"""End-to-end checks of kinference in front of two real vLLM servers on the CPU of this machine.

usage: verify.py --kinference PATH [--venv DIR] [--engines URL URL] [--only CHECK ...]
                 [--seed TEXT] [--json FILE]
       verify.py --direct [--venv DIR] [--engines URL]

Starts the servers and the gateway on free loopback ports, runs the checks, prints a table, ends all
it started (also after Ctrl-C), and exits with 1 if a check failed, 2 if the run could not be made.
Needs the virtual environment that setup.sh makes. Standard library only.

--direct tries the client alone: the conversations against one vLLM server, without a gateway.
"""
import argparse
import shutil
import signal
import sys
import time
from pathlib import Path

import checks
import kv_events
import tokens
from client import Client
from load import chat_body
from report import Report
from stack import Engine, Failed, Gateway, GATEWAY_START_S_MAX, HERE, MODEL, Stack, free_ports

CONVERSATIONS, TURNS = 20, 10
CHECKS = ("files", "conversations", "kill", "policy", "tokenize", "kv-events")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--kinference", type=Path, help="the gateway's binary")
    p.add_argument("--venv", type=Path, default=HERE / ".vllm", help="made by setup.sh (default: %(default)s)")
    p.add_argument("--engines", nargs="+", default=[], metavar="URL",
                   help="servers that already run, with model tiny; they are not ended, so `kill` is left out")
    p.add_argument("--direct", action="store_true", help="one server, no gateway")
    p.add_argument("--only", nargs="+", choices=CHECKS, default=CHECKS, help="which checks (default: all)")
    p.add_argument("--conversations", type=int, default=CONVERSATIONS)
    p.add_argument("--turns", type=int, default=TURNS)
    p.add_argument("--seed", default=str(int(time.time())), help="of the prompts (default: the time)")
    p.add_argument("--json", type=Path, help="also write the table here")
    p.add_argument("--keep", action="store_true", help="keep the folder with logs and files")
    a = p.parse_args()
    if not a.direct and a.kinference is None:
        p.error("--kinference or --direct is needed")
    if a.engines and len(a.engines) != (1 if a.direct else 2):
        p.error("--engines takes two URLs, with --direct one")
    return a


def run(args, stack, report):
    if "tokenize" in args.only and not args.direct:
        tokenize(report, args, stack)
    if args.direct or set(args.only) - {"tokenize", "kv-events"}:
        run_on_ordinary_servers(args, stack, report)
    if "kv-events" in args.only and not args.direct:
        if args.engines:
            report.skip("KV events", "the servers are not this run's own")
        else:
            stack.end_all()
            for keys in ("bytes", "tokens"):
                print(f"starting vLLM with KV events, prompts known by {keys}", flush=True)
                kv_events.run(report, args, stack, keys)


def run_on_ordinary_servers(args, stack, report):
    engines = [Engine(url.removeprefix("http://").rstrip("/")) for url in args.engines]
    if not engines:
        print("starting vLLM (one to three minutes)", flush=True)
        engines = stack.start_engines(1 if args.direct else 2)
    if args.direct:
        held = checks.conversations(report, engines[0].address, args.seed, args.conversations, args.turns)
        checks.cached_share(report, held)
        checks.same_as_direct(report, held, lambda a: engines[0].address, engines)
        return
    if "files" in args.only:
        without_files(report, args, stack, engines)
    gateway = Gateway(stack, args.kinference, engines)
    if "conversations" in args.only:
        hold_conversations(report, args, gateway, engines)
    if "policy" in args.only:
        checks.policy_changes(report, gateway, engines)
    if "kill" in args.only:
        if args.engines:
            report.skip("a server dies", "the servers are not this run's own")
        else:
            checks.server_dies(report, stack, gateway, engines, args.seed)
    report.check("SIGTERM ends the gateway with status 0", gateway.process.stop() == 0,
                 f"status {gateway.process.popen.returncode}")


def tokenize(report, args, stack):
    """Exact mode, against a server of its own that has another chat template."""
    print("starting vLLM for the comparison of tokens (one to two minutes)", flush=True)
    model_folder = args.venv.resolve() / "models" / MODEL
    engine = stack.start_engines(1, tokens.SERVER_ARGS)[0]
    bodies = tokens.compare(report, args.kinference, engine, model_folder, stack.folder, args.seed)
    tokens.through_the_gateway(report, stack, args.kinference, engine, model_folder, bodies)
    engine.process.stop()


def without_files(report, args, stack, engines):
    """`serve` with nothing but addresses: it learns the model from the servers."""
    port, admin = free_ports(2)
    process = stack.start("kinference-plain", [args.kinference, "serve", "--listen", f"127.0.0.1:{port}",
                                               "--admin", f"127.0.0.1:{admin}", *(e.url() for e in engines)])
    process.wait_ready(f"127.0.0.1:{admin}", "/readyz", GATEWAY_START_S_MAX)
    client = Client(f"127.0.0.1:{port}")
    body = chat_body([{"role": "user", "content": "Say hello."}], 4, stream=True)
    answer = client.ask("/v1/chat/completions", body, "plain")
    client.close()
    report.check("serve with addresses only answers", answer.whole(), answer.brief())
    report.check("and ends with status 0", process.stop() == 0, f"status {process.popen.returncode}")


def hold_conversations(report, args, gateway, engines):
    held = checks.conversations(report, gateway.address, args.seed, args.conversations, args.turns)
    ids = [x.answer.request_id for c in held for x in c.exchanges]
    log = gateway.access_log.of(ids)

    def endpoint_of(answer):
        return answer.headers.get("x-kinference-endpoint") or log.get(answer.request_id, {}).get("endpoint")
    checks.placement_and_prediction(report, held, endpoint_of, log)
    checks.cached_share(report, held)
    checks.same_as_direct(report, held, endpoint_of, engines)


def stop_on_term(_number, _frame):
    raise KeyboardInterrupt


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, stop_on_term)
    stack, report, started = Stack(args.venv), Report(), time.monotonic()
    ending = None
    try:
        run(args, stack, report)
    except Failed as e:
        ending = str(e)
    except KeyboardInterrupt:
        ending = "interrupted"
    finally:
        stack.close()
    print(f"\n{report.table()}\n")
    if args.json:
        args.json.write_text(report.as_json())
    if ending is not None:
        print(f"the run broke off: {ending}", file=sys.stderr)
    keep = args.keep or ending is not None or report.failed()
    if keep:
        print(f"logs and files: {stack.folder}")
    else:
        shutil.rmtree(stack.folder)
    print(f"seed {args.seed}: {len(report.failed())} checks failed, {time.monotonic() - started:.0f} s")
    return 2 if ending is not None else 1 if report.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
