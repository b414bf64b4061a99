"""Varied chat requests, for comparing how two programs cut them into tokens. Standard library only.

`chats(seed, count)` gives the same requests for the same seed: system prompts as text and as parts, tools with nested
schemas, calls of tools and their results, reasoning, developer messages, names, answers to be continued, text in many
scripts, code, runs of white space, and text that looks like a special token. Every one is a request that vLLM takes.
"""
import json
import random

WORDS = ("the a of to and in is that for it with as on be at by this from or an are not have was but they which one you "
         "all will there can more if about when would make like time just know people into year your good some could them "
         "other than then now look only come over think also back after use two how our work first well way even new want "
         "because any these give day most us routing gateway latency throughput tokens cache prefix queue endpoint "
         "unbelievable internationalization don't we're they'll it's I'd").split()
SCRIPTS = ("Größenwahn straße naïve façade coöperate", "日本語のテキストをいくつか書きます。", "这是一个用来测试分词的句子，包含标点。",
           "한국어 문장을 하나 써 봅니다.", "Это предложение на русском языке.", "هذه جملة باللغة العربية للاختبار.", "זהו משפט בעברית.",
           "यह हिन्दी में एक वाक्य है।", "นี่คือประโยคภาษาไทย", "🙂🚀👩‍👩‍👧‍👦🇩🇪 e\u0301 \u200bzero\u200dwidth\ufeff", "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋ ½ ² ① Ⅷ",
           "ﬁ ﬂ ＡＢＣ １２３ ㎏ \u212b")
LOOKALIKES = ("<|im_end|>", "<|im_start|>system", "<|endoftext|>", "<|im_end", "im_start|>", "[INST]", "[/INST] x", "</s>",
              "<s>", "<|eot_id|>", "<|begin_of_text|>", "<|end|>", "<|user|>", "<think>", "</think>\n\nyes", "<tool_call>",
              "{{ messages }}", "{% if true %}", "<image>")
SPACES = (" ", "  ", "\n", "\n\n", "\n\n\n", "\t", " \n ", "      ", "\r\n", "\u00a0", "\u3000", "\x0b", "\x1c", "\u2028", "        \n    ")
CODE = ("def f(x):\n    return x ** 2  # square\n\n\nif __name__ == '__main__':\n\tprint(f(3))\n",
        "fn main() {\n    let v: Vec<u32> = (0..10).collect();\n    println!(\"{v:?}\");\n}\n",
        '{"a": [1, 2.5, null], "b": {"c": "\\u00e9"}}', "SELECT * FROM t WHERE a >= 10 AND b LIKE '%x%';",
        "<div class=\"a\">&amp; <b>bold</b></div>", "$ curl -sS 'http://127.0.0.1:8000/v1/models' | jq .\n", "1234567 3.14159 1e-9 0xDEADBEEF 192.168.0.1")
