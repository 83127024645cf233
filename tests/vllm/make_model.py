"""Writes the tiny random model that the tests against real servers use: make_model.py DIR.

Runs in the environment that install.sh makes, not in the project's own. The folder holds a Qwen3 of two layers, a
byte-level BPE tokenizer of 4,096 tokens and a chat template. The words that come out mean nothing; the tokens, blocks,
cache, counters and streams are those of a real server.
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch  # type: ignore[import-not-found]
from safetensors.torch import save_file  # type: ignore[import-not-found]
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]
from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = [PAD, TURN_START, TURN_END]  # their places in this list are their token ids
VOCABULARY = 4096
SEED = 20260

CHAT_TEMPLATE = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
    {%- if not (continue_final_message and loop.last) -%}
        {{- '<|im_end|>\\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""

LAYERS = 2
HIDDEN = 64
INNER = 128
HEADS = 2
KEY_VALUE_HEADS = 1
HEAD = 64

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "torch_dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "num_hidden_layers": LAYERS,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_VALUE_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": SPECIAL_TOKENS.index(PAD),
    "eos_token_id": SPECIAL_TOKENS.index(TURN_END),
}


def sample_texts() -> Iterator[str]:
    """Prose and code that every Python brings along: its manual's topics, then the start of its own modules."""
    library = Path(sysconfig.get_path("stdlib"))
    yield (library / "pydoc_data" / "topics.py").read_text(errors="ignore")
    for module in sorted(library.glob("*.py")):
        yield module.read_text(errors="ignore")[:20_000]


def make_tokenizer() -> Any:
    """A byte-level BPE: any text, odd bytes included, has tokens, and the tokens give the text back."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample_texts(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the sample texts gave {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=PAD)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_weights() -> dict[str, Any]:
    """Random weights, far larger than those a fresh model starts from.

    With such weights greedy answers differ by prompt, repeat exactly and wander over the whole vocabulary. They hold
    odd bytes and text that does not tokenize back to the same tokens, so no stream resumed by text is right by luck.
    """
    dice = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> Any:
        return (torch.randn(rows, columns, generator=dice) * (3.0 / columns**0.5)).to(torch.bfloat16)

    def ones(size: int) -> Any:
        return torch.ones(size, dtype=torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": torch.randn(VOCABULARY, HIDDEN, generator=dice).to(torch.bfloat16),
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN),
    }
    for number in range(LAYERS):
        layer = {
            "input_layernorm": ones(HIDDEN),
            "self_attn.q_proj": matrix(HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": matrix(KEY_VALUE_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": matrix(KEY_VALUE_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": matrix(HIDDEN, HEADS * HEAD),
            "self_attn.q_norm": ones(HEAD),
            "self_attn.k_norm": ones(HEAD),
            "post_attention_layernorm": ones(HIDDEN),
            "mlp.gate_proj": matrix(INNER, HIDDEN),
            "mlp.up_proj": matrix(INNER, HIDDEN),
            "mlp.down_proj": matrix(HIDDEN, INNER),
        }
        weights |= {f"model.layers.{number}.{name}.weight": tensor for name, tensor in layer.items()}
    return weights


def main(arguments: list[str]) -> None:
    if len(arguments) != 1:
        raise SystemExit("name one folder: make_model.py DIR")
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer().save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": CONFIG["eos_token_id"]}) + "\n")
    save_file(make_weights(), str(folder / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    main(sys.argv[1:])
