"""The trainer's transformer in plain float64 PyTorch, written from the formulas and not from any library's model code.

make_goldens.py holds it against Hugging Face's models: two independent implementations must agree before a number
becomes a golden. Configuration keys and weight names are the trainer's; weights are [out, in]. Letters: B batch, T
sequence, C hidden size, H query heads, K key/value heads, D head size, R rotated pairs, V vocabulary.
"""
import math

import torch


def norm(config, w, name, x):
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over the last dimension."""
    if config["norm"] == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + config["norm_eps"]).sqrt() * w[name + ".weight"]
    return x + w[name + ".bias"] if config["norm"] == "layernorm" else x


def head_norm(config, weight, x):
    """RMSNorm of each head on its own; x [B, T, heads, D]."""
    return x / (x.square().mean(-1, keepdim=True) + config["norm_eps"]).sqrt() * weight


def linear(w, name, x):
    y = torch.einsum("...i,oi->...o", x, w[name + ".weight"])
    return y + w[name + ".bias"] if name + ".bias" in w else y


def llama3_frequency(frequency, scaling):
    """Llama 3.1: long wavelengths are stretched by `factor`, short ones kept, those between interpolated."""
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    keep = (turns - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    keep = min(1.0, max(0.0, keep))
    return frequency * (keep + (1 - keep) / scaling["factor"])


def rope(config, x):
    """Rotates pairs (i, i + R) of each head, as complex numbers (Su et al. 2021); x [B, T, heads, D]."""
    rotated = int(x.shape[-1] * config["rotary_pct"])
    pairs = rotated // 2
    frequencies = [config["rope_theta"] ** (-2 * i / rotated) for i in range(pairs)]
    if config["rope_scaling"]["type"] == "llama3":
        frequencies = [llama3_frequency(f, config["rope_scaling"]) for f in frequencies]
    positions = torch.arange(x.shape[1], dtype=torch.float64)
    angles = positions[:, None, None] * torch.tensor(frequencies, dtype=torch.float64)  # [T, 1, R]
    z = torch.complex(x[..., :pairs], x[..., pairs:rotated]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag, x[..., rotated:]), -1)


def attention(config, w, name, x):
    batch, time, _ = x.shape
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    q = linear(w, name + ".q_proj", x).view(batch, time, heads, dim)
    k = linear(w, name + ".k_proj", x).view(batch, time, kv_heads, dim)
    v = linear(w, name + ".v_proj", x).view(batch, time, kv_heads, dim)
    if config["qk_norm"]:
        q = head_norm(config, w[name + ".q_norm.weight"], q)
        k = head_norm(config, w[name + ".k_norm.weight"], k)
    if config["position"] == "rope":
        q, k = rope(config, q), rope(config, k)
    # Query head h reads key/value head h / (H / K).
    q = q.view(batch, time, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("bikgd,bjkd->bkgij", q, k) / math.sqrt(dim)
    distance = torch.arange(time)[:, None] - torch.arange(time)[None, :]
    visible = distance >= 0
    if config["sliding_window"]:
        visible = visible & (distance < config["sliding_window"])
    scores = scores.masked_fill(~visible, -math.inf)
    probabilities = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    out = torch.einsum("bkgij,bjkd->bikgd", probabilities, v).reshape(batch, time, heads * dim)
    return linear(w, name + ".o_proj", out)


def mlp(config, w, name, x):
    up = linear(w, name + ".up_proj", x)
    if config["activation"] == "swiglu":
        gate = linear(w, name + ".gate_proj", x)
        hidden = gate / (1 + (-gate).exp()) * up
    elif config["activation"] == "gelu":
        hidden = up * 0.5 * (1 + torch.erf(up / math.sqrt(2)))
    else:
        hidden = up * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
    return linear(w, name + ".down_proj", hidden)


def forward(config, w, token_ids):
    """token_ids [B, T] -> logits [B, T, V]."""
    x = w["model.embed_tokens.weight"][token_ids]
    if config["position"] == "learned":
        x = x + w["model.embed_positions.weight"][: token_ids.shape[1]]
    for layer in range(config["num_layers"]):
        name = f"model.layers.{layer}"
        branch = attention(config, w, name + ".self_attn", norm(config, w, name + ".input_layernorm", x))
        if config["parallel_residual"]:
            x = x + branch + mlp(config, w, name + ".mlp", norm(config, w, name + ".post_attention_layernorm", x))
        else:
            x = x + branch
            x = x + mlp(config, w, name + ".mlp", norm(config, w, name + ".post_attention_layernorm", x))
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return torch.einsum("btc,vc->btv", norm(config, w, "model.norm", x), w[head])


def loss(logits, targets):
    """Sum of the token losses over the unmasked targets (not -1), divided by their number."""
    kept = targets >= 0
    picked = logits[kept].gather(1, targets[kept][:, None])[:, 0]
    return (logits[kept].logsumexp(-1) - picked).sum() / kept.sum()


class AdamW:
    """AdamW (Loshchilov and Hutter 2019) after clipping of the global norm. Matrices and embeddings decay, norm weights
    and biases do not. The clip factor is PyTorch's: min(1, clip / (norm + 1e-6))."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = weights
        self.m = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in weights.items()}
        self.updates = 0

    def step(self, gradients):
        """Returns the gradient norm before clipping."""
        c = self.config
        total = math.sqrt(sum(float(g.square().sum()) for g in gradients.values()))
        factor = min(1.0, c["clip_grad_norm"] / (total + 1e-6))
        self.updates += 1
        for name, w in self.weights.items():
            g = gradients[name] * factor
            self.m[name] = c["beta1"] * self.m[name] + (1 - c["beta1"]) * g
            self.v[name] = c["beta2"] * self.v[name] + (1 - c["beta2"]) * g * g
            m_hat = self.m[name] / (1 - c["beta1"] ** self.updates)
            v_hat = self.v[name] / (1 - c["beta2"] ** self.updates)
            decay = c["weight_decay"] if w.dim() == 2 else 0.0
            with torch.no_grad():
                w -= c["lr"] * (m_hat / (v_hat.sqrt() + c["eps"]) + decay * w)
        return total
