#!/usr/bin/env python3
"""Trains one GPT-2 with the trainer and with PyTorch, from the same weights on the same samples, and compares the curves.

    python3 tests/tools/learn_beside_torch.py --trainer build/release/launch/trainer --output runs/learn

The trainer makes the initial weights (a checkpoint after one step with learning rate 0, read back through its HDF5
view), prints which samples each step holds (TRAINER_PRINT=sample_ids) and records loss and learning rate of every step;
PyTorch follows. Its numbers are laid out as the trainer's: 16-bit weights and activations, float32 masters and moments
(docs/numerics.md); in fp16 with torch.amp.GradScaler. Nothing here runs under autocast.

Rounding makes two right programs part after some tens of steps, as chaos does: one pair of curves proves nothing. So
pairs with several seeds (weights and order of samples) are trained, and the question is whether the mean of their
differences is zero: exit status 1 when Student's t test says that it is not, at 99 %, in any precision. What PyTorch's
own curves differ by from seed to seed is printed beside it, and how near the first steps are, before rounding has grown.

Needs torch, numpy, h5py and pyyaml. Letters: B samples, T tokens of a sample, C hidden size, H heads, D head size.
"""
import argparse
import glob
import json
import os
import re
import subprocess
import sys
import time

import h5py
import numpy
import torch
import torch.nn.functional as F
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
# n differences -> how many standard errors their mean may be away from zero: Student's t, n - 1 degrees of freedom, two-sided.
STUDENT_99 = {2: 63.66, 3: 9.92, 4: 5.84, 5: 4.60, 6: 4.03, 7: 3.71, 8: 3.50, 9: 3.36, 10: 3.25}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


# ---- the trainer's side ----------------------------------------------------------------------------------------------
def run_trainer(options, output_dir, precision, sets):
    """Trains without checkpoints unless `sets` say otherwise; returns the run folder."""
    command = [options.trainer, "--config", options.config]
    settings = ["checkpoint.load=none", "checkpoint.save_interval=0", "checkpoint.save_at_end=false", "eval.interval=0",
                "eval.at_end=false", "logging.interval=1", "logging.tensorboard=false", f"train.device={options.device}",
                f"precision.dtype={precision}", f"train.output_dir={output_dir}", *options.set, *sets]
    for setting in settings:
        command += ["--set", setting]
    for old in ("metrics.jsonl", "logs/rank-0000.log"):  # both are appended to
        if os.path.exists(os.path.join(output_dir, old)):
            os.remove(os.path.join(output_dir, old))
    start = time.time()
    result = subprocess.run(command, env={**os.environ, "TRAINER_PRINT": "sample_ids"}, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stdout[-2000:]}{result.stderr}")
    print(f"trainer {precision}: {time.time() - start:.1f} s", flush=True)
    return output_dir


def initial_weights(options, seed):
    """Name -> float32 array, as the trainer draws them: one step with learning rate 0 changes nothing."""
    folder = run_trainer(options, os.path.join(options.output, "initial"), options.precisions[0],
                         [seed, "train.train_steps=1", "optimizer.lr=0", "lr_scheduler.warmup_steps=0",
                          "checkpoint.save_at_end=true", "checkpoint.save_dir="
                          + os.path.join(options.output, "initial", "checkpoints")])
    with h5py.File(os.path.join(folder, "checkpoints", "step_00000001", "model.h5")) as view:
        return {name: view[name][:] for name in view if isinstance(view[name], h5py.Dataset)}


def read_metrics(folder):
    with open(os.path.join(folder, "metrics.jsonl")) as file:
        return [json.loads(line) for line in file]


def read_sample_ids(folder):
    """[steps, B]: the windows of each step, micro-batches one behind the other."""
    steps = {}
    with open(os.path.join(folder, "logs", "rank-0000.log")) as file:
        for match in re.finditer(r"sample_ids step (\d+) micro \d+:((?: -?\d+)+)", file.read()):
            steps.setdefault(int(match[1]), []).extend(int(word) for word in match[2].split())
    return numpy.array([steps[step] for step in sorted(steps)])


