"""The tiny models of the golden files: the trainer's configuration, Hugging Face's, and the names of both."""
import torch
import transformers

BATCH, SEQ, VOCAB, HIDDEN, LAYERS, HEADS = 4, 32, 257, 64, 2, 4

ROPE_SCALING_NONE = {"type": "none"}
LLAMA = {
    "hidden_size": HIDDEN,
    "num_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 176,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "norm": "rmsnorm",
    "norm_eps": 1e-5,
    "activation": "swiglu",
    "position": "rope",
    "rope_theta": 10000.0,
    "rope_scaling": ROPE_SCALING_NONE,
    "rotary_pct": 1.0,
    "sliding_window": 0,
    "attention_bias": False,
    "attention_out_bias": False,
    "mlp_bias": False,
    "qk_norm": False,
    "parallel_residual": False,
    "tie_word_embeddings": False,
}
GPT2 = LLAMA | {
    "num_key_value_heads": HEADS,
    "intermediate_size": 144,
    "max_position_embeddings": 48,  # longer than the sequence: the last rows get no gradient, only decay
    "norm": "layernorm",
    "activation": "gelu_tanh",
    "position": "learned",
    "attention_bias": True,
    "attention_out_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
}
LLAMA3_SCALING = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
# Each family differs from its neighbours in what it is there to test.
MODELS = {
    "gpt2": GPT2,
    "neox": GPT2
    | {
        "max_position_embeddings": 64,
        "activation": "gelu",
        "position": "rope",
        "rotary_pct": 0.25,
        "parallel_residual": True,
        "tie_word_embeddings": False,
    },
    "llama3": LLAMA | {"max_position_embeddings": 512, "rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING},
    "mistral": LLAMA | {"sliding_window": 16},
    "qwen2": LLAMA
    | {
        "intermediate_size": 144,
        "norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": True,
        "tie_word_embeddings": True,
    },
    "qwen3": LLAMA | {"head_dim": 24, "norm_eps": 1e-6, "rope_theta": 1000000.0, "qk_norm": True},
}


def parameter_shapes(config):
    """Name -> shape of every parameter, [out, in] for matrices, in the order of the model."""
    hidden, inner, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {}

    def linear(name, rows, cols, bias):
        shapes[name + ".weight"] = (rows, cols)
        if bias:
            shapes[name + ".bias"] = (rows,)

    def norm(name):
        shapes[name + ".weight"] = (hidden,)
        if config["norm"] == "layernorm":
            shapes[name + ".bias"] = (hidden,)

    linear("model.embed_tokens", config["vocab_size"], hidden, False)
    if config["position"] == "learned":
        linear("model.embed_positions", config["max_position_embeddings"], hidden, False)
    for layer in range(config["num_layers"]):
        name = f"model.layers.{layer}."
        norm(name + "input_layernorm")
        linear(name + "self_attn.q_proj", q, hidden, config["attention_bias"])
        linear(name + "self_attn.k_proj", kv, hidden, config["attention_bias"])
        linear(name + "self_attn.v_proj", kv, hidden, config["attention_bias"])
        linear(name + "self_attn.o_proj", hidden, q, config["attention_out_bias"])
        if config["qk_norm"]:
            shapes[name + "self_attn.q_norm.weight"] = (dim,)
            shapes[name + "self_attn.k_norm.weight"] = (dim,)
        norm(name + "post_attention_layernorm")
        if config["activation"] == "swiglu":
            linear(name + "mlp.gate_proj", inner, hidden, config["mlp_bias"])
        linear(name + "mlp.up_proj", inner, hidden, config["mlp_bias"])
        linear(name + "mlp.down_proj", hidden, inner, config["mlp_bias"])
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        linear("lm_head", config["vocab_size"], hidden, False)
    return shapes


def hugging_face_model(family, config):
    """A Hugging Face model of this configuration, with its own initial weights and no dropout."""
    common = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "num_hidden_layers": config["num_layers"],
        "num_attention_heads": config["num_attention_heads"],
        "max_position_embeddings": config["max_position_embeddings"],
        "tie_word_embeddings": config["tie_word_embeddings"],
        "bos_token_id": None,
        "eos_token_id": None,
        "use_cache": False,
        "attn_implementation": "eager",
    }
    if family == "gpt2":
        chosen = transformers.GPT2Config(
            n_inner=config["intermediate_size"], layer_norm_epsilon=config["norm_eps"], activation_function="gelu_new",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **common)  # fmt: skip
        return transformers.GPT2LMHeadModel(chosen)
    common["intermediate_size"] = config["intermediate_size"]
    common["attention_dropout"] = 0.0
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"]}
    if family == "neox":
        rope["partial_rotary_factor"] = config["rotary_pct"]
        chosen = transformers.GPTNeoXConfig(
            hidden_act="gelu", layer_norm_eps=config["norm_eps"], use_parallel_residual=True, attention_bias=True,
            hidden_dropout=0.0, rope_parameters=rope, **common)  # fmt: skip
        return transformers.GPTNeoXForCausalLM(chosen)
    if family == "llama3":
        rope |= {key: value for key, value in config["rope_scaling"].items() if key != "type"}
        rope["rope_type"] = "llama3"
    common |= {
        "num_key_value_heads": config["num_key_value_heads"],
        "head_dim": config["head_dim"],
        "hidden_act": "silu",
        "rms_norm_eps": config["norm_eps"],
        "rope_parameters": rope,
    }
    if family == "mistral":
        common["sliding_window"] = config["sliding_window"]
    if family == "qwen3":
        common["attention_bias"] = False
    name = {"llama3": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    return getattr(transformers, name + "ForCausalLM")(getattr(transformers, name + "Config")(**common))


# Ours -> theirs where the names differ and the tensor is one to one (GPT-2's matrices transposed besides).
GPT2_NAMES = [
    ("model.embed_tokens", "transformer.wte"),
    ("model.embed_positions", "transformer.wpe"),
    ("model.norm", "transformer.ln_f"),
    ("model.layers.", "transformer.h."),
    (".input_layernorm", ".ln_1"),
    (".post_attention_layernorm", ".ln_2"),
    (".self_attn.o_proj", ".attn.c_proj"),
    (".mlp.up_proj", ".mlp.c_fc"),
    (".mlp.down_proj", ".mlp.c_proj"),
]
NEOX_NAMES = [
    ("model.embed_tokens", "gpt_neox.embed_in"),
    ("model.norm", "gpt_neox.final_layer_norm"),
    ("model.layers.", "gpt_neox.layers."),
    (".self_attn.o_proj", ".attention.dense"),
    (".mlp.up_proj", ".mlp.dense_h_to_4h"),
    (".mlp.down_proj", ".mlp.dense_4h_to_h"),
]


def find(family, name, tensors):
    """Our parameter `name` out of Hugging Face's `tensors` (theirs by name; weights or gradients), as a view, so that
    it can be written through too."""
    renames = {"gpt2": GPT2_NAMES, "neox": NEOX_NAMES}.get(family, [])
    theirs = name
    for ours, other in renames:
        theirs = theirs.replace(ours, other)
    part = next((i for i, p in enumerate("qkv") if f".self_attn.{p}_proj." in name), None)
    if family == "gpt2":
        fused = theirs
        if part is not None:  # c_attn holds q, k, v side by side; Conv1D weights are [in, out]
            fused = theirs.replace(f".self_attn.{'qkv'[part]}_proj.", ".attn.c_attn.")
        tensor = tensors[fused]
        if tensor.dim() == 2 and ".h." in fused:
            tensor = tensor.T
        return tensor if part is None else tensor.chunk(3, 0)[part]
    if family == "neox" and part is not None:  # query_key_value holds q, k, v of head 0, then of head 1, ...
        tensor = tensors[theirs.replace(f".self_attn.{'qkv'[part]}_proj.", ".attention.query_key_value.")]
        return tensor.unflatten(0, (HEADS, 3, -1))[:, part]
    return tensors[theirs]


def put(family, weights, model):
    """Sets the parameters of a Hugging Face model to our weights."""
    tensors = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            target = find(family, name, tensors)
            target.copy_(value.view(target.shape))


def take(family, shapes, tensors):
    """Our parameters out of Hugging Face's tensors, copied."""
    return {name: find(family, name, tensors).reshape(shape).clone() for name, shape in shapes.items()}
