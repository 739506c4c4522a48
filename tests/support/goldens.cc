#include "tests/support/goldens.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "core/runtime/rng.h"

namespace trainer::test {
namespace {

using nlohmann::json;

/// Uniform in [-1, 1), exact: the upper 53 bits of the hash x 2^-52, minus 1.
double uniform(std::uint64_t key, std::int64_t index) {
  const std::uint64_t bits = mix_key(key, static_cast<std::uint64_t>(index));
  return static_cast<double>(bits >> 11) * 0x1p-52 - 1.0;
}

std::uint64_t name_key(std::string_view name) {
  return mix_key(0, name);
}

/// Weights are centre + range x u. Ranges are powers of two, so that the product is exact and rounds once.
struct WeightRange {
  double centre, range;
};
WeightRange weight_range(std::string_view name) {
  if (name.ends_with("norm.weight")) return {1.0, 0.25};
  if (name.ends_with(".bias")) return {0.0, 0.125};
  return {0.0, 0.25};
}

double projection(const double* values, std::int64_t size, std::size_t k) {
  const std::uint64_t key = name_key("projection." + std::to_string(k));
  double sum = 0.0;
  for (std::int64_t i = 0; i < size; ++i) sum += values[i] * uniform(key, i);
  return sum;
}

TensorCheck to_tensor_check(const json& from) {
  TensorCheck check;
  check.size = from.at("size").get<std::int64_t>();
  check.norm = from.at("norm").get<double>();
  check.projections = from.at("projections").get<std::vector<double>>();
  check.samples = from.at("samples").get<std::vector<double>>();
  if (from.at("indices") == "all") {
    check.indices.resize(static_cast<std::size_t>(check.size));
    std::iota(check.indices.begin(), check.indices.end(), std::int64_t{0});
  } else {
    check.indices = from.at("indices").get<std::vector<std::int64_t>>();
  }
  const bool in_range =
      std::all_of(check.indices.begin(), check.indices.end(), [&](std::int64_t i) { return i >= 0 && i < check.size; });
  if (check.indices.size() != check.samples.size() || check.projections.empty() || !in_range)
    throw std::runtime_error("a tensor check does not fit its size");
  return check;
}

GoldenParameter to_parameter(const json& from) {
  GoldenParameter parameter;
  parameter.name = from.at("name").get<std::string>();
  const auto shape = from.at("shape").get<std::vector<std::int64_t>>();
  parameter.rows = shape.at(0);
  parameter.cols = shape.size() == 2 ? shape[1] : 1;
  parameter.gradient = to_tensor_check(from.at("gradient"));
  parameter.final_weight = to_tensor_check(from.at("final_weight"));
  return parameter;
}

Golden to_golden(const json& from) {
  Golden golden;
  golden.family = from.at("family").get<std::string>();
  golden.config_yaml = from.at("config_yaml").get<std::string>();
  golden.batch_size = from.at("batch_size").get<std::int64_t>();
  golden.seq_length = from.at("seq_length").get<std::int64_t>();
  golden.vocab_size = from.at("vocab_size").get<std::int64_t>();
  for (const json& batch : from.at("batches")) {
    golden.batches.push_back(
        {batch.at("token_ids").get<std::vector<std::int32_t>>(), batch.at("targets").get<std::vector<std::int32_t>>()});
  }
  golden.loss = from.at("loss").get<double>();
  golden.target_tokens = from.at("target_tokens").get<std::int64_t>();
  golden.logits = to_tensor_check(from.at("logits"));
  for (const json& parameter : from.at("parameters")) golden.parameters.push_back(to_parameter(parameter));
  golden.losses = from.at("losses").get<std::vector<double>>();
  golden.grad_norms = from.at("grad_norms").get<std::vector<double>>();
  return golden;
}

json read_json(const std::string& name) {
  const std::string path = std::string(TRAINER_GOLDENS_DIR) + "/" + name;
  std::ifstream file(path);
  if (!file)
    throw std::runtime_error("golden file " + path + " cannot be opened; tests/tools/make_goldens.py makes it");
  try {
    return json::parse(file);
  } catch (const json::exception& error) {
    throw std::runtime_error("golden file " + path + " is damaged: " + error.what());
  }
}

}  // namespace

double golden_weight(std::string_view name, std::int64_t index) {
  const WeightRange r = weight_range(name);
  return r.centre + r.range * uniform(name_key(name), index);
}

void fill_golden_weights(std::string_view name, std::int64_t rows, std::int64_t cols, double* out) {
  const WeightRange r = weight_range(name);
  const std::uint64_t key = name_key(name);
  for (std::int64_t i = 0; i < rows * cols; ++i) out[i] = r.centre + r.range * uniform(key, i);
}

double error_norm(const TensorCheck& check, const double* values) {
  double sampled = 0.0;
  for (std::size_t i = 0; i < check.indices.size(); ++i) {
    const double difference = values[check.indices[i]] - check.samples[i];
    sampled += difference * difference;
  }
  if (static_cast<std::int64_t>(check.indices.size()) == check.size) return std::sqrt(sampled);

  double squares = 0.0;
  for (std::int64_t i = 0; i < check.size; ++i) squares += values[i] * values[i];
  if (!std::isfinite(squares)) return squares;
  double projected = 0.0;
  for (std::size_t k = 0; k < check.projections.size(); ++k) {
    const double difference = projection(values, check.size, k) - check.projections[k];
    projected += difference * difference;
  }
  const double estimate = std::sqrt(3.0 * projected / static_cast<double>(check.projections.size()));
  const double norm_difference = std::abs(std::sqrt(squares) - check.norm);
  return std::max({estimate, std::sqrt(sampled), norm_difference});
}

double relative_error(const TensorCheck& check, const double* values) {
  return error_norm(check, values) / (check.norm + 1e-4 * std::sqrt(static_cast<double>(check.size)));
}

Golden load_golden(const std::string& family) {
  const json file = read_json(family + ".json");
  try {
    return to_golden(file);
  } catch (const std::exception& error) {
    throw std::runtime_error("golden file of " + family + " is damaged: " + error.what());
  }
}

GoldenFormula load_golden_formula() {
  const json file = read_json("formula.json");
  GoldenFormula formula;
  for (const json& value : file.at("values")) {
    formula.values.push_back(
        {value.at("name").get<std::string>(), value.at("index").get<std::int64_t>(), value.at("value").get<double>()});
  }
  const json& tensor = file.at("tensor");
  formula.tensor.name = tensor.at("name").get<std::string>();
  formula.tensor.rows = tensor.at("shape").at(0).get<std::int64_t>();
  formula.tensor.cols = tensor.at("shape").at(1).get<std::int64_t>();
  formula.tensor.final_weight = to_tensor_check(tensor.at("check"));
  return formula;
}

}  // namespace trainer::test