def read_tokens(patterns):
    """All tokens of the shards, one behind the other, in the order of their paths (docs/data.md)."""
    parts = []
    for path in sorted(path for pattern in patterns for path in glob.glob(pattern)):
        with h5py.File(path) as shard:
            if "loss_mask" in shard:
                sys.exit(f"{path}: masked targets are not for this comparison")
            parts.append(shard["tokens"][:].astype(numpy.int32))
    return numpy.concatenate(parts)


# ---- PyTorch's side --------------------------------------------------------------------------------------------------
def check_is_gpt2(model):
    expected = {"norm": "layernorm", "position": "learned", "activation": "gelu_tanh", "attention_bias": True,
                "attention_out_bias": True, "mlp_bias": True, "parallel_residual": False, "qk_norm": False,
                "num_key_value_heads": model["num_attention_heads"], "sliding_window": 0, "hidden_dropout": 0,
                "attention_dropout": 0}
    for key, value in expected.items():
        if model[key] != value:
            sys.exit(f"model.{key} is {model[key]}: PyTorch's side computes a GPT-2 with {value}")


def forward(model, w, ids):
    """ids [B, T] -> logits [B, T, V], in the type of the weights."""
    batch, length = ids.shape
    channels, heads = model["hidden_size"], model["num_attention_heads"]

    def norm(name, x):
        return F.layer_norm(x, (channels,), w[name + ".weight"], w[name + ".bias"], model["norm_eps"])

    def linear(name, x):
        return F.linear(x, w[name + ".weight"], w[name + ".bias"])

    x = F.embedding(ids, w["model.embed_tokens.weight"]) + w["model.embed_positions.weight"][:length]
    for layer in range(model["num_layers"]):
        name = f"model.layers.{layer}"
        h = norm(name + ".input_layernorm", x)
        q, k, v = (linear(f"{name}.self_attn.{part}_proj", h).view(batch, length, heads, -1).transpose(1, 2)
                   for part in "qkv")  # [B, H, T, D]
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + linear(name + ".self_attn.o_proj", h)
        h = F.gelu(linear(name + ".mlp.up_proj", norm(name + ".post_attention_layernorm", x)), approximate="tanh")
        x = x + linear(name + ".mlp.down_proj", h)
    head = "model.embed_tokens.weight" if model["tie_word_embeddings"] else "lm_head.weight"
    return F.linear(norm("model.norm", x), w[head])


def train_torch(config, initial, samples, rates, precision, device):
    """samples [steps, B, T + 1]; returns the loss of each step before its update."""
    start = time.time()
    dtype, optimizer = DTYPES[precision], config["optimizer"]
    masters = {name: torch.tensor(value, device=device) for name, value in initial.items()}
    weights = {name: master.to(dtype).requires_grad_() for name, master in masters.items()}
    groups = [{"params": [m for m in masters.values() if (m.dim() > 1) == decays],
               "weight_decay": optimizer["weight_decay"] if decays else 0.0} for decays in (True, False)]
    adamw = torch.optim.AdamW(groups, betas=(optimizer["beta1"], optimizer["beta2"]), eps=optimizer["eps"],
                              fused=device == "cuda")
    scale = config["precision"]["loss_scale"]
    scaler = torch.amp.GradScaler(device, init_scale=scale["init_scale"], growth_factor=scale["growth_factor"],
                                  backoff_factor=scale["backoff_factor"], growth_interval=scale["growth_interval"],
                                  enabled=precision == "fp16")
    losses = []
    for batch, rate in zip(samples, rates):
        for group in adamw.param_groups:
            group["lr"] = rate
        batch = torch.tensor(batch, dtype=torch.int64, device=device)
        logits = forward(config["model"], weights, batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())
        scaler.scale(loss).backward()
        for name, weight in weights.items():
            masters[name].grad, weight.grad = weight.grad.float(), None
        scaler.unscale_(adamw)
        torch.nn.utils.clip_grad_norm_(masters.values(), optimizer["clip_grad_norm"])
        scaler.step(adamw)
        scaler.update()
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(masters[name])
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    print(f"PyTorch {precision}: {time.time() - start:.1f} s", flush=True)
    return losses


