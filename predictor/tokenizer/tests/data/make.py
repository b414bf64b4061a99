#!/usr/bin/env python3
"""Makes the tokenizers of this folder and what vLLM makes of requests with them.

usage: make.py [tokenizers] [ids]        in an environment with vLLM 0.32, transformers 5 and tokenizers 0.23

`tokenizers` trains five small ones on this repository's own documents. `ids` writes for each of them `ids.jsonl`: one line
a request of `chats.jsonl`, then one a text of `prompts.jsonl`: the number of its token ids, the first of them and the SHA-256
of all (as little-endian 32-bit numbers), or `null` where the template refuses it. It is vLLM's own code that reads the requests, applies the template and calls the tokenizer; only its server is left out.
"""
import array
import datetime
import hashlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
sys.path.insert(0, str(ROOT / "loadtest" / "vllm"))
CHATS, PROMPTS, SEED = 100, 20, 20
SHOWN = 24                   # ids written out; the others stand in the digest
NOW = 1_735_689_599          # 31 December 2024, the date that templates are told


def corpus():
    for path in sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", *ROOT.glob("predictor/src/*.rs")]):
        yield from path.read_text().splitlines(keepends=True)


def save(name, tokenizer, config):
    (HERE / name).mkdir(exist_ok=True)
    (HERE / name / "tokenizer.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=False,
                                                           separators=(",", ":")) + "\n")
    (HERE / name / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def tokenizers():
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
    from tokenizers import decoders
    lines = list(corpus())
    letters = pre_tokenizers.ByteLevel.alphabet()
    quick = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}

    def special(*texts, **how):
        return [AddedToken(text, special=True, normalized=False, **how) for text in texts]

    def byte_level(pattern, vocab_size, normalizer=None):
        t = Tokenizer(models.BPE())
        if normalizer:
            t.normalizer = normalizer
        t.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        t.decoder = decoders.ByteLevel()
        t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=letters, show_progress=False))
        return t

    t = byte_level(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                   r"|\s*[\r\n]+|\s+(?!\S)|\s+", 900, normalizers.NFC())
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.add_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"))
    t.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("<tool_call>", "</tool_call>", "<think>",
                                                                               "</think>")])
    named = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False}
    save("chatml", t, {**quick, **named})
    save("vision", t, {**quick, **named})

    t = byte_level(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                   r"|\s*[\r\n]+|\s+(?!\S)|\s+", 700)
    t.model.ignore_merges = True
    t.add_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                      special_tokens=[("<|begin_of_text|>", t.token_to_id("<|begin_of_text|>"))])])
    save("headers", t, {**quick, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
                        "additional_special_tokens": ["<|image|>"]})

    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    marks = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
             "[TOOL_RESULTS]", "[/TOOL_RESULTS]"]
    words = [word for line in lines for word in line.split(" ")]
    t.train_from_iterator(words, trainers.BpeTrainer(vocab_size=900, special_tokens=[*marks, *[f"<0x{b:02X}>" for b in range(256)]],
                                                     show_progress=False))
    t = Tokenizer.from_str(json.dumps(without(json.loads(t.to_str()), "<0x")))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    save("inst", t, {**quick, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"})

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
    t.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=600, special_tokens=["<unk>"], unk_token="<unk>",
                                                         show_progress=False))
    t.add_tokens(special("<s>", "</s>"))
    t.add_tokens(special("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", rstrip=True))
    t.add_tokens([AddedToken(text, normalized=True) for text in ("gateway", "Latency")])
    save("roles", t, {**quick, "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "add_bos_token": True,
                      "add_eos_token": True})


def without(tokenizer, prefix):
    """Bytes are words of the model and no tokens that are looked for in a text."""
    tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if not t["content"].startswith(prefix)]
    return tokenizer


def lines_of(name):
    return [json.loads(line) for line in (HERE / name).read_text().split("\n") if line]


def ids():
    import chats
    for name, values in (("chats.jsonl", [*chats.chats(SEED, CHATS), *PICTURES]), ("prompts.jsonl", chats.prompts(SEED, PROMPTS))):
        (HERE / name).write_text("".join(json.dumps(v, ensure_ascii=False) + "\n" for v in values))
    import transformers.utils.chat_template_utils as hf
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.renderers import chat_utils
    from vllm.renderers.hf import resolve_chat_template_content_format, safe_apply_chat_template

    class Now(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls.fromtimestamp(NOW, datetime.timezone.utc)
    hf.datetime = Now
    # What the server would fetch and show to the model is of no matter here.
    chat_utils.MultiModalItemTracker.add = lambda self, *_a, **_k: None
    for path in sorted(HERE.glob("*/tokenizer.json")):
        name = path.parent.name
        model = SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False, hf_config=SimpleNamespace(model_type="none"),
                                model=str(path.parent), tokenizer=str(path.parent), tokenizer_revision=None, revision=None,
                                code_revision=None, trust_remote_code=False, allowed_local_media_path="",
                                allowed_media_domains=None)
        tokenizer = AutoTokenizer.from_pretrained(path.parent)

        def tokens(body):
            request = ChatCompletionRequest.model_validate({"model": "m", **body})
            tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
            params = request.build_chat_params(None, "auto").with_defaults({"tools": tools, "tokenize": False})
            kwargs = params.get_apply_chat_template_kwargs()
            form = resolve_chat_template_content_format(None, tools, "auto", tokenizer, model_config=model)
            if form == "string" and "image_url" in json.dumps(body):
                return None
            conversation, _, _ = chat_utils.parse_chat_messages(request.messages, model, form)
            text = safe_apply_chat_template(model, tokenizer, conversation, **kwargs)
            return tokenizer(text, add_special_tokens=request.add_special_tokens)["input_ids"]
        found = []
        for body in lines_of("chats.jsonl"):
            try:
                found.append(tokens(body))
            except Exception as e:      # refused, by the request's own rules or by the template
                print(f"{name}: {type(e).__name__}: {str(e)[:90]!r}")
                found.append(None)
        found += [tokenizer(text, add_special_tokens=True)["input_ids"] for text in lines_of("prompts.jsonl")]
        (path.parent / "ids.jsonl").write_text("".join(json.dumps(told(f), separators=(",", ":")) + "\n" for f in found))
        print(f"{name}: {sum(f is None for f in found)} of {len(found)} refused, {sum(len(f or ()) for f in found)} ids")


def told(ids):
    return None if ids is None else [len(ids), ids[:SHOWN], hashlib.sha256(array.array("I", ids).tobytes()).hexdigest()]


PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
PICTURE = {"type": "image_url", "image_url": {"url": PIXEL}}
PICTURES = [
    {"messages": [{"role": "user", "content": [PICTURE, {"type": "text", "text": "What is this?"}]}]},
    {"messages": [{"role": "system", "content": "Look well."},
                  {"role": "user", "content": [{"type": "text", "text": "One: "}, PICTURE, {"type": "text", "text": " two: "}, PICTURE]},
                  {"role": "assistant", "content": "Two pictures."}, {"role": "user", "content": "Of what?"}],
     "chat_template_kwargs": {"add_vision_id": True}},
]

if __name__ == "__main__":
    for step in sys.argv[1:] or ("tokenizers", "ids"):
        {"tokenizers": tokenizers, "ids": ids}[step]()
