// Golden files: what PyTorch computes in float64 for a tiny model of each family (tests/tools/make_goldens.py writes
// them, tests/tools/README.md has the format). Initial weights are not in the files; a formula gives them here and
// there, bit for bit. Parameters carry Hugging Face's Llama names in every family.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::test {

/// The families that have a golden file.
inline constexpr const char* kGoldenFamilies[] = {"gpt2", "neox", "llama3", "mistral", "qwen2", "qwen3"};

/// Element `index` (row-major, of the global tensor) of the initial weight `name`. With u uniform in [-1, 1) by hash:
/// 1 + u / 4 for norm weights, u / 8 for biases, u / 4 for all other parameters.
double golden_weight(std::string_view name, std::int64_t index);

/// Fills out [rows, cols] with the initial weight `name`; a vector is [n, 1].
void fill_golden_weights(std::string_view name, std::int64_t rows, std::int64_t cols, double* out);

/// What is known of a tensor: its L2 norm, its products with fixed vectors of numbers uniform in [-1, 1), and single
/// elements; all of them when it has at most 512.
struct TensorCheck {
  std::int64_t size = 0;
  double norm = 0.0;
  std::vector<double> projections;    // [16] sum over i of values[i] * v_k[i]
  std::vector<std::int64_t> indices;  // which elements the samples are
  std::vector<double> samples;
};

/// The L2 norm of (values - golden tensor), values [check.size]. Exact when every element is known. Otherwise an
/// estimate: E (v . e)^2 = |e|^2 / 3 for a vector v of independent uniforms, so |e| is about sqrt(3 x mean over k of
/// (v_k . e)^2), with a relative standard deviation of 1 / sqrt(2 x 16) = 18 %; raised to the lower bounds that the
/// samples and the two norms give. A value that is not finite makes the result not finite.
double error_norm(const TensorCheck& check, const double* values);

/// error_norm / (check.norm + 1e-4 x sqrt(size)). The second term keeps tensors meaningful that are zero but for
/// rounding, such as the gradient of a key bias without RoPE: with a bound of 1e-10 it allows 1e-14 an element.
double relative_error(const TensorCheck& check, const double* values);

struct GoldenBatch {
  std::vector<std::int32_t> token_ids;  // [B * T]
  std::vector<std::int32_t> targets;    // [B * T], -1: masked
};

struct GoldenParameter {
  std::string name;
  std::int64_t rows = 0, cols = 0;  // [out, in]; a vector is [n, 1]
  TensorCheck gradient;             // of `loss`, before clipping
  TensorCheck final_weight;         // after all steps
};

struct Golden {
  std::string family;
  std::string config_yaml;  // a whole configuration: model, train, optimizer, lr_scheduler, precision
  std::int64_t batch_size = 0, seq_length = 0, vocab_size = 0;
  std::vector<GoldenBatch> batches;         // one for each step
  double loss = 0.0;                        // of batches[0] with the initial weights
  std::int64_t target_tokens = 0;           // unmasked targets of batches[0]
  TensorCheck logits;                       // [B * T, V] of batches[0] with the initial weights
  std::vector<GoldenParameter> parameters;  // every parameter, a tied one once
  std::vector<double> losses;               // [10] of each step's batch, before the step
  std::vector<double> grad_norms;           // [10] before clipping
};

/// Reads a family's golden file. Throws std::runtime_error naming the file when it is missing or damaged.
Golden load_golden(const std::string& family);

/// Known answers of the formulas in this file, as Python computes them.
struct GoldenFormula {
  struct Value {
    std::string name;
    std::int64_t index = 0;
    double value = 0.0;  // golden_weight(name, index)
  };
  std::vector<Value> values;
  GoldenParameter tensor;  // final_weight is the check of the initial weight `tensor.name`; gradient is empty
};
GoldenFormula load_golden_formula();

}  // namespace trainer::test