# ---- the comparison --------------------------------------------------------------------------------------------------
def smooth(losses, window):
    """Means over `window` neighbouring steps."""
    return numpy.convolve(losses, numpy.full(window, 1 / window), mode="valid")


def distance(a, b, window):
    return float(numpy.abs(smooth(a, window) - smooth(b, window)).mean())


def print_curves(curves, window):
    """Smoothed loss at ten steps, evenly spaced."""
    steps = len(next(iter(curves.values())))
    print(f"\nloss, mean of {window} steps up to\n" + "step".rjust(6) + "".join(name.rjust(22) for name in curves))
    for step in sorted({round(s) for s in numpy.linspace(window, steps, 10)}):
        row = "".join(f"{smooth(curve, window)[step - window]:22.4f}" for curve in curves.values())
        print(f"{step:6}{row}")


def compare(options, curves):
    """curves[precision] = (trainer, torch), each a curve for every seed. True when no precision is biased."""
    unbiased = True
    for precision, (trainer, torch_curves) in curves.items():
        print_curves({f"trainer {precision}": numpy.mean(trainer, axis=0),
                      f"PyTorch {precision}": numpy.mean(torch_curves, axis=0)}, options.window)
        late = len(trainer[0]) // 2  # where the loss has become small and the curves have parted
        differences = [numpy.mean(ours[late:]) - numpy.mean(theirs[late:]) for ours, theirs in zip(trainer, torch_curves)]
        mean, error = numpy.mean(differences), numpy.std(differences, ddof=1) / len(differences) ** 0.5
        seeds = numpy.std([numpy.mean(curve[late:]) for curve in torch_curves], ddof=1)
        limit = STUDENT_99[len(differences)] * error
        within = abs(mean) <= limit
        print(f"second half, {precision}: trainer - PyTorch {mean:+.5f}, standard error {error:.5f} over {len(trainer)} seeds "
              f"({'within noise' if within else 'OUTSIDE'}: at most {limit:.5f}); each "
              f"{', '.join(f'{d:+.4f}' for d in differences)}; PyTorch from seed to seed {seeds:.5f}")
        early = numpy.mean([distance(a[:10], b[:10], 1) for a, b in zip(trainer, torch_curves)])
        print(f"first 10 steps, {precision}: mean distance {early:.6f}")
        unbiased = unbiased and within
    return unbiased


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True, help="the program")
    parser.add_argument("--config", default=os.path.join(HERE, "learn_beside_torch.yaml"))
    parser.add_argument("--output", default="runs/learn", help="folder for the runs and curves.json")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for the trainer, and so for both")
    parser.add_argument("--precisions", nargs="+", default=["bf16", "fp16"], choices=list(DTYPES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--window", type=int, default=20, help="steps that a point of a smoothed curve is the mean of")
    parser.add_argument("--seeds", type=int, default=4, choices=sorted(STUDENT_99), help="pairs of runs a precision")
    return parser.parse_args()


def main():
    options = parse_options()
    torch.manual_seed(0)
    seeds = [f"train.seed={seed}" for seed in range(options.seeds)]
    initial = [initial_weights(options, seed) for seed in seeds]
    curves = {precision: ([], []) for precision in options.precisions}
    for precision, (trainer, torch_curves) in curves.items():
        for seed, weights in zip(seeds, initial):
            folder = run_trainer(options, os.path.join(options.output, precision), precision, [seed])
            metrics = read_metrics(folder)
            trainer.append([record["loss"] for record in metrics])
            with open(os.path.join(folder, "config.resolved.yaml")) as file:
                config = yaml.safe_load(file)
            check_is_gpt2(config["model"])
            rates = [record["lr"] for record in metrics]
            ids, length = read_sample_ids(folder), config["train"]["seq_length"]
            tokens = read_tokens(config["data"]["train"])
            samples = tokens[ids[:, :, None] * length + numpy.arange(length + 1)]
            torch_curves.append(train_torch(config, weights, samples, rates, precision, options.device))
    with open(os.path.join(options.output, "curves.json"), "w") as file:
        json.dump(curves, file)
    sys.exit(0 if compare(options, curves) else 1)


if __name__ == "__main__":
    main()
