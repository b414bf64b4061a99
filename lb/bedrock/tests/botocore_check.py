#!/usr/bin/env python3
"""Holds this crate against botocore, AWS's own Python SDK: signatures, paths, request bodies, event streams.

    python3 -m venv /tmp/aws && /tmp/aws/bin/pip install botocore
    cargo build -p bedrock --example lines
    /tmp/aws/bin/python lb/bedrock/tests/botocore_check.py            # 1,000 random requests, and the golden files
    /tmp/aws/bin/python lb/bedrock/tests/botocore_check.py --write    # writes the golden files that botocore makes anew

With --vectors BOTOCORE_SDIST AWS_SIGV4_CRATE (two unpacked source packages) the published vectors are copied as well.
"""

import argparse
import base64
import datetime
import hashlib
import io
import json
import os
import pathlib
import random
import re
import subprocess
import sys

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.eventstream
import botocore.parsers
import botocore.session
import botocore.validate

HERE = pathlib.Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
ROOT = HERE.parents[2]
GOLDEN_SIGNED = 100


class Ours:
    """The example `lines`, as a child that answers line by line."""

    def __init__(self):
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        self.child = subprocess.Popen(
            [target / "debug/examples/lines"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **line):
        self.child.stdin.write(json.dumps(line) + "\n")
        self.child.stdin.flush()
        return json.loads(self.child.stdout.readline())

    def end(self):
        self.child.stdin.close()
        self.child.wait(timeout=10)


# ---- random requests, signed by botocore ----

WORDS = ["Hello", "naïve", "日本語", "🙂", "a\nb", "tab\t", '"quoted"', "\\", "{}", "x" * 300, "%2F", "~", "+", "&=?"]
REGIONS = ["us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1", "us-gov-west-1", "eu-south-2"]


def model_id(draw):
    account = "".join(draw.choices("0123456789", k=12))
    region = draw.choice(REGIONS)
    name = draw.choice(["anthropic.claude-3-5-sonnet-20240620-v1:0", "amazon.nova-pro-v1:0", "meta.llama3-1-70b-instruct-v1:0",
                        "us.anthropic.claude-sonnet-4-5-20250929-v1:0", "mistral.mistral-large-2407-v1:0:128k"])
    return draw.choice([
        name,
        f"arn:aws:bedrock:{region}::foundation-model/{name}",
        f"arn:aws:bedrock:{region}:{account}:inference-profile/{name}",
        f"arn:aws:bedrock:{region}:{account}:application-inference-profile/{''.join(draw.choices('abc123', k=12))}",
        f"arn:aws:bedrock:{region}:{account}:provisioned-model/{''.join(draw.choices('xyz789', k=12))}",
        f"arn:aws-us-gov:bedrock:{region}:{account}:imported-model/{''.join(draw.choices('abc123', k=12))}",
        f"arn:aws:sagemaker:{region}:{account}:endpoint/my-endpoint-{draw.randrange(100)}",
        # Nothing Bedrock has, but anything must be encoded the same.
        "".join(draw.choices("aZ09-_.~:/ %é+&=?#@!$'()*,;", k=draw.randrange(1, 40))).replace("..", "-").strip("./") or "m",
    ])


def credentials(draw):
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    token = None if draw.random() < 0.4 else "".join(draw.choices(alphabet, k=draw.randrange(50, 900))) + "=="
    return ("AKIA" + "".join(draw.choices(alphabet[:26], k=16)), "".join(draw.choices(alphabet, k=40)), token)


def at(time_unix_s):
    return datetime.datetime.fromtimestamp(time_unix_s, datetime.timezone.utc)


def converse_request(draw, seconds):
    """What a whole botocore client sends for a random Converse call."""
    access, secret, token = credentials(draw)
    region = draw.choice(REGIONS)
    client = client_of(region)
    client._request_signer._credentials = botocore.credentials.Credentials(access, secret, token)
    sent = []

    def capture(request, **_):
        sent.append(request)
        return botocore.awsrequest.AWSResponse(request.url, 200, {}, Raw(b"{}"))

    client.meta.events.register_first("before-send.bedrock-runtime", capture, unique_id="capture")
    stream, model = draw.random() < 0.5, model_id(draw)
    call = client.converse_stream if stream else client.converse
    text = " ".join(draw.choices(WORDS, k=draw.randrange(1, 30)))
    image = [{"image": {"format": "png", "source": {"bytes": draw.randbytes(draw.randrange(1, 200))}}}]
    botocore.auth.get_current_datetime = lambda: at(seconds)
    try:
        call(modelId=model, messages=[{"role": "user", "content": [{"text": text}] + image * draw.randrange(2)}],
             inferenceConfig={"temperature": round(draw.random(), 3), "maxTokens": draw.randrange(1, 5000)})
    except (botocore.parsers.ResponseParserError, KeyError, AttributeError):
        pass  # the answer is empty; the request is what counts
    client.meta.events.unregister("before-send.bedrock-runtime", unique_id="capture")
    request = sent[0]
    host, _, path = request.url.removeprefix("https://").partition("/")
    given = {name.lower(): text_of(value) for name, value in request.headers.items()}
    # Never signed, and it would tell about this machine.
    given["user-agent"] = "Botocore"
    headers = [[name, value] for name, value in given.items()
               if name not in ("authorization", "x-amz-date", "x-amz-security-token", "content-length")
               and not name.startswith("amz-sdk-")]
    ask = dict(method="POST", path="/" + path, query="", headers=headers + [["host", host]], body=text_of(request.body),
               access_key_id=access, secret_access_key=secret, session_token=token, region=region, service="bedrock",
               time_unix_s=seconds)
    return {"model": model, "stream": stream, "sign": ask, "expected": expected(given)}


class Raw(io.BytesIO):
    def stream(self, *_, **__):
        yield self.read()


CLIENTS = {}


def client_of(region):
    if region not in CLIENTS:
        session = botocore.session.Session()
        session.set_credentials("AKID", "secret")
        CLIENTS[region] = session.create_client("bedrock-runtime", region_name=region)
    return CLIENTS[region]


def any_request(draw, seconds):
    """A random request, signed by botocore's signer alone."""
    access, secret, token = credentials(draw)
    region, service = draw.choice(REGIONS), draw.choice(["bedrock", "execute-api", "lambda"])
    quoted = lambda: "".join(draw.choices(["a", "B", "7", "-", "_", ".", "~", "%20", "%2F", "%C3%A9", "%25", "%3A"],
                                          k=draw.randrange(1, 8)))
    path = "/" + "/".join(draw.choice([quoted(), quoted(), quoted(), "", ".", "..", "a:b@c", "é", "x y"])
                          for _ in range(draw.randrange(1, 6)))
    query = "&".join(f"{quoted()}={draw.choice([quoted(), ''])}" for _ in range(draw.randrange(4)))
    headers = [["Content-Type", draw.choice(["application/json", "text/plain;  charset=utf-8"])]]
    headers += [[f"X-{draw.choice('abcABC')}{draw.randrange(3)}", draw.choice([" padded ", "a  b   c", "1", "z,y", '"q  r"'])]
                for _ in range(draw.randrange(4))]
    headers += draw.sample([["User-Agent", "curl/8"], ["Connection", "keep-alive"], ["traceparent", "00-1-2-03"],
                            ["X-Amzn-Trace-Id", "Root=1"], ["Expect", "100-continue"]], draw.randrange(3))
    host = draw.choice(["bedrock-runtime.us-east-1.amazonaws.com", "localhost:8443", "127.0.0.1:9000"])
    body = " ".join(draw.choices(WORDS, k=draw.randrange(0, 40)))
    url = f"https://{host}{path}" + (f"?{query}" if query else "")
    request = botocore.awsrequest.AWSRequest(method=draw.choice(["POST", "GET", "PUT"]), url=url, data=body.encode())
    for name, value in headers:
        request.headers.add_header(name, value)
    botocore.auth.get_current_datetime = lambda: at(seconds)
    botocore.auth.SigV4Auth(botocore.credentials.Credentials(access, secret, token), service, region).add_auth(request)
    given = {name.lower(): text_of(value) for name, value in request.headers.items()}
    ask = dict(method=request.method, path=path, query=query, headers=headers + [["host", host]], body=body,
               access_key_id=access, secret_access_key=secret, session_token=token, region=region, service=service,
               time_unix_s=seconds)
    return {"sign": ask, "expected": expected(given)}


def text_of(value):
    return value.decode() if isinstance(value, bytes) else value


def expected(headers):
    return {name: headers[name] for name in ("authorization", "x-amz-date", "x-amz-security-token") if name in headers}


def requests(count, seed):
    draw = random.Random(seed)
    for index in range(count):
        seconds = draw.randrange(1_400_000_000, 4_102_444_800)
        yield (converse_request if index % 2 == 0 else any_request)(draw, seconds)


def check_signatures(ours, cases):
    for number, case in enumerate(cases):
        made = ours(sign=case["sign"])
        assert made.get("headers") == case["expected"], f"request {number}: {case}\nours: {made}"
        if "model" in case:
            path = ours(path=dict(model=case["model"], stream=case["stream"]))["path"]
            assert path == case["sign"]["path"], f"request {number}: {path} for {case['model']}"


# ---- translated requests against the service model ----

def service_model():
    return client_of("us-east-1").meta.service_model


def with_bytes(shape, value):
    """JSON of the wire as the parameters of a call: blobs from base64; an unknown name is an error of validation."""
    if shape.type_name == "structure" and not getattr(shape, "is_document_type", False):
        return {name: with_bytes(shape.members[name], inner) if name in shape.members else inner
                for name, inner in value.items()}
    if shape.type_name == "list":
        return [with_bytes(shape.member, inner) for inner in value]
    return base64.b64decode(value, validate=True) if shape.type_name == "blob" else value


def check_requests(ours, lines):
    operation = service_model().operation_model("Converse")
    for line in lines:
        made = ours(request=dict(body=json.dumps(line["openai"], ensure_ascii=False)))
        if "refused" in line:
            assert made.get("refusal") == line["refused"], (line["name"], made)
            continue
        body = json.loads(made["body"])
        assert body == line["converse"], (line["name"], body)
        params = with_bytes(operation.input_shape, {"modelId": "m", **body})
        report = botocore.validate.ParamValidator().validate(params, operation.input_shape)
        assert not report.has_errors(), (line["name"], report.generate_report())
        serializer = botocore.serialize.create_serializer("rest-json")
        sent = json.loads(serializer.serialize_to_request(params, operation)["body"])
        assert sent == body, (line["name"], sent)


# ---- answers, read by botocore ----

def check_answers(ours, lines):
    shape = service_model().operation_model("Converse").output_shape
    parser = botocore.parsers.create_parser("rest-json")
    for line in lines:
        text = line.get("text") or json.dumps(line["converse"], ensure_ascii=False)
        if "converse" in line:
            answer = parser.parse({"status_code": 200, "headers": {}, "body": text.encode()}, shape)
            answer.pop("ResponseMetadata")
            assert plain(answer) == line["converse"], (line["name"], answer)
        made = ours(answer=dict(body=text))
        body = json.loads(made["body"]) if "body" in made else None
        assert (body, made.get("failure")) == (line.get("openai"), line.get("failure")), (line["name"], made)


# ---- streams: read by botocore, and by us ----

def read_by_botocore(frames):
    """Events as botocore's client gives them, or the exception it raises."""
    operation = service_model().operation_model("ConverseStream")
    shape = operation.output_shape.members["stream"]
    stream = botocore.eventstream.EventStream(Raw(frames), shape, botocore.parsers.EventStreamJSONParser(), "ConverseStream")
    events = []
    try:
        for event in stream:
            events.append(event)
    except Exception as error:  # whatever botocore raises is what is recorded
        return events, type(error).__name__
    return events, None


def check_streams(ours, lines):
    for line in lines:
        events, error = read_by_botocore(bytes.fromhex(line["hex"]))
        assert [plain(event) for event in events] == line["events"], (line["name"], events)
        assert error == line["error"], (line["name"], error)
        made = ours(stream=dict(hex=line["hex"]))
        assert (made["events"], made["failure"]) == (line["sse"], line["failure"]), (line["name"], made)


def plain(value):
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


# ---- golden files ----

def read_lines(name):
    return [json.loads(line) for line in (GOLDEN / name).read_text().split("\n") if line]


def write_lines(name, lines):
    (GOLDEN / name).write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    print(f"{name}: {len(lines)} lines")


def vectors(sdist, crate):
    """AWS's published vectors; those that Bedrock has no use for are left out, each for its reason."""
    lines = []
    suite = pathlib.Path(sdist) / "tests/unit/auth/aws4_testsuite"
    for request in sorted(suite.rglob("*.req")):
        read = lambda ending: request.with_suffix(ending).read_text().replace("\r", "")
        token = re.search(r"^x-amz-security-token:(.*)$", read(".creq"), re.M)
        lines.append(dict(suite="2019", name=str(request.parent.relative_to(suite)), request=read(".req"),
                          token=token and token.group(1), time="20150830T123600Z", canonical=read(".creq"),
                          string_to_sign=read(".sts"), authorization=read(".authz")))
    suite = pathlib.Path(crate) / "aws-signing-test-suite/v4"
    left_out = {}
    for folder in sorted(path for path in suite.iterdir() if path.is_dir()):
        read = lambda name: (folder / name).read_text().replace("\r", "") if (folder / name).exists() else None
        context = json.loads(read("context.json") or "{}")
        if not context.get("normalize", True):
            left_out[folder.name] = "paths as they stand: S3 only"
        elif folder.name == "get-space-normalized":
            left_out[folder.name] = "an encoded path that is not encoded once more: S3 only"
        elif context.get("omit_session_token"):
            left_out[folder.name] = "a token outside the signature: not with Bedrock"
        else:
            canonical, request = read("header-canonical-request.txt"), read("request.txt")
            if context.get("sign_body"):
                digest = hashlib.sha256(request.partition("\n\n")[2].encode()).hexdigest()
                head, end, body = request.partition("\n\n")
                request = f"{head}\nx-amz-content-sha256:{digest}{end}{body}"
            # Without a context the secret is not published: only the canonical request can be compared.
            known = (folder / "context.json").exists()
            authorization = known and re.search(r"^Authorization:(.*)$", read("header-signed-request.txt"), re.M)
            lines.append(dict(suite="aws-sigv4", name=folder.name, request=request,
                              token=context.get("credentials", {}).get("token"),
                              time=re.search(r"^x-amz-date:(.*)$", canonical, re.M).group(1), canonical=canonical,
                              string_to_sign=read("header-string-to-sign.txt") if known else None,
                              authorization=authorization.group(1).strip() if known else None))
    write_lines("vectors.jsonl", lines)
    for name, reason in left_out.items():
        print(f"  left out: {name}: {reason}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--vectors", nargs=2, metavar=("BOTOCORE_SDIST", "AWS_SIGV4_CRATE"))
    options = parser.parse_args()
    if options.vectors:
        return vectors(*options.vectors)
    if options.write:
        write_lines("signed.jsonl", list(requests(GOLDEN_SIGNED, 2)))
        ours = Ours()
        lines = []
        for line in read_lines("streams.jsonl"):
            events, error = read_by_botocore(bytes.fromhex(line["hex"]))
            made = ours(stream=dict(hex=line["hex"]))
            lines.append(dict(name=line["name"], hex=line["hex"], events=[plain(event) for event in events], error=error,
                              sse=made["events"], failure=made["failure"]))
        write_lines("streams.jsonl", lines)
        ours.end()
        return None
    ours = Ours()
    cases = list(requests(options.count, options.seed))
    check_signatures(ours, cases)
    print(f"{len(cases)} random requests: signatures and paths equal botocore's {botocore.__version__}")
    golden = read_lines("signed.jsonl")
    check_signatures(ours, golden)
    print(f"{len(golden)} golden requests: equal")
    translated = read_lines("requests.jsonl")
    check_requests(ours, translated)
    print(f"{len(translated)} translated requests: as written down, valid by the service model, sent the same by botocore")
    answers = read_lines("answers.jsonl")
    check_answers(ours, answers)
    print(f"{len(answers)} answers: botocore reads all that is in them, and they are translated as written down")
    streams = read_lines("streams.jsonl")
    check_streams(ours, streams)
    print(f"{len(streams)} streams: botocore reads the same events")
    ours.end()
    return None


if __name__ == "__main__":
    sys.exit(main())
