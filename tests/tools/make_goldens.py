#!/usr/bin/env python3
"""Makes the golden files tests/goldens/*.json: tiny models of each family in float64, computed by Hugging Face's own
model classes and checked against reference.py. README.md beside this file has the format. Needs PyTorch, transformers
and NumPy; runs in seconds on a CPU.
"""
import argparse
import contextlib
import json
import pathlib

import numpy as np
import torch
import transformers

import golden_families as families
import golden_formula as formula
import reference

STEPS = 10
OPTIMIZER = {
    "name": "adamw",
    "lr": 1e-3,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "decay_embeddings": True,
    "decay_norms_and_biases": False,
    "clip_grad_norm": 1.0,
}
# Largest relative difference between Hugging Face and reference.py, per tensor by norm. The final weights get more:
# where a gradient is zero but for rounding (a key bias without RoPE shifts all scores alike), Adam divides noise by eps.
AGREEMENT = {"logits": 1e-12, "gradients": 1e-12, "losses": 1e-12, "grad_norms": 1e-12, "final": 1e-10}


@contextlib.contextmanager
def float64_everywhere():
    """Hugging Face's models compute RMSNorm, the attention softmax and the RoPE angles in float32 whatever the type of
    the weights. They name that type as torch.float32, torch.float or Tensor.float when they run; here these names mean
    float64, so that the models' own code computes in float64 throughout."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved


def make_batch(family, step):
    """Token ids and targets [B, T]: windows of a random sequence, small ids more frequent so that there is something to
    learn. About one target in eight is masked (-1), and the end of the last sequence, as padding would be."""
    rows, cols = families.BATCH, families.SEQ
    u = formula.uniform(f"{family}.tokens.{step}", rows * (cols + 1)).reshape(rows, cols + 1)
    tokens = np.floor(u * u * families.VOCAB).clip(0, families.VOCAB - 1).astype(np.int64)
    ids, targets = tokens[:, :-1], tokens[:, 1:].copy()
    masked = formula.uniform(f"{family}.mask.{step}", rows * cols).reshape(rows, cols) < -0.75
    targets[masked] = -1
    targets[-1, cols - 3 - step :] = -1
    return torch.from_numpy(ids.copy()), torch.from_numpy(targets)


def hugging_face_loss(model, batch):
    """(logits [B, T, V], loss). The loss is PyTorch's own, in the type of the logits."""
    ids, targets = batch
    logits = model(input_ids=ids, use_cache=False).logits
    flat = logits.reshape(-1, logits.shape[-1])
    return logits, torch.nn.functional.cross_entropy(flat, targets.reshape(-1), ignore_index=-1)


