#!/usr/bin/env python3
"""Write random weights (model.safetensors) for the config.json in a model folder.

usage: make_weights.py MODEL_DIR

The text is noise, but noise that depends on every token of the prompt, so that an answer to a
damaged or a mixed-up prompt is a different answer. (vLLM's own `--load-format dummy` fills weights
so small that the answer depends on the last token alone: every prompt gets the same text.)
The same seed gives the same file, so all servers answer alike.
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

SEED = 20
TOKENS = 151_643          # ordinary tokens; ids above are special or absent and are never generated
ATTENTION_GAIN = 3.0      # > 1 makes attention pick a few tokens of the prompt instead of averaging all


def weights(config):
    """Parameter name -> tensor, of a Qwen2ForCausalLM with untied embeddings."""
    rnd = torch.Generator().manual_seed(SEED)

    def matrix(rows, columns, gain=1.0):
        return torch.randn(rows, columns, generator=rnd) * (gain / columns ** 0.5)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    out = {"model.embed_tokens.weight": torch.randn(vocab, hidden, generator=rnd),
           "model.norm.weight": torch.ones(hidden), "lm_head.weight": matrix(vocab, hidden, 3.0)}
    out["lm_head.weight"][TOKENS:] = 0
    for n in range(config["num_hidden_layers"]):
        layer = {"self_attn.q_proj.weight": matrix(hidden, hidden, ATTENTION_GAIN), "self_attn.q_proj.bias": torch.zeros(hidden),
                 "self_attn.k_proj.weight": matrix(kv, hidden), "self_attn.k_proj.bias": torch.zeros(kv),
                 "self_attn.v_proj.weight": matrix(kv, hidden, 2.0), "self_attn.v_proj.bias": torch.zeros(kv),
                 "self_attn.o_proj.weight": matrix(hidden, hidden, 2.0),
                 "mlp.gate_proj.weight": matrix(inner, hidden), "mlp.up_proj.weight": matrix(inner, hidden),
                 "mlp.down_proj.weight": matrix(hidden, inner),
                 "input_layernorm.weight": torch.ones(hidden), "post_attention_layernorm.weight": torch.ones(hidden)}
        out.update({f"model.layers.{n}.{name}": tensor for name, tensor in layer.items()})
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in out.items()}


def main():
    folder = Path(sys.argv[1])
    tensors = weights(json.loads((folder / "config.json").read_text()))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    print(f"{folder}: {sum(t.numel() for t in tensors.values()) / 1e6:.0f} M random parameters")


if __name__ == "__main__":
    main()
