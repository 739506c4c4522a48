// The rotary angles: computed once on the host in float64.
#include <cmath>
#include <numbers>
#include <vector>

#include "core/config/resolve.h"
#include "core/model/attention.h"

namespace trainer {
namespace {

/// Llama 3.1's rule: long wavelengths are stretched by `factor`, short ones kept, those between interpolated.
double scale_frequency(double frequency, const RopeScalingConfig& scaling) {
  if (scaling.type == RopeScalingType::none) return frequency;
  if (scaling.type == RopeScalingType::linear) return frequency / scaling.factor;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

template <class A>
void fill(const Tensor& table, const std::vector<double>& frequencies) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  for (std::int64_t position = 0; position < table.rows; ++position) {
    A* row = table.as<A>() + position * table.stride;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies[static_cast<std::size_t>(i)];
      row[i] = static_cast<A>(std::cos(angle));
      row[half + i] = static_cast<A>(std::sin(angle));
    }
  }
}

}  // namespace

RopeTable allocate_rope_table(const Config& config, Arena& arena, Dtype accumulator) {
  RopeTable table;
  if (config.model.position == Position::rope) table.rotary_dim = rotary_dims(config.model);
  if (table.rotary_dim > 0)
    table.cos_sin = arena.take(MemoryClass::workspace, "rotary table", config.model.max_position_embeddings,
                               table.rotary_dim, accumulator);
  return table;
}

void fill_rope_table(const Config& config, const Tensor& host) {
  const std::int64_t rotary = host.cols;
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < rotary / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(rotary);
    frequencies.push_back(
        scale_frequency(1.0 / std::pow(config.model.rope_theta, exponent), config.model.rope_scaling));
  }
  if (host.dtype == Dtype::f64)
    fill<double>(host, frequencies);
  else
    fill<float>(host, frequencies);
}

}  // namespace trainer