CITY = {"type": "object", "properties": {
    "city": {"type": "string", "description": "Name of the city, z. B. „Köln“"},
    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"}}, "required": ["city"]}
ORDERS = {"type": "object", "properties": {
    "orders": {"type": "array", "items": {"type": "object", "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 1e6}, "price": {"type": "number", "multipleOf": 0.01},
        "note": {"type": ["string", "null"], "default": None}}}},
    "dry_run": {"type": "boolean", "default": True}, "<tag> & 'quotes'": {"type": "string"}},
    "required": [], "additionalProperties": False}
TOOLS = ({"type": "function", "function": {"name": "get_weather", "description": "Weather of a city, now", "parameters": CITY}},
         {"type": "function", "function": {"description": "Changes orders\nin bulk", "name": "change_orders", "parameters": ORDERS,
                                           "strict": True}},
         {"type": "function", "function": {"name": "now"}},
         {"function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
          "type": "function"})
ARGUMENTS = ('{"city": "Köln", "unit": "celsius"}', '{"orders":[{"id":7,"price":1.50,"note":null}],"dry_run":true}', "{}", "",
             '{"q": "a \\"b\\" \\n c", "n": 1e20, "s": 0.00001}', "not JSON", "[1]")


def text(rng, words_max=60):
    """Some text of one of many kinds."""
    pieces = []
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        if kind < 0.5:
            pieces.append(" ".join(rng.choice(WORDS) for _ in range(rng.randint(1, words_max))))
        elif kind < 0.68:
            pieces.append(rng.choice(SCRIPTS))
        elif kind < 0.8:
            pieces.append(rng.choice(CODE))
        elif kind < 0.88:
            pieces.append(rng.choice(LOOKALIKES))
        elif kind < 0.94:
            pieces.append(rng.choice(SPACES) * rng.randint(1, 9))
        else:
            pieces.append("".join(chr(rng.choice((rng.randint(0x20, 0x7e), rng.randint(0xa1, 0x17f), rng.randint(0x3041, 0x30ff),
                                                  rng.randint(0x1f300, 0x1f64f)))) for _ in range(rng.randint(1, 30))))
        pieces.append(rng.choice(SPACES[:4]))
    return "".join(pieces)


def said(rng, parts):
    """The content of a message, in one of the forms that the API takes."""
    if rng.random() < parts:
        return [{"type": "text", "text": text(rng, 30)} for _ in range(rng.randint(1, 3))]
    return text(rng)


def assistant(rng, tools):
    """A turn of the assistant, with the results of the tools it calls."""
    message = {"role": "assistant"}
    if rng.random() < 0.2:
        message["reasoning"] = text(rng, 20)
    if not tools or rng.random() < 0.5:
        return [{**message, "content": said(rng, 0.1)}]
    calls = [{"type": "function", "id": f"call{rng.randint(100, 999)}abc"[:9],
              "function": {"name": rng.choice(tools)["function"]["name"], "arguments": rng.choice(ARGUMENTS)}}
             for _ in range(rng.randint(1, 2))]
    message["content"] = rng.choice((None, "", "One moment."))
    message["tool_calls"] = calls
    results = [{"role": "tool", "tool_call_id": call["id"], "content": rng.choice((CODE[2], text(rng, 20), said(rng, 1.0)))}
               for call in calls]
    return [message, *results, {"role": "assistant", "content": said(rng, 0.1)}]


def chat(rng):
    """One request, without its model."""
    tools = rng.sample(TOOLS, rng.randint(1, len(TOOLS))) if rng.random() < 0.4 else []
    messages = []
    if rng.random() < 0.6:
        messages.append({"role": "developer" if rng.random() < 0.1 else "system", "content": said(rng, 0.25)})
    for _ in range(rng.randint(0, 4)):
        messages.append({"role": "user", "content": said(rng, 0.25)})
        messages.extend(assistant(rng, tools))
    body = {"messages": messages}
    if messages and messages[-1]["role"] == "assistant" and rng.random() < 0.3:
        body.update(add_generation_prompt=False, continue_final_message=True)
    else:
        messages.append({"role": "user", "content": said(rng, 0.25)})
        if rng.random() < 0.05:
            messages[-1]["name"] = "bob"
        if rng.random() < 0.1:
            body["add_generation_prompt"] = False
    if tools:
        body["tools"] = tools
    if rng.random() < 0.1:
        body["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5, "unknown": {"x": 1}, "none": None}
    return body


def chats(seed, count):
    """`count` requests; those whose last message ends up empty are not continued, as nothing is left to continue."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        body = chat(rng)
        last = body["messages"][-1]["content"]
        if body.get("continue_final_message") and not (isinstance(last, str) and last.strip() == last):
            continue
        found.append(json.loads(json.dumps(body)))
    return found


def prompts(seed, count):
    """Texts for the completions interface."""
    rng = random.Random(seed)
    return [text(rng, 120) for _ in range(count)]