def run_hugging_face(family, config, weights, batches):
    """Forward, gradients and STEPS optimizer steps with transformers and torch.optim."""
    shapes = {name: w.shape for name, w in weights.items()}
    model = families.hugging_face_model(family, config)
    families.put(family, weights, model)
    model.train()
    parameters = dict(model.named_parameters())
    assert all(p.dtype == torch.float64 for p in parameters.values())
    groups = [
        {"params": [p for p in parameters.values() if p.dim() == 2], "weight_decay": OPTIMIZER["weight_decay"]},
        {"params": [p for p in parameters.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=(OPTIMIZER["beta1"], OPTIMIZER["beta2"]),
                                  eps=OPTIMIZER["eps"])  # fmt: skip
    result = {"losses": [], "grad_norms": []}
    for step, batch in enumerate(batches):
        optimizer.zero_grad()
        logits, loss = hugging_face_loss(model, batch)
        assert logits.dtype == torch.float64
        loss.backward()
        if step == 0:
            result["logits"] = logits.detach()
            gradients = {name: p.grad for name, p in parameters.items()}
            result["gradients"] = families.take(family, shapes, gradients)
        result["grad_norms"].append(
            torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER["clip_grad_norm"]).item())  # fmt: skip
        optimizer.step()
        result["losses"].append(loss.item())
    result["final"] = families.take(family, shapes, {name: p.detach() for name, p in parameters.items()})
    return result


def run_reference(config, weights, batches):
    """The same with reference.py."""
    weights = {name: w.clone().requires_grad_() for name, w in weights.items()}
    optimizer = reference.AdamW(OPTIMIZER, weights)
    result = {"losses": [], "grad_norms": []}
    for step, (ids, targets) in enumerate(batches):
        logits = reference.forward(config, weights, ids)
        loss = reference.loss(logits, targets)
        gradients = dict(zip(weights, torch.autograd.grad(loss, list(weights.values()))))
        if step == 0:
            result["logits"], result["gradients"] = logits.detach(), gradients
        result["grad_norms"].append(optimizer.step(gradients))
        result["losses"].append(loss.item())
    result["final"] = {name: w.detach() for name, w in weights.items()}
    return result


def assert_agreement(family, ours, theirs):
    """Both implementations give the same numbers, or no golden is written. Returns the largest relative difference of
    each kind of result."""
    worst = {}
    for kind, allowed in AGREEMENT.items():
        a, b = ours[kind], theirs[kind]
        named = b if isinstance(b, dict) else {"": b}
        differences = {name: relative_difference(a[name] if name else a, named[name]) for name in named}
        name = max(differences, key=differences.get)
        worst[kind] = differences[name]
        assert worst[kind] <= allowed, f"{family}: {kind} {name} differ by {worst[kind]:.3e}"
    return worst


def relative_difference(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.dtype == b.dtype == torch.float64 and a.shape == b.shape
    return ((a - b).norm() / (b.norm() + formula.FLOOR * b.numel() ** 0.5)).item()


def yaml_lines(section, values, indent=0):
    """A mapping as YAML text; the values are plain numbers, booleans and words."""
    lines = ["  " * indent + section + ":"]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += yaml_lines(key, value, indent + 1)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value).replace("e-0", "e-")
            lines.append("  " * (indent + 1) + f"{key}: {text}")
    return lines


def config_yaml(config):
    train = {
        "seq_length": families.SEQ,
        "micro_batch_size": families.BATCH,
        "global_batch_size": families.BATCH,
        "train_steps": STEPS,
    }
    sections = {"model": config, "train": train, "optimizer": OPTIMIZER, "lr_scheduler": {"name": "constant"},
                "precision": {"dtype": "float64"}}  # fmt: skip
    return "\n".join(line for name, values in sections.items() for line in yaml_lines(name, values)) + "\n"


def make_golden(family):
    config = families.MODELS[family]
    shapes = families.parameter_shapes(config)
    weights = {name: torch.from_numpy(formula.weight(name, shape)) for name, shape in shapes.items()}
    batches = [make_batch(family, step) for step in range(STEPS)]

    with float64_everywhere():
        golden = run_hugging_face(family, config, weights, batches)
    worst = assert_agreement(family, run_reference(config, weights, batches), golden)

    unpatched = families.hugging_face_model(family, config)
    families.put(family, weights, unpatched)
    with torch.no_grad():
        unpatched_loss = hugging_face_loss(unpatched, batches[0])[1].item()
    print(f"{family:8} loss {golden['losses'][0]:.15f} (unpatched {unpatched_loss - golden['losses'][0]:+.1e}), "
          f"after {STEPS} steps {golden['losses'][-1]:.4f}, gradient norms {min(golden['grad_norms']):.3f} to "
          f"{max(golden['grad_norms']):.3f}, {sum(w.numel() for w in weights.values())} parameters, "
          f"differences {', '.join(f'{kind} {value:.0e}' for kind, value in worst.items())}")  # fmt: skip
    return {
        "family": family,
        "made_with": f"torch {torch.__version__.split('+')[0]}, transformers {transformers.__version__}",
        "config_yaml": config_yaml(config),
        "batch_size": families.BATCH,
        "seq_length": families.SEQ,
        "vocab_size": families.VOCAB,
        "loss": golden["losses"][0],
        "loss_of_unpatched_hugging_face": unpatched_loss,
        "target_tokens": int((batches[0][1] >= 0).sum()),
        "losses": golden["losses"],
        "grad_norms": golden["grad_norms"],
        "batches": [{"token_ids": i.flatten().tolist(), "targets": t.flatten().tolist()} for i, t in batches],
        "logits": formula.tensor_check("logits", golden["logits"].numpy()),
        "parameters": [
            {
                "name": name,
                "shape": list(shape),
                "gradient": formula.tensor_check(name, golden["gradients"][name].numpy()),
                "final_weight": formula.tensor_check(name, golden["final"][name].numpy()),
            }
            for name, shape in shapes.items()
        ],
    }


def make_formula_golden():
    """Known answers of golden_formula.py for its C++ twin."""
    names = ["model.embed_tokens.weight", "model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.up_proj.bias"]
    indices = (0, 1, 63, 16447)
    values = [{"name": n, "index": i, "value": formula.weight(n, (i + 1,))[i]} for n in names for i in indices]
    name, shape = "lm_head.weight", (families.VOCAB, families.HIDDEN)
    check = formula.tensor_check(name, formula.weight(name, shape))
    return {"values": values, "tensor": {"name": name, "shape": list(shape), "check": check}}


def write(path, golden):
    """One line for each element of the outermost arrays: small, and changes stay readable in a diff."""
    parts = []
    for key, value in golden.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n" + ",\n".join(json.dumps(v) for v in value) + "\n]"
        else:
            text = json.dumps(value)
        parts.append(f"{json.dumps(key)}: {text}")
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent / "goldens")
    out = parser.parse_args().out
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for family in families.MODELS:
        write(out / f"{family}.json", make_golden(family))
    write(out / "formula.json", make_formula_golden())


if __name__ == "__main__":
    main()
