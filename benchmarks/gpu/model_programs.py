# SPDX-License-Identifier: Apache-2.0
"""A language model of Qwen3-4B's shape with random weights, which answers requests for language_models.py.

    model_programs.py transformers|torch

`transformers` is that library's Qwen3, which launches each kernel of each token from Python; `torch` is the same
network in plain PyTorch, with one CUDA graph for a token. The program says `ready` when it is warm. Each line of its
input says for how many seconds it decodes and how many requests at a time: each has a prompt of PROMPT random tokens
and takes GENERATED tokens, greedily, after which all begin again. The answer, a line of JSON, has tokens per second,
the median and the 99th percentile of the time between two tokens of a request in milliseconds, and a digest of the
first CHECKED tokens of each request.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

with suppress(ModuleNotFoundError):  # on a machine without it this file can be read, but not run
    import torch
    from torch.nn import functional

if TYPE_CHECKING:
    Caches = list[tuple[torch.Tensor, torch.Tensor]]
    Decode = Callable[[torch.Tensor], Iterator[torch.Tensor]]

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD, INTERMEDIATE, VOCABULARY = 36, 2560, 32, 8, 128, 9728, 151936
THETA, EPSILON = 1e6, 1e-6
PROMPT, GENERATED, CHECKED = 128, 256, 24
CONTEXT = PROMPT + GENERATED


def with_transformers() -> Decode:
    """Return a generator of the next tokens of all requests, by transformers and its cache."""
    transformers = importlib.import_module("transformers")
    config = transformers.Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        attn_implementation="sdpa",
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.Qwen3ForCausalLM(config).eval()

    def decode(prompts: torch.Tensor) -> Iterator[torch.Tensor]:
        tokens, past = prompts, None
        for _ in range(GENERATED):
            out = model(input_ids=tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
            past = out.past_key_values
            tokens = out.logits[:, -1:].argmax(-1)
            yield tokens

    return decode


class Network:
    """Qwen3 in plain PyTorch, with caches of a fixed size for so many requests."""

    def __init__(self) -> None:
        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02

        self.embedding = weights(VOCABULARY, HIDDEN)
        self.layers = [
            (
                weights((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN),
                weights(HIDDEN, HEADS * HEAD),
                weights(2 * INTERMEDIATE, HIDDEN),
                weights(HIDDEN, INTERMEDIATE),
            )
            for _ in range(LAYERS)
        ]
        # Norms have weights of 1 here, as those of an untrained network.
        self.ones = {size: torch.ones(size, device="cuda", dtype=torch.bfloat16) for size in (HIDDEN, HEAD)}
        frequencies = THETA ** (-torch.arange(0, HEAD, 2, device="cuda", dtype=torch.float32) / HEAD)
        angles = torch.arange(CONTEXT, device="cuda", dtype=torch.float32)[:, None] * frequencies
        self.cos = torch.cat((angles.cos(), angles.cos()), -1).bfloat16()
        self.sin = torch.cat((-angles.sin(), angles.sin()), -1).bfloat16()
        self.places = torch.arange(CONTEXT, device="cuda")

    def caches(self, requests: int) -> Caches:
        """Return each layer's keys and values."""
        shape = (requests, KV_HEADS, CONTEXT, HEAD)
        zeros = [torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2 * LAYERS)]
        return list(zip(zeros[::2], zeros[1::2], strict=True))

    def norm(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.ones[x.shape[-1]], EPSILON)

    def rotated(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return queries or keys, (requests, heads, tokens, HEAD), with their positions."""
        return x * self.cos[positions] + x.roll(HEAD // 2, -1) * self.sin[positions]

    def next(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        """Return the token after the last of these, (requests, tokens), and put their keys and values in the caches."""
        requests, count = tokens.shape
        group = HEADS // KV_HEADS
        # Queries of one group of heads stand one after the other: they have the same keys and values.
        seen = (self.places[None, :] <= positions[:, None]).repeat(group, 1)
        x = functional.embedding(tokens, self.embedding)
        for (qkv, out, up, down), (keys, values) in zip(self.layers, caches, strict=True):
            heads = functional.linear(self.norm(x), qkv).view(requests, count, -1, HEAD).transpose(1, 2)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
            keys.index_copy_(2, positions, self.rotated(self.norm(k), positions))
            values.index_copy_(2, positions, v)
            q = self.rotated(self.norm(q), positions).reshape(requests, KV_HEADS, group * count, HEAD)
            got = functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
            got = got.reshape(requests, HEADS, count, HEAD).transpose(1, 2).reshape(requests, count, HEADS * HEAD)
            x = x + functional.linear(got, out)
            gate, linear = functional.linear(self.norm(x), up).chunk(2, -1)
            x = x + functional.linear(functional.silu(gate) * linear, down)
        return functional.linear(self.norm(x[:, -1:]), self.embedding).argmax(-1)


def with_torch() -> Decode:
    """Return a generator of the next tokens of all requests, by one CUDA graph for each number of requests."""
    network = Network()

    @cache
    def captured(requests: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor, Caches]:
        tokens = torch.zeros((requests, 1), device="cuda", dtype=torch.long)
        position = torch.full((1,), PROMPT, device="cuda")
        caches = network.caches(requests)

        def advance() -> None:
            tokens.copy_(network.next(tokens, position, caches))
            position.add_(1)

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                advance()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            advance()
        return graph, tokens, position, caches

    def decode(prompts: torch.Tensor) -> Iterator[torch.Tensor]:
        graph, tokens, position, caches = captured(len(prompts))
        tokens.copy_(network.next(prompts, network.places[:PROMPT], caches))
        position.fill_(PROMPT)
        yield tokens
        for _ in range(GENERATED - 1):
            graph.replay()
            yield tokens

    return decode


def prompts_of(requests: int) -> torch.Tensor:
    """Return the same prompts whenever asked."""
    generator = torch.Generator().manual_seed(requests)
    return torch.randint(VOCABULARY, (requests, PROMPT), generator=generator).cuda()


def answered(decode: Decode, requests: int, seconds: float) -> dict[str, float | str]:
    """Decode for so long, and until there are tokens enough to compare."""
    prompts = prompts_of(requests)
    for _, tokens in zip(range(4), decode(prompts), strict=False):  # warm for this number of requests
        tokens.tolist()
    count, gaps, first = 0, [], []
    start = time.monotonic()
    while time.monotonic() < start + seconds or count < CHECKED:
        before = None
        for tokens in decode(prompts):
            said = tokens.tolist()  # as a server does, which sends each token when it is there
            now = time.monotonic()
            count += 1
            if len(first) < CHECKED:
                first.append(said)
            if before is not None:
                gaps.append((now - before) * 1e3)
            before = now
            if now >= start + seconds and count >= CHECKED:
                break
    cuts = statistics.quantiles(gaps, n=100)
    return {
        "rate": count * requests / (time.monotonic() - start),
        "p50": cuts[49],
        "p99": cuts[98],
        "tokens": hashlib.sha256(json.dumps(first).encode()).hexdigest()[:16],
    }


def main() -> None:
    """Answer requests when told to."""
    torch.manual_seed(0)
    with torch.no_grad():
        decode = {"transformers": with_transformers, "torch": with_torch}[sys.argv[1]]()
        answered(decode, 2, 0.1)
        print("ready", flush=True)
        for line in sys.stdin:
            seconds, requests = line.split()
            print(json.dumps(answered(decode, int(requests), float(seconds))), flush=True)


if __name__ == "__main__":
    main()
